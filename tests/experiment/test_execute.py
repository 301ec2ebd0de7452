"""Execute plans with a fake engine."""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specbench.cli.measure import carry_out
from specbench.cli.measurement import RunFolder
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.loop import DecodeOptions
from specbench.decoding.records import RoundRecord
from specbench.decoding.sampling import Sampling
from specbench.engine import device, limits
from specbench.engine.cache import SlotCache
from specbench.engine.pairs import PairSpec
from specbench.errors import EngineError, RunError, UsageError
from specbench.experiment import loader, runner
from specbench.experiment.cells import method_variants
from specbench.experiment.measurements import columns_of, repetition
from specbench.experiment.plan import Plan
from specbench.experiment.planning import Systems, build_plan
from specbench.methods.ensembles import static
from specbench.runs.configuration import Settings
from specbench.runs.records import latest_records, read_examples, read_records
from specbench.tasks.example import Example

from ..engine.tiny import config
from ..synthetic import make_head
from .runs import ROWS, TASK, ByCharacter, executed, plan_of, task_of


def records(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    executed(plan, folder)
    return list(read_records(folder))


def test_every_sample_is_decoded_scored_and_recorded(engine, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(runner, "other_processes", lambda: [{"pid": 42, "memory_mib": 512}])
    records(plan_of(["autoregressive", "sd"]), tmp_path / "r")
    samples = latest_records(tmp_path / "r")
    methods = ("autoregressive", "sd")
    assert [(r.sample_id, r.method) for r in samples] == [(r.id, m) for r in ROWS for m in methods]
    assert {r.run_id for r in samples} == {"r"}
    assert {r.status for r in samples} == {"ok"}
    # The text ends in "#### 7": correct, wrong, and without a reference.
    assert [r.quality for r in samples[::2]] == [1.0, 0.0, None]
    assert {r.quality_metric for r in samples} == {"accuracy"}
    assert engine.loaded == ("p", "auto", "float32")
    # Room for the fake tokenizer's one token, answer, drafts and bonus token.
    assert engine.reserved == (1 + 16 + 5 + 1, 1)
    assert list(read_examples(tmp_path / "r")["t"].values()) == list(ROWS)
    environment = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert environment["first_prompts"] == {"t": [len(ROWS[0].prompt)]}
    assert environment["other_gpu_processes"] == [{"pid": 42, "memory_mib": 512}]
    assert environment["compared_with_eager"] is None and engine.compared == []  # it is eager
    assert "other processes use the GPUs (1)" in caplog.text


@pytest.mark.parametrize(("share", "noted"), [(0.1, False), (0.5, True)])
def test_a_busy_machine_is_noted(engine, tmp_path, monkeypatch, caplog, share, noted):
    monkeypatch.setattr(runner, "busy_share", lambda: share)
    records(plan_of(["sd"]), tmp_path / "r")
    assert json.loads((tmp_path / "r" / "environment.json").read_text())["busy_share"] == share
    assert ("other processes use 50 % of the processor" in caplog.text) is noted


def test_the_share_of_other_processes_is_that_of_ticks_that_are_not_idle(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 20 300 5 0 0 0 0 0\ncpu0 50 0 10 150 2 0 0 0 0 0\n")
    later = "cpu  125 5 25 360 10 0 0 0 0 0\n"  # 65 of 100 ticks are idle or wait for a disk
    monkeypatch.setattr(limits, "STAT", stat)
    monkeypatch.setattr(limits.time, "sleep", lambda seconds: stat.write_text(later))
    assert limits.busy_share() == 0.35
    stat.write_text("another system")
    assert limits.busy_share() == 0
    monkeypatch.setattr(limits, "STAT", tmp_path / "none")
    assert limits.busy_share() == 0


def test_the_loop_receives_the_settings_of_the_plan(engine, tmp_path):
    filters = {"temperature": 0.5, "top_k": 4, "top_p": 0.9}
    plan = plan_of(["static"], seed=3, batch_size=2, engine="compile", **filters)
    records(plan, tmp_path / "r")
    *_, last = plan.steps()
    call = engine.calls[-1]
    rule = call.pop("rule")
    assert isinstance(rule, partial)
    assert (rule.func, rule.keywords) == (static, {"weight": 0.5})
    how: Any = {"seed": 3, "stop": ("END",), "batch_size": 2, "drafter": ModelDrafter()}
    options = DecodeOptions(Sampling(**filters), 5, 16, **how)
    prompt = {"prompt_ids": [len(last.example.prompt)], "sample_key": last.sample_key}
    assert call == {**prompt, **vars(options)} and engine.engine.name == "compile"


def test_only_auto_leaves_an_engine_that_differs_from_eager(engine, tmp_path, monkeypatch, caplog):
    """``auto`` may leave it, and an engine that the user named may not."""
    monkeypatch.setattr(loader, "choose_engine", lambda *_: "graph")  # as on a GPU
    environment = tmp_path / "same" / "environment.json"
    (record, *_) = records(plan_of(["autoregressive", "sd"]), environment.parent)
    compared = json.loads(environment.read_text())["compared_with_eager"]
    assert record.engine == compared["engine"] == "graph" and compared["difference"] is None
    assert [options.draft_length for options in engine.compared] == [5]

    engine.difference = "the target's distributions differ by 0.5"
    with pytest.raises(EngineError, match=r"not the same as eager .*by 0\.5.*--engine eager"):
        records(plan_of(["sd"], engine="graph"), tmp_path / "named")
    caplog.clear()
    (record, *_) = records(plan_of(["sd"]), tmp_path / "auto")
    assert record.engine == "eager" and "continuing with --engine eager" in caplog.text
    compared = json.loads((tmp_path / "auto" / "environment.json").read_text())
    assert compared["compared_with_eager"]["difference"] == engine.difference


def test_all_cells_are_captured_before_the_first_sample(engine, tmp_path):
    tasks, variants = [TASK, replace(TASK, name="u")], method_variants(["autoregressive", "sd"], {})
    settings = Settings(engine="compile")
    plan = build_plan(PairSpec("p", "t", "d"), tasks, Systems(variants, [5]), settings)
    samples = records(plan, tmp_path / "r")
    keys = [call["sample_key"] for call in engine.calls]
    assert keys[:5] == ["t/t-0/0", "t/t-0/0", "u/t-0/0", "u/t-0/0", "t/t-0/0"]
    assert [call["draft_length"] for call in engine.calls[:4]] == [0, 5, 0, 5]
    assert len(keys) == len(samples) + 4


def test_a_cell_that_cannot_be_warmed_up_fails_alone(engine, tmp_path, monkeypatch):
    def decode_all(pair, rule, requests, options):
        if options.draft_length:
            raise ValueError("no")
        return engine.decode_all(pair, rule, requests, options)

    monkeypatch.setattr(runner, "decode_all", decode_all)
    samples = records(plan_of(["autoregressive", "sd"], engine="compile"), tmp_path / "r")
    assert {(r.method, r.status) for r in samples} == {("autoregressive", "ok"), ("sd", "error")}


def test_each_sample_is_warmed_up_if_code_runs_between_samples(engine, tmp_path):
    rows = tuple(replace(row, tests=("assert True",)) for row in ROWS)
    plan = plan_of(["autoregressive", "sd"], task_of(*rows, metrics=("pass@1",)))
    unrun = records(plan, tmp_path / "unrun")
    assert {(r.status, r.quality) for r in unrun} == {("ok", None)}
    calls = len(engine.calls)
    assert calls == len(unrun) + 2  # only the warm-up of each method
    samples = records(replace(plan, may_execute=True), tmp_path / "r")
    assert {r.quality for r in samples} == {0.0}  # "so #### 7" is not valid code
    limits = [call["max_new_tokens"] for call in engine.calls[calls:]]
    assert len(limits) == 2 * len(samples)
    assert limits[:4] == [16, 16, 16, 16]  # first the warm-up of each method
    assert limits[4:] == [2, 16, 12, 16, 2, 16, 12, 16]


def test_heads_are_loaded_once_and_before_anything_runs(engine, tmp_path):
    heads = [make_head(tmp_path / name) for name in "xy"]
    variants = method_variants(["sd", "diversed"], {"head": list(map(str, heads))})
    tasks = [TASK, replace(TASK, name="u")]
    plan = build_plan(PairSpec("p", "t", "d"), tasks, Systems(variants, [3, 5]), Settings())
    samples = records(plan, tmp_path / "r")
    assert engine.heads == heads
    assert any("head" in call["rule"].keywords for call in engine.calls if call["rule"])
    used = {(r.method, r.head) for r in samples}
    assert used == {("sd", None), ("diversed", str(heads[0])), ("diversed", str(heads[1]))}


def test_a_failed_sample_is_recorded_and_the_run_continues(engine, tmp_path, monkeypatch):
    freed: list[int] = []
    monkeypatch.setattr(runner, "free_memory", lambda: freed.append(len(engine.calls)))
    engine.failing = {1: torch.OutOfMemoryError("no room"), 3: UsageError("one sentence")}
    samples = records(plan_of(["sd"]), tmp_path / "r")
    assert [r.sample_id for r in samples] == ["t-0", "t-1", "t-2"]
    assert [r.status for r in samples] == ["error", "ok", "error"]
    assert [r.error for r in samples] == ["OutOfMemoryError: no room", None, "one sentence"]
    assert freed == [2, 4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_adaptive_length_sees_probabilities_where_q_is_one_hot(engine, tmp_path, temperature):
    records(plan_of(["sd-adaptive"], temperature=temperature), tmp_path / "r")
    assert engine.calls[-1]["control"].softmax == (temperature == 0)


def test_infinite_states_of_a_failed_text_do_not_stay(engine, tmp_path):
    engine.target.cache = SlotCache(config("llama"), 8, [torch.device("cpu")], torch.float32)
    engine.target.cache.values[0].fill_(torch.nan)  # which a mask multiplies by 0
    engine.failing = {1: ValueError("not finite")}
    records(plan_of(["sd"]), tmp_path / "r")
    assert engine.target.cache.values[0].isfinite().all()


def test_texts_that_are_decoded_alone_after_an_error_are_in_no_block(engine, tmp_path):
    engine.failing = {1: ValueError("no room")}  # for both texts together, not for each alone
    samples = records(plan_of(["sd"], batch_size=2), tmp_path / "r")
    blocks = {r.sample_id: (r.status, r.block) for r in samples}
    assert blocks == {"t-0": ("ok", None), "t-1": ("ok", None), "t-2": ("ok", 1)}


def test_a_text_that_cannot_be_recorded_is_a_failed_sample(engine, tmp_path, monkeypatch):
    """It was neither recorded nor decoded again, and the run exited with 0."""

    def score_text(metrics, text, example, may_execute):
        value = float("nan") if example.id == "t-1" else 1.0
        if example.id == "t-2":
            raise ValueError("no score")
        return {"quality": value, "scores": {"accuracy": value}, "status": "ok"}

    monkeypatch.setattr(runner.measurements, "score_text", score_text)
    samples = records(plan_of(["sd"], batch_size=3), tmp_path / "r")
    errors = [(r.sample_id, r.error) for r in samples]  # each once
    unstored = "cannot store quality, scores: a number is not finite"
    assert errors == [("t-0", None), ("t-1", unstored), ("t-2", "ValueError: no score")]
    assert b"NaN" not in (tmp_path / "r" / "samples.jsonl").read_bytes()


def test_a_run_that_lacks_samples_is_an_error(engine, tmp_path, monkeypatch):
    def decode_all(pair, rule, requests, options):
        return list(engine.decode_all(pair, rule, requests, options))[:-1]

    monkeypatch.setattr(runner, "decode_all", decode_all)
    plan = plan_of(["sd"], batch_size=3)
    with pytest.raises(RunError, match="1 of 3 samples are missing"):
        carry_out(plan, "run", RunFolder(output=tmp_path / "r", no_progress=True), nullcontext())


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), EngineError("cannot be captured")])
def test_an_error_not_caused_by_a_sample_ends_the_run(engine, tmp_path, problem):
    engine.failing = {2: problem}
    with pytest.raises(type(problem)):
        records(plan_of(["sd"]), tmp_path / "r")
    assert [r.status for r in read_records(tmp_path / "r")] == ["ok"]
    assert (tmp_path / "r" / "samples.csv").is_file()


def test_only_a_device_that_stopped_working_ends_the_run(engine, tmp_path, monkeypatch):
    kernel = Mock(side_effect=torch.OutOfMemoryError())
    monkeypatch.setattr(device, "run_kernel", kernel)
    engine.target.device = torch.device("cuda")
    engine.failing = {2: torch.OutOfMemoryError("no room")}
    samples = records(plan_of(["sd"], engine="eager"), tmp_path / "r")
    assert [r.status for r in samples] == ["ok", "error", "ok"]
    kernel.side_effect = RuntimeError("CUDA error: an illegal memory access\nMore.")
    broken = torch.AcceleratorError("CUDA error: an illegal memory access", 700)
    engine.failing = {len(engine.calls) + 2: broken}
    with pytest.raises(EngineError, match=r"cuda no longer works .*illegal memory access\)"):
        records(plan_of(["sd"], engine="eager"), tmp_path / "s")
    assert [r.status for r in read_records(tmp_path / "s")] == ["ok"]


def test_an_error_that_is_reported_twice_is_not_a_broken_gpu(monkeypatch):
    error = RuntimeError("operation failed due to a previous error during capture")
    kernel = Mock(side_effect=[error, None])
    monkeypatch.setattr(device, "run_kernel", kernel)
    device.require_working(torch.device("cuda"))
    assert kernel.call_count == 2


def test_measurements_follow_their_definitions(make_generation):
    columns = columns_of(make_generation(), drafts=True)
    assert columns["rounds"] == 2 and (columns["proposed"], columns["accepted"]) == (10, 6)
    assert columns["draft_acceptance_rate"] == pytest.approx(0.6)
    assert columns["acceptance_length"] == pytest.approx((6 + 2) / 2)
    # Means over the seven judged positions, not over rounds.
    assert columns["expected_acceptance"] == pytest.approx(4.6 / 7)
    assert columns["mean_weight"] == pytest.approx((5 * 0.5 + 2 * 0.25) / 7)
    assert columns["tokens_per_second"] == pytest.approx(8 / (0.5 + 1.5))
    assert columns["per_round"]["accepted"] == [5, 1]
    assert columns["per_round"]["expected"][1] == [0.4, 0.2]
    alone = columns_of(make_generation(rounds=[RoundRecord(0, 0, 1)] * 8), drafts=False)
    assert (alone["rounds"], alone["proposed"]) == (8, 0)
    blank = ("accepted", "draft_acceptance_rate", "acceptance_length")
    assert all(alone[name] is None for name in (*blank, "expected_acceptance", "mean_weight"))
    assert columns["repetition"] is None  # three tokens
    assert repetition([1, 2, 3, 4, 5, 6]) == 0
    assert repetition([7] * 13) == pytest.approx(9 / 10)  # ten 4-grams, all equal
    assert repetition([1, 2, 3, 4] * 3) == pytest.approx(5 / 9)  # nine 4-grams, four different
    assert repetition([1, 2, 3]) is None


def test_a_long_prompt_is_cut_inside_its_passage(engine, tmp_path):
    """The context of 40 minus 16 new tokens, 5 drafted tokens and the bonus token."""
    engine.tokenizer, engine.context = ByCharacter(), 40
    article = Example("t-0", "Sum up: a long article. End.", passage="a long article.")
    stubborn = Example("t-1", "a question as long as that, without a passage")
    task = task_of(article, stubborn)
    for limit, cut in ((None, 10), (15, 13), (30, 10)):
        plan = plan_of(["sd"], task, max_prompt_tokens=limit)
        samples = records(plan, tmp_path / str(limit))
        assert [r.prompt_cut for r in samples] == [cut, None]
        why = "exceed the context of 40" if limit is None else f"more than the limit of {limit}"
        assert why in samples[1].error
    assert engine.calls[-1]["prompt_ids"] == [ord(c) for c in "Sum up: a lon End."]
    with pytest.raises(UsageError, match=r"2 of 2 examples of t .*the limit of 12"):
        records(plan_of(["sd"], task, max_prompt_tokens=12), tmp_path / "12")


def test_prompts_that_do_not_fit_are_reported_before_loading(engine, tmp_path, caplog):
    engine.tokenizer, engine.context = ByCharacter(), 40
    task = task_of(Example("t-0", "short"), Example("t-1", 30 * "long "))
    with pytest.raises(UsageError, match=r"2 of 2 examples of t .*exceed the context of 40"):
        records(plan_of(["sd"], task, max_new_tokens=60), tmp_path / "r")
    assert engine.loaded is None and not (tmp_path / "r").exists()

    engine.check_memory = Mock(side_effect=UsageError("p needs 99 GiB"))
    with pytest.raises(UsageError, match="99 GiB"):
        loader.Loader().load(plan_of(["sd"]))
    assert engine.check_memory.call_args.args[2:] == (int(len("three") / 2.5), 16, 5, 1)
    assert engine.loaded is None
    del engine.check_memory
    records(plan_of(["sd"], task), tmp_path / "r")
    assert "1 of 2 examples of t" in caplog.text and "exceed the context of 40" in caplog.text
    # Nothing is reserved for prompts that do not fit.
    assert engine.reserved == (len("short") + 16 + 5 + 1, 1)
