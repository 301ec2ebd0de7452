"""Costs of rounds: read, refused, interpolated, and computed from a machine's figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.errors import UsageError
from specbench.pricing.costs import Machine, PassSize, costs_of, machine, machine_costs, read_costs

MODEL, LOOKUP = ModelDrafter(), LookupDrafter()
ROOT = Path(__file__).parents[2]


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


def test_between_measured_sizes_costs_are_linear() -> None:
    costs = costs_of(affine(), "here")
    for batch, length in ((1, 1), (2, 3), (4, 5), (3, 2)):
        exact = (2 + batch) * (1 + length) + 0.1 * np.arange(3)
        assert costs.seconds(batch, length, MODEL) == pytest.approx(exact)
        copied = exact - 0.5 * length
        assert costs.seconds(batch, length, LOOKUP) == pytest.approx(copied)
    assert costs.seconds(3, 0, MODEL) == pytest.approx([3, 3, 3])
    again = costs_of(costs.table(), "again")
    assert again.rounds == pytest.approx(costs.rounds)


@pytest.mark.parametrize(("batch", "length"), [(5, 1), (1, 6), (2, 9)])
def test_beyond_the_measured_sizes_nothing_is_guessed(batch: int, length: int) -> None:
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
def test_other_numbers_are_refused(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
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
def test_files_without_costs_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read the costs|has no rows|has no column"):
        read_costs(tmp_path / name)


def test_times_of_bench_become_costs(tmp_path: Path) -> None:
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


def test_costs_of_a_machine_by_hand() -> None:
    figures = Machine(description="m", bandwidth=10, flops=100, overhead=0.5, share=0.5)
    target, draft = PassSize(20, 1, 30), PassSize(2, 1, 5)
    costs = machine_costs(figures, target, draft, 10, (1, 8), (1, 3))
    # Batch 1: reading takes (20 + 10) / 10 and computing 30 (N + 1) / 100 seconds.
    assert costs.rounds[0, :, 0] == pytest.approx([3.3 / 0.5 + 0.5, 12.4 / 0.5 + 0.5])
    drafting = 3 * ((1.2 + 0.05) / 0.5 + 0.5)
    assert costs.seconds(1, 3, MODEL) == pytest.approx([4.2 / 0.5 + 0.5 + drafting])
    assert costs.seconds(1, 3, LOOKUP) == pytest.approx([4.2 / 0.5 + 0.5])
    # Batch 8 with 4 tokens each computes for 9.6 seconds and reads for 10.
    assert costs.seconds(8, 3, LOOKUP) == pytest.approx([19.6 / 0.5 + 0.5])


def test_a_round_on_an_h200_costs_what_was_measured_there() -> None:
    """Within an eighth, in passes without drafts; the longer of both terms alone is 29 % off."""
    target = PassSize(15_009_849_344, 131_072, 15_009_849_344)  # Llama 8B in 16 bits
    draft = PassSize(2_471_628_800, 32_768, 2_471_628_800)
    context = 512 + 128 / 2
    computed = machine_costs(machine("h200"), target, draft, context, (1, 4, 32), (5,))
    measured = read_costs(ROOT / "results/gpu/fused-llama")
    for batch in (1, 4, 32):
        predicted, expected = (
            costs.seconds(batch, 5, MODEL).mean() / costs.seconds(batch, 0, MODEL).mean()
            for costs in (computed, measured)
        )
        assert predicted == pytest.approx(expected, rel=0.125), batch


def test_machines_are_named_or_read(tmp_path: Path) -> None:
    assert machine("h100").bandwidth == pytest.approx(3.35e12)
    with pytest.raises(UsageError, match="machine"):
        machine("h1000")
    mine = tmp_path / "mine.toml"
    mine.write_text("[mine]\ndescription = 'm'\nbandwidth = 1e9\nflops = 1e12\noverhead = 0\n")
    assert machine(str(mine)).share == 1
    mine.write_text("[mine]\ndescription = 'm'\nbandwidth = -1\nflops = 1e12\noverhead = 0\n")
    with pytest.raises(UsageError, match="bandwidth"):
        machine(str(mine))
