import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.records import RoundRecord
from specbench.decoding.sampling import Sampling
from specbench.engine.settings import Loading
from specbench.errors import EngineError, RunError, UsageError
from specbench.example import Example
from specbench.experiment import decoder, scoring
from specbench.experiment import execute as module
from specbench.experiment.examples import read_examples
from specbench.experiment.execute import execute
from specbench.experiment.measurements import measurements
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.records import latest_records, read_records
from specbench.experiment.settings import Settings
from specbench.experiment.store import Store
from specbench.experiment.variants import method_variants
from specbench.methods.rules import static
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import Listed, Task

ROWS = (Example("t-0", "one", "#### 7"), Example("t-1", "three", "#### 8"), Example("t-2", "no"))
TASK = Task("t", "1", "", ("accuracy",), ("END",), 16, Listed(ROWS), Path("t.toml"))


def plan_of(names: list[str], task: Task = TASK, **settings: Any) -> Plan:
    pair, loading = PairSpec("p", "t", "d"), Loading(dtype="float32")
    variants = method_variants(names, {})
    return build_plan(pair, [task], variants, [5], Settings(**settings), loading=loading)


def records(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    with Store.open(folder, "run", plan.describe()) as store:
        execute(plan, store, lambda record: None)
    return list(read_records(folder))


def test_every_sample_is_decoded_scored_and_recorded(engine: Any, tmp_path: Path) -> None:
    records(plan_of(["autoregressive", "sd"]), tmp_path / "r")
    found = latest_records(tmp_path / "r")
    assert [(r["sample_id"], r["method"]) for r in found] == [
        (row.id, method) for row in ROWS for method in ("autoregressive", "sd")
    ]
    assert {r["run_id"] for r in found} == {"r"}
    assert {r["status"] for r in found} == {"ok"}
    # The text ends in "#### 7": right, wrong, and nothing to compare with.
    assert [r["quality"] for r in found[::2]] == [1.0, 0.0, None]
    assert {r["quality_metric"] for r in found} == {"accuracy"}
    assert engine.loaded == ("p", "auto", "float32")


def test_the_loop_gets_what_the_plan_says(engine: Any, tmp_path: Path) -> None:
    plan = plan_of(["static"], temperature=0.5, top_k=4, top_p=0.9, seed=3)
    records(plan, tmp_path / "r")
    *_, last = plan.steps()
    call = engine.calls[-1]
    verify = call.pop("verify")
    assert isinstance(verify, partial)
    assert (verify.func, verify.keywords) == (static, {"weight": 0.5})
    assert call == {
        "prompt_ids": [len(last.example.prompt)],
        "sampling": Sampling(0.5, 4, 0.9),
        "draft_length": 5,
        "max_new_tokens": 16,
        "seed": 3,
        "sample_key": last.sample_key,
        "stop": ("END",),
        "batch_size": 1,
        "control": None,
    }


def test_the_first_decode_of_each_method_is_a_warm_up(engine: Any, tmp_path: Path) -> None:
    found = records(plan_of(["autoregressive", "sd"], repeats=2), tmp_path / "r")
    assert len(found) == 2 * 2 * 3
    assert len(engine.calls) == len(found) + 2
    assert [call["draft_length"] for call in engine.calls[:5]] == [0, 0, 5, 5, 0]


def test_where_programs_run_between_samples_each_is_made_ready_again(
    engine: Any, tmp_path: Path
) -> None:
    rows = tuple(replace(row, tests=("assert True",)) for row in ROWS)
    code = replace(TASK, metrics=("pass@1",), source=Listed(rows))
    plan = replace(plan_of(["autoregressive", "sd"], code), may_execute=True)
    found = records(plan, tmp_path / "r")
    limits = [call["max_new_tokens"] for call in engine.calls]
    assert len(limits) == 2 * len(found)
    assert limits[:4] == [16, 16, 16, 16]  # first the warm-up of each method
    assert limits[4:] == [2, 16, 12, 16, 2, 16, 12, 16]
    unrun = records(replace(plan, may_execute=False), tmp_path / "unrun")
    assert len(engine.calls) - len(limits) == len(unrun) + 2


def test_heads_are_loaded_once_and_before_anything_runs(engine: Any, tmp_path: Path) -> None:
    heads = [tmp_path / "x", tmp_path / "y"]
    for head in heads:
        head.mkdir()
        for file in ("head.safetensors", "head.json"):
            (head / file).touch()
    plan = build_plan(
        PairSpec("p", "t", "d"),
        [TASK, replace(TASK, name="u")],
        method_variants(["sd", "diversed"], {"head": list(map(str, heads))}),
        [3, 5],
        Settings(),
    )
    found = records(plan, tmp_path / "r")
    assert engine.heads == heads
    assert any("head" in call["verify"].keywords for call in engine.calls if call["verify"])
    used = {(r["method"], r["head"]) for r in found}
    assert used == {("sd", None), ("diversed", str(heads[0])), ("diversed", str(heads[1]))}


def test_a_sample_that_fails_is_recorded_and_the_run_goes_on(engine: Any, tmp_path: Path) -> None:
    engine.failing = {1: ValueError("too long"), 3: UsageError("one sentence")}
    found = records(plan_of(["sd"]), tmp_path / "r")
    assert [r["status"] for r in found] == ["error", "ok", "error"]
    assert [r.get("error") for r in found] == ["ValueError: too long", None, "one sentence"]
    assert found[0]["sample_id"] == "t-0"


def test_a_metric_that_fails_does_not_lose_the_text(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> float:
        raise RunError("no process")

    monkeypatch.setattr(scoring, "score", broken)
    found = records(plan_of(["sd"]), tmp_path / "r")
    assert [r["status"] for r in found] == ["unscored", "unscored", "ok"]
    assert found[0]["error"] == "no process"
    assert found[0]["text"] == "so #### 7"
    assert found[0]["quality"] is None


def test_an_interruption_ends_the_run_at_once(engine: Any, tmp_path: Path) -> None:
    engine.failing = {2: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        records(plan_of(["sd"]), tmp_path / "r")
    assert len(list(read_records(tmp_path / "r"))) == 1
    assert (tmp_path / "r" / "samples.csv").is_file()


def test_measurements_follow_their_definitions(make_generation: Any) -> None:
    found = measurements(make_generation())
    assert found["rounds"] == 2
    assert (found["proposed"], found["accepted"]) == (10, 6)
    assert found["draft_acceptance_rate"] == pytest.approx(0.6)
    assert found["acceptance_length"] == pytest.approx((6 + 2) / 2)
    # Means over the seven positions judged, not over rounds.
    assert found["expected_acceptance"] == pytest.approx(4.6 / 7)
    assert found["mean_weight"] == pytest.approx((5 * 0.5 + 2 * 0.25) / 7)
    assert found["tokens_per_second"] == pytest.approx(8 / (0.5 + 1.5))
    assert found["per_round"]["accepted"] == [5, 1]
    assert found["per_round"]["expected"][1] == [0.4, 0.2]


def test_autoregressive_has_no_acceptance(make_generation: Any) -> None:
    found = measurements(make_generation(rounds=[RoundRecord(0, 0, 1)] * 8))
    assert (found["rounds"], found["proposed"]) == (8, 0)
    blank = ("accepted", "draft_acceptance_rate", "acceptance_length")
    assert all(found[name] is None for name in (*blank, "expected_acceptance", "mean_weight"))


def test_a_long_prompt_is_cut_inside_its_passage_and_counted(engine: Any, tmp_path: Path) -> None:
    engine.tokenizer = ByCharacter()
    article = Example("t-0", "Sum up: a long article. End.", passage="a long article.")
    stubborn = Example("t-1", "a question as long as that, without a passage")
    task = replace(TASK, source=Listed((article, stubborn)))
    found = records(plan_of(["sd"], task, max_prompt_tokens=20), tmp_path / "r")
    assert engine.calls[-1]["prompt_ids"] == [ord(c) for c in "Sum up: a long  End."]
    assert found[0]["prompt_cut"] == len(article.prompt) - 20
    assert (found[1]["status"], "more than the limit of 20" in found[1]["error"]) == ("error", True)


def test_an_article_is_cut_to_what_the_models_take(engine: Any, tmp_path: Path) -> None:
    """To 40 positions, less 16 new tokens, 5 drafted ones and the bonus token."""
    engine.tokenizer, engine.context = ByCharacter(), 40
    article = Example("t-0", "Sum up: a long article. End.", passage="a long article.")
    plain = Example("t-1", "a question as long as that, without a passage")
    task = replace(TASK, source=Listed((article, plain)))
    found = records(plan_of(["autoregressive", "sd"], task), tmp_path / "r")
    assert [r.get("prompt_cut") for r in found] == [10, 10, None, None]
    assert all("exceed the context of 40" in r["error"] for r in found[2:])
    with pytest.raises(UsageError, match=r"2 of 2 examples of t .*the limit of 12"):
        records(plan_of(["sd"], task, max_prompt_tokens=12), tmp_path / "12")
    for limit, cut in ((15, 13), (30, 10)):
        folder = tmp_path / str(limit)
        found = records(plan_of(["sd"], task, max_prompt_tokens=limit), folder)
        assert found[0].get("prompt_cut") == cut


def test_examples_that_do_not_fit_are_counted_before_weights_are_loaded(
    engine: Any, tmp_path: Path
) -> None:
    engine.tokenizer, engine.context = ByCharacter(), 40
    task = replace(TASK, source=Listed((Example("t-0", "short"), Example("t-1", 30 * "long "))))
    said: list[str] = []

    def note(text: str) -> None:
        assert engine.loaded is None
        said.append(text)

    module.load(plan_of(["sd"], task), note)
    assert len(said) == 1
    assert "1 of 2 examples of t" in said[0] and "exceed the context of 40" in said[0]
    engine.loaded = None
    with pytest.raises(UsageError, match=r"2 of 2 examples of t .*exceed the context of 40"):
        records(plan_of(["sd"], task, max_new_tokens=60), tmp_path / "r")
    assert engine.loaded is None and not (tmp_path / "r").exists()


def test_no_room_is_made_for_a_text_that_does_not_fit(engine: Any, tmp_path: Path) -> None:
    engine.tokenizer, engine.context = ByCharacter(), 40
    task = replace(TASK, source=Listed((Example("t-0", "short"), Example("t-1", 30 * "long "))))
    records(plan_of(["sd"], task), tmp_path / "r")
    assert engine.reserved == (len("short") + 16 + 5 + 1, 1)


class ByCharacter:
    """A token per character, and no template."""

    chat_template = None
    bos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}


def test_the_examples_and_the_first_prompt_are_kept(engine: Any, tmp_path: Path) -> None:
    records(plan_of(["sd"]), tmp_path / "r")
    assert list(read_examples(tmp_path / "r")["t"].values()) == list(ROWS)
    environment = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert environment["first_prompts"] == {"t": [len(ROWS[0].prompt)]}


def test_the_engine_is_the_one_asked_for(engine: Any, tmp_path: Path) -> None:
    for name in ("eager", "compile"):
        records(plan_of(["sd"], engine=name), tmp_path / name)
        assert engine.engine.name == name
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["settings"]["engine"] == name


def test_room_is_made_for_the_longest_text_before_anything_is_decoded(
    engine: Any, tmp_path: Path
) -> None:
    records(plan_of(["sd"]), tmp_path / "r")
    # The fake tokenizer makes one token of every prompt; then come answer, drafts and bonus.
    assert engine.reserved == (1 + 16 + 5 + 1, 1)


def test_memory_is_checked_before_anything_is_loaded(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: Any, loading: Any, *sizes: int) -> None:
        assert sizes == (int(len("three") / 2.5), 16, 5, 1)
        raise UsageError("p needs 99 GiB")

    monkeypatch.setattr(module, "check_memory", refuse)
    with pytest.raises(UsageError, match="99 GiB"):
        records(plan_of(["sd"]), tmp_path / "r")
    assert engine.loaded is None
    assert not (tmp_path / "r").exists()


def test_where_memory_runs_out_the_sample_fails_and_the_run_goes_on(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(decoder, "free_memory", lambda: freed.append(len(engine.calls)))
    engine.failing = {2: torch.OutOfMemoryError("no room for 2 GiB")}
    found = records(plan_of(["sd"]), tmp_path / "r")
    assert [r["status"] for r in found] == ["ok", "error", "ok"]
    assert "no room for 2 GiB" in found[1]["error"]
    assert freed == [3]


def test_programs_wait_until_they_may_be_run(engine: Any, tmp_path: Path) -> None:
    rows = (Example("t-0", "one", tests=("assert True",)),)
    task = replace(TASK, metrics=("pass@1",), source=Listed(rows))
    (found,) = records(plan_of(["sd"], task), tmp_path / "r")
    assert (found["status"], found["quality"]) == ("ok", None)
    plan = replace(plan_of(["sd"], task), may_execute=True)
    (found,) = records(plan, tmp_path / "s")
    assert found["quality"] == 0.0  # "so #### 7" is no program


def test_in_a_batch_only_the_text_at_fault_fails(engine: Any, tmp_path: Path) -> None:
    whole = engine.decode_all

    def decode_all(pair: Any, verify: Any, requests: Any, **named: Any) -> Any:
        for number, found in whole(pair, verify, requests, **named):
            if requests[number].prompt == [len("three")]:
                raise ValueError("three")
            yield number, found

    decoder.decode_all = decode_all  # the fixture puts the real one back
    found = records(plan_of(["sd"], batch_size=2), tmp_path / "r")
    assert {r["sample_id"]: r["status"] for r in found} == {
        "t-0": "ok",
        "t-1": "error",
        "t-2": "ok",
    }


def test_an_engine_that_cannot_work_ends_the_run(engine: Any, tmp_path: Path) -> None:
    engine.failing = {2: EngineError("a round cannot be captured")}
    with pytest.raises(EngineError, match="cannot be captured"):
        records(plan_of(["sd"]), tmp_path / "r")
    assert [r["status"] for r in read_records(tmp_path / "r")] == ["ok"]
