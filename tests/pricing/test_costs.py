"""Costs of rounds: read, refused and interpolated."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.errors import UsageError
from specbench.pricing.costs import costs_of, read_costs

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


@pytest.mark.parametrize(("batch", "length"), [(5, 1), (1, 6), (2, 9)])
def test_beyond_the_measured_sizes_nothing_is_guessed(batch, length):
    with pytest.raises(UsageError, match="outside of the measured 1 to"):
        costs_of(affine(), "here").seconds(batch, length, MODEL)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"round_seconds": 0.0}, "data row 1 is not a cost"),
        ({"round_seconds": "x"}, "data row 1 is not a cost"),
        ({"round_seconds": np.inf}, "data row 1 is not a cost"),
        ({"batch_size": 1.5}, "data row 1 is not a cost"),
        ({"batch_size": 1e300}, "data row 1 is not a cost"),
        ({"draft_length": -1}, "data row 1 is not a cost"),
        ({"draft_seconds": 99.0}, "data row 1 is not a cost"),
        ({"batch_size": 7}, r"lacks batch 7 with draft length 1|lacks batch 1 with"),
    ],
)
def test_other_numbers_are_refused(tmp_path, change, complaint):
    table = affine().astype(object)
    for name, value in change.items():
        table.loc[0, name] = value
    table.to_csv(tmp_path / "costs.csv", index=False)
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
            "engine": engine,
            "method": "sd" if n else "autoregressive",
            "batch_size": b,
            "draft_length": n,
            "repeat": 0,
            "rounds": 10,
            "decode_seconds": 10 * seconds * (1 + n + b),
            "draft_seconds": float(n),
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
