"""Costs of rounds: from files of the user's, benchmarks, and reports of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.errors import UsageError
from specbench.pricing.costs import costs_of, read_costs
from specbench.pricing.reports import read_reports

MODEL, LOOKUP = ModelDrafter(), LookupDrafter()


def affine(batches: tuple[int, ...] = (1, 4), lengths: tuple[int, ...] = (0, 1, 5)) -> pd.DataFrame:
    """Return costs that are linear in batch size and draft length, apart from drafting nothing."""
    rows = [
        (b, n, repeat, (2 + b) * (1 + n) + 0.1 * repeat if n else 1.0 * b, 0.5 * n)
        for b in batches
        for n in lengths
        for repeat in range(3)
    ]
    columns = ["batch_size", "draft_length", "repeat", "round_seconds", "draft_seconds"]
    return pd.DataFrame(rows, columns=columns)


def test_between_measured_sizes_costs_are_linear():
    costs = costs_of(affine(), "here")
    for batch, length in ((1, 1), (2, 3), (4, 5), (3, 2)):
        exact = (2 + batch) * (1 + length) + 0.1 * np.arange(3)
        assert costs.seconds(batch, length, MODEL) == pytest.approx(exact)
        copied = exact - 0.5 * length
        assert costs.seconds(batch, length, LOOKUP) == pytest.approx(copied)
    assert costs.seconds(3, 0, MODEL) == pytest.approx([3, 3, 3])
    assert costs_of(costs.table(), "again").rounds == pytest.approx(costs.rounds)


def test_each_batch_size_has_its_number_of_repeats():
    rows, whole = affine(), costs_of(affine(), "here")
    costs = costs_of(rows[(rows["batch_size"] == 1) | (rows["repeat"] == 2)], "here")
    assert costs.seconds(1, 5, MODEL) == pytest.approx(whole.seconds(1, 5, MODEL))
    assert costs.seconds(4, 5, LOOKUP) == pytest.approx(whole.seconds(4, 5, LOOKUP)[2:])
    assert costs.seconds(3, 1, MODEL) == pytest.approx(
        whole.seconds(1, 1, MODEL)[:1] / 3 + whole.seconds(4, 1, MODEL)[2:] * 2 / 3
    )
    assert len(costs.table()) == 12
    with pytest.raises(UsageError, match="lacks batch 4 with draft length 5"):
        costs_of(rows.drop(rows.index[-1]), "here")


@pytest.mark.parametrize(("batch", "length"), [(5, 1), (1, 6), (2, 9)])
def test_beyond_the_measured_sizes_nothing_is_guessed(batch, length):
    with pytest.raises(UsageError, match="outside of the measured 1 to"):
        costs_of(affine(), "here").seconds(batch, length, MODEL)


@pytest.mark.parametrize(
    "change",
    [
        *({"round_seconds": value} for value in (0.0, "x", np.inf)),
        *({"batch_size": value} for value in (1.5, 1e300, 7)),
        *({"draft_length": -1}, {"draft_seconds": 99.0}),
    ],
)
def test_other_numbers_are_refused(tmp_path, change):
    table = affine().astype(object)
    table.loc[0, [*change]] = [*change.values()]
    table.to_csv(tmp_path / "costs.csv", index=False)
    lacking = r"lacks batch 7 with draft length 1|lacks batch 1 with"
    complaint = lacking if 7 in change.values() else "data row 1 is not a cost"
    with pytest.raises(UsageError, match=complaint):
        read_costs(tmp_path / "costs.csv")


@pytest.mark.parametrize("name", ["costs.csv", "costs.zip", "costs.csv.xz", "costs.csv.zst"])
@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8bjunk", b"batch_size,draft_length,round_seconds\n"]
)
def test_files_without_costs_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read the costs|has no rows|has no column"):
        read_costs(tmp_path / name)


def test_times_of_bench_become_costs(tmp_path):
    rows = [
        {
            **{"engine": engine, "method": "sd" if n else "autoregressive", "batch_size": b},
            **{"draft_length": n, "repeat": 0, "rounds": 10, "draft_seconds": float(n)},
            "decode_seconds": 10 * seconds * (1 + n + b),
        }
        for engine, seconds in (("eager", 1.0), ("compile", 0.5), ("transformers", 9.0))
        for b in (1, 2)
        for n in (0, 1, 4)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "repeats.csv", index=False)
    with pytest.raises(UsageError, match="`compile`, `eager`: name one of them with --engine"):
        read_costs(tmp_path)
    costs = read_costs(tmp_path, "compile")
    assert costs.seconds(2, 4, MODEL) == pytest.approx([3.5])
    assert costs.seconds(2, 4, LOOKUP) == pytest.approx([3.1])
    pd.DataFrame(rows).assign(rounds="x").to_csv(tmp_path / "repeats.csv", index=False)
    with pytest.raises(UsageError, match="data row 1 is not a cost"):
        read_costs(tmp_path, "compile")
    with pytest.raises(UsageError, match=r"cannot read the costs .*repeats\.csv"):
        read_costs(tmp_path / "nowhere" / "repeats.csv")


def llama_bench(name: str, size: int, per_row: float, rows: tuple[int, ...]):
    """Return tests of passes that take 10 ms and so much more for each row, in two repeats."""

    def test(prompt: int, generated: int, seconds: float) -> dict[str, Any]:
        return {
            **{"model_filename": name, "model_size": size, "n_prompt": prompt, "n_gen": generated},
            **{"n_depth": 0, "avg_ns": 1e9 * seconds, "stddev_ns": 0.0},
            "samples_ns": [int(1e9 * seconds), int(1.1e9 * seconds)],
        }

    passes = [test(n, 0, (10 + per_row * n) / 1e3) for n in rows]
    return [*passes, test(0, 32, 32 * (10 + per_row) / 1e3), test(512, 32, 9.0)]


@pytest.fixture
def target(tmp_path) -> Path:
    path = tmp_path / "target.json"
    path.write_text(json.dumps(llama_bench("t.gguf", 9_000, 2.0, (1, 2, 3, 4, 6, 8))))
    return path


def test_passes_of_llama_bench_become_rounds(tmp_path, target):
    draft = tmp_path / "draft.jsonl"
    lines = map(json.dumps, llama_bench("d.gguf", 900, -9.0, (1, 2)))
    draft.write_text("\n".join(lines) + "\n")
    for paths in ([target, draft], [draft, target]):  # the larger one is the target
        costs = read_reports(paths)
        assert list(costs.batches) == [1] and list(costs.lengths) == [*range(8)]
        assert costs.seconds(1, 0, MODEL) == pytest.approx([0.012, 0.0132])
        # A pass over five tokens lies between those over four and six.
        assert costs.seconds(1, 4, MODEL)[0] == pytest.approx(0.020 + 4 * 0.001)
        assert costs.seconds(1, 4, LOOKUP)[0] == pytest.approx(0.020)
    with pytest.raises(UsageError, match="passes of the draft over 1, 2 tokens: measure 2, 4"):
        read_reports([target, draft], [2, 4])
    both = tmp_path / "both.json"
    both.write_text(json.dumps([*json.loads(target.read_text()), *map(json.loads, draft.open())]))
    assert read_reports([both]).seconds(1, 4, MODEL)[0] == pytest.approx(0.024)


def test_several_texts_are_rows_of_a_pass_and_one_token_that_of_generation(target):
    tests = json.loads(target.read_text())
    tests[0]["samples_ns"] = [int(50e6)] * 2  # llama-bench -p 1
    target.write_text(json.dumps(tests))
    assert read_reports([target]).seconds(1, 0, LOOKUP)[0] == pytest.approx(0.012)
    target.write_text(json.dumps([test for test in tests if not test["n_gen"]]))
    assert read_reports([target]).seconds(1, 0, LOOKUP)[0] == pytest.approx(0.050)
    costs = read_reports([target], [1, 2])
    assert list(costs.lengths) == [0, 1, 2, 3]
    target.write_text(json.dumps([tests[0], tests[1] | {"n_prompt": 512}]))
    with pytest.raises(UsageError, match="over 1, 512 tokens: measure 1 to 2 or more"):
        read_reports([target])  # no line is drawn from 1 to 512
    assert costs.seconds(2, 3, LOOKUP)[0] == pytest.approx(0.026)
    assert costs.seconds(2, 0, LOOKUP)[0] == pytest.approx(0.014)


def serve(texts: int | None, tpot: float, drafts: int = 0, length: float = 1.0) -> dict[str, Any]:
    spec = {
        "spec_decode_acceptance_length": length,
        "spec_decode_num_drafts": 100,
        "spec_decode_draft_tokens": 100 * drafts,
        "spec_decode_per_position_acceptance_rates": [0.5] * drafts,
    }
    plain = {"model_id": "o/t", "max_concurrency": texts, "mean_tpot_ms": tpot, "completed": 9}
    return plain | (spec if drafts else {})


def test_rounds_of_vllm_serve_take_the_time_of_their_tokens(tmp_path):
    paths = []
    for texts in (1, 8):
        for drafts in (0, 3):
            path = tmp_path / f"{texts}-{drafts}.json"
            tpot = 20.0 + texts if drafts == 0 else 12.0 + texts
            path.write_text(json.dumps(serve(texts, tpot, drafts, 2.5)))
            paths.append(path)
    costs = read_reports(paths)
    assert costs.seconds(8, 3, MODEL) == pytest.approx([0.050])
    assert costs.seconds(1, 0, MODEL) == pytest.approx([0.021])


def test_latencies_of_vllm_need_the_file_with_their_options(tmp_path):
    plain, records = tmp_path / "l.json", tmp_path / "l.pytorch.json"
    plain.write_text(json.dumps({"avg_latency": 1.0, "latencies": [1.0], "percentiles": {}}))
    with pytest.raises(UsageError, match="says neither batch size nor length"):
        read_reports([plain])
    content = [
        {
            "benchmark": {"extra_info": {"args": {"batch_size": b, "output_len": 100}}},
            "model": {"name": "o/t"},
            "metric": {"name": "latency", "benchmark_values": [1.0 + b]},
        }
        for b in (1, 2, 4)
    ]
    records.write_text(json.dumps(content))
    assert read_reports([records]).seconds(1, 3, LOOKUP) == pytest.approx([0.05])
    content[0]["benchmark"]["extra_info"]["args"]["speculative_config"] = {"method": "eagle3"}
    records.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="a latency with speculation"):
        read_reports([records])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no times|cannot read"),
        ("[]", "has no times"),
        ("{}", "is no result of llama-bench or vllm bench"),
        ('[{"n_prompt": 1}]', "is no result of llama-bench or vllm bench"),
        ('[{"model_filename": "m", "n_prompt": 1e999, "avg_ns": 1}]', "is no result of"),
        ("not json", "cannot read"),
        (json.dumps(serve(None, 9.0)), "no max_concurrency"),
        (json.dumps(serve(1, 9.0)), "1 to 2 or more, as .* add vllm bench serve with speculation"),
        (json.dumps(llama_bench("t", 1, 1.0, (1,))), "measure 1 to 2 or more, as llama-bench -p"),
        (json.dumps([t for n in "abc" for t in llama_bench(n, 1, 1, (2,))]), "times of 3 models"),
        (None, r"cannot read .*r\.json"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, content, complaint):
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read_reports([path])


def test_models_of_one_size_are_target_and_draft(tmp_path):
    (path := tmp_path / "r.json").write_text(
        json.dumps([*llama_bench("a", 1, 1, (2,)), *llama_bench("b", 1, 1, (2,))])
    )
    assert read_reports([path]).lengths[-1] == 1
