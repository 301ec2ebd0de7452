"""Files of other tools become arms of one run, with the values that the files tell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from specbench.analysis.write import write_summary
from specbench.errors import UsageError
from specbench.imports.run import pair_by_prompt, read_arms, write_run
from specbench.runs.frames import read_samples
from specbench.runs.run import Run, read_run

from .made import aiperf, lm_eval, profiled, speed_bench, vllm

EVALUATED = "samples_gsm8k_2026-11-23T10-00-00.000001.jsonl"


class Imported(NamedTuple):
    """A run made of files."""

    samples: pd.DataFrame
    notes: list[str]
    run: Run


Import = Callable[..., Imported]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import texts as files ``<arm>/<name>``."""

    def make(name: str, **texts: str) -> Imported:
        for arm, text in texts.items():
            (tmp_path / arm).mkdir()
            (tmp_path / arm / name).write_text(text)
        arms = read_arms([f"{arm}={tmp_path / arm / name}" for arm in texts])
        notes, folder = pair_by_prompt(arms), tmp_path / "run"
        folder.mkdir()
        write_run(folder, arms, write_summary)
        return Imported(read_samples(folder), notes, read_run(folder))

    return make


def row(samples: pd.DataFrame, number: int, *names: str) -> list[Any]:
    return [samples[name].iloc[number] for name in names]


COUNTS = ("prompt_tokens", "output_tokens", "first_token_seconds", "latency_seconds")
SHARES = ("prefill_seconds", "decode_seconds", "tokens_per_second", "inter_token_seconds")
DRAFTS = ("rounds", "proposed", "accepted", "draft_acceptance_rate", "acceptance_length")


def test_vllm_bench(imported: Import) -> None:
    samples, notes, run = imported("bench.json", fast=vllm())
    assert notes == ["fast: 1 of 3 requests of vllm-bench failed"]
    cell = ("pair", "task", "method", "settings", "engine", "draft_length", "sample_id")
    told = ["org/m", "vllm-bench", "fast", "concurrency=2", "vllm", 3, "0"]
    assert row(samples, 0, *cell) == told
    assert row(samples, 0, *COUNTS) == pytest.approx([3, 7, 0.05, 0.1])
    assert row(samples, 1, *COUNTS) == pytest.approx([5, 4, 0.06, 0.08])
    # The first is alone for 0.05 s, both are in flight for 0.05 s, the second is alone for 0.03 s.
    assert row(samples, 0, *SHARES) == pytest.approx([0.05, 0.025, 7 / 0.075, 0.05 / 6])
    assert row(samples, 1, *SHARES) == pytest.approx([0.035, 0.02, 4 / 0.055, 0.02 / 3])
    blank = ["temperature", "seed", "quality", "stopped_by", *DRAFTS]
    assert samples[blank].isna().all(axis=None)
    assert run.progress == {"state": "complete", "samples": 3, "failed": 1}
    provenance = run.config["imported"]["1"]
    assert (provenance["bytes"], provenance["tool"]) == (len(vllm()), "vllm bench serve")
    assert provenance["further_facts"]["spec_decode_acceptance_rate"] == 51.4
    assert run.records()[0]["text"] == "a"


def test_older_files_of_vllm_lack_latencies_and_starts(imported: Import) -> None:
    samples = imported("bench.json", fast=vllm(latencies="-", start_times="-")).samples
    assert list(samples["latency_seconds"]) == pytest.approx([0.1, 0.08])
    assert samples[["prefill_seconds", "decode_seconds"]].isna().all(axis=None)


def test_results_appended_to_a_file_are_settings_or_repeats(imported: Import) -> None:
    text = "\n".join([vllm(), vllm(max_concurrency=4), vllm(date="later")])
    samples = imported("bench.json", fast=text).samples
    cells = samples[samples["sample_id"] == "0"].groupby("settings")["repeat"].apply(list)
    assert cells.to_dict() == {"concurrency=2": [0, 1], "concurrency=4": [0]}


def test_aiperf(imported: Import) -> None:
    plain = [profiled(n, spec_decode_acceptance=None) for n in (1, 2)]
    samples, notes, run = imported("p.jsonl", plain=aiperf(*plain), fast=aiperf())
    assert notes == [
        "plain lacks 1 of 3 prompts of aiperf",
        "fast: 1 of 3 requests of aiperf failed",
    ]
    assert row(samples, 0, "method", "sample_id", "engine") == ["plain", "c1", "vllm"]
    first = samples[samples["method"] == "fast"]
    assert row(first, 0, "draft_length", "sample_id", "engine") == [3, "c1", "vllm"]
    assert row(first, 0, *COUNTS) == pytest.approx([21, 11, 0.1, 0.3])
    assert row(first, 0, *SHARES) == pytest.approx([0.1, 0.2, 11 / 0.3, 0.02])
    assert row(first, 0, *DRAFTS) == pytest.approx([4, 12, 6, 0.5, 2.5])
    assert run.config["imported"]["2"]["further_facts"] == {"warm_up_requests": 1}
    failed = [record for record in run.records() if record["status"] == "error"]
    assert [record["error"] for record in failed] == ["was cancelled"]


def test_turns_of_aiperf_are_counted_from_1(imported: Import) -> None:
    lines = [profiled(1), profiled(2)]
    for turn, line in enumerate(lines):
        line["metadata"] |= {"conversation_id": "c", "turn_index": turn}
    samples = imported("p.jsonl", fast=aiperf(*lines)).samples
    assert list(samples["turn"]) == [1, 2] and set(samples["repeat"]) == {0}


def test_speed_bench(imported: Import) -> None:
    texts = {"plain": speed_bench(drafts=0), "fast": speed_bench()}
    samples, notes, run = imported("speed.json", **texts)
    assert notes == []
    named = ("task", "temperature", "settings", "engine", "category", "stopped_by", "sample_id")
    told = ["speed-bench-qualitative", 0, "concurrency=1", "llamacpp", "coding", "length", "q1"]
    assert row(samples, 0, *named) == told
    fast = samples[samples["method"] == "fast"]
    assert row(fast, 0, "prefill_seconds", "decode_seconds", "tokens_per_second") == pytest.approx(
        [0.08, 0.42, 42]
    )
    assert row(fast, 0, "proposed", "accepted", "draft_acceptance_rate") == [10, 5, 0.5]
    plain = samples[samples["method"] == "plain"]
    assert list(plain["proposed"]) == [0, 0] and plain["accepted"].isna().all()
    assert samples["rounds"].isna().all() and "first_token_seconds" not in samples
    assert "secret" not in json.dumps(run.config)


def test_lm_eval(imported: Import) -> None:
    samples, _, run = imported(EVALUATED, plain=lm_eval(), fast=lm_eval((0.0, 0.0)))
    strict = samples[samples["task"] == "gsm8k/strict-match"]
    assert list(strict["quality"]) == [1, 0, 0, 0]
    assert set(samples["task"]) == {"gsm8k/strict-match", "gsm8k/flexible-extract"}
    assert row(samples, 0, "temperature", "quality_metric", "sample_id") == [
        0.7,
        "exact_match",
        "0",
    ]
    assert samples[["latency_seconds", "output_tokens"]].isna().all(axis=None)
    told = {"filter": "strict-match", "date": "2026-11-23T10-00-00.000001"}
    assert run.config["imported"]["1"]["further_facts"] == told
    assert run.records()[0]["text"] == "2."


# Contents of files that are refused, with a part of the message.
NESTED = '{"num_prompts": ' + "[" * 100_000 + "]" * 100_000 + ', "request_rate": 1}'
REFUSED = {
    "": "f is empty: give a file",
    "\xff\xfe": "f is not JSON",
    "[1]": "f is not a JSON object",
    '{"a": 1}': "f is no file of vllm bench serve, aiperf,",
    '{"a": 1, "a": 2}': "f is not JSON: a key occurs twice",
    vllm()[:-9]: "f is not JSON: Expecting",
    NESTED: "nested too deeply",
    vllm(ttfts=[float("nan")] * 3): "NaN is not a finite number",
    vllm(duration=1).replace('"duration": 1', '"duration": 1e999'): "not a finite number",
    vllm(ttfts="-"): "f has no times of requests: measure again with --save-detailed",
    vllm(ttfts=[0.1, 0.1]): "lists differ in length (3 input_lens, 3 output_lens, 3 start_times, 2",
    vllm(itls=5): "f: `itls` must be a list: export again",
    vllm(ttfts=[0.05, "x", 0.0]): "f: request 1: `ttfts` must be a number, not 'x'",
    vllm(ttfts=[0.05, -1, 0.0]): "f: request 1: `ttfts` must be 0 or more, not -1",
    vllm(ttfts=[50.0, 60.0, 0.0]): "f: request 0: a part took 50.05 s, but the whole request 0.1 s",
    vllm(itls=[[20, 30], [20], []]): "f: request 0: a part took 50.05 s",
    vllm(input_lens=[3, True, 4]): "f: request 1: `input_lens` must be an integer, not True",
    vllm(output_lens=[10**30, 4, 0]): "f: request 0: `output_lens` must be 1000000000 or less",
    vllm(completed=3): "f: `completed` is 3, but 2 requests have times",
    vllm(max_concurrency="many"): "`settings.concurrency",
    vllm(model_id=["m"]): "f: `model` must be a string",
    vllm(errors=["e", "e", "e"], completed=0): "no request in these files succeeded",
    aiperf(profiled(1), profiled(2, error="x")): "f, line 2: `error` must be an object",
    aiperf(profiled(1, metrics=[])): "f: `metrics` must be an object",
    aiperf(profiled(1, metadata=None)): "f: `conversation_id` must be a string, not None",
    aiperf(profiled(1)).replace('"ms"', '"min"'): "is in 'min', not in ns or us or ms or sec",
    aiperf(profiled(1)).replace("300.0", "30.0"): "a part took 0.1 s, but the whole request 0.03 s",
    aiperf(profiled(1)).replace("300.0", "[300.0]"): "`request_latency` must be a number",
    aiperf(profiled(1)).replace(": 12", ": 1"): "6 drafts are accepted, but 1 proposed",
    aiperf(profiled(1)) + "{": "f, line 2 is not JSON",
    aiperf(profiled(1)) + "7\n": "f, line 2 is not a JSON object",
    speed_bench(results=7): "f: `results` must be a list",
    speed_bench(results=[7]): "f: `results[0]` must be an object",
    speed_bench(results=[{"ok": True}]): "f: `results[0]`: `id` must be a string, not None",
    speed_bench().replace("0.5,", "0.05,"): "a part took 0.08 s, but the whole request 0.05 s",
    lm_eval(scores=(80.0, 70.0)): "f, line 1 has no metric that is a number from 0 to 1",
    lm_eval(metrics=7): "f, line 1: `metrics` must be a list",
    lm_eval(doc_id="0"): "f, line 1: `doc_id` must be a whole number",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED.values())
def test_hostile_files_are_refused_in_one_sentence(
    text: str, message: str, imported: Import, tmp_path: Path
) -> None:
    content = text.encode("latin-1") if text.isascii() or len(text) < 9 else text.encode()
    (tmp_path / "f").write_bytes(content)
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError) as error:
        write_run(tmp_path / "run", read_arms([str(tmp_path / "f")]), write_summary)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not any((tmp_path / "run").iterdir())


# Arms that are refused: the words after ``import``. F, G and H are files of three prompts, the
# last of others; A and B are files of aiperf with other conversations.
ARMS = {
    "none.json": "none.json is not a file",
    ".": ". needs a short name for its arm, such as fast=.",
    "x=folder": "folder is not a file",
    "F.json x=F.json": "F.json and F.json have the same content: give it once",
    "F.json d/F.json": "would both be the arm F: name them, as in plain=F.json",
    "static=F.json": "the arm static would be taken for the rule static",
    "a b.json": "a b.json needs a short name for its arm",
    "F.json H.json": "prompt 1 of vllm-bench has 5 tokens in F.json, but 6 tokens in H.json",
    "A.jsonl B.jsonl": "A.jsonl and B.jsonl have no prompt of aiperf in common",
    "autoregressive=F.json autoregressive=G.json": "tables compare with one setting of autoreg",
    "big.json": "big.json has 268,435,457 bytes, more than 268,435,456",
}


@pytest.mark.parametrize("words", ARMS)
def test_arms_that_cannot_be_compared_are_refused(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("d", "folder"):
        Path(folder).mkdir()
    Path("F.json").write_text(vllm())
    Path("d/F.json").write_text(vllm(date="later"))
    Path("G.json").write_text(vllm(max_concurrency=4))
    Path("H.json").write_text(vllm(input_lens=[3, 6, 4]))
    Path("A.jsonl").write_text(aiperf(profiled(1)))
    Path("B.jsonl").write_text(aiperf(profiled(2)))
    with Path("big.json").open("wb") as file:
        file.truncate(2**28 + 1)
    arguments = [words] if words == "a b.json" else words.split()
    with pytest.raises(UsageError) as error:
        pair_by_prompt(read_arms(arguments))
    assert ARMS[words] in str(error.value)


def test_a_failed_request_may_lack_the_tokens_of_its_prompt(imported: Import) -> None:
    other = vllm(input_lens=[3, 5, 99], date="later")
    assert len(imported("bench.json", plain=vllm(), fast=other).samples) == 4
