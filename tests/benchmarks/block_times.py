"""Count false differences in throughput between two cells of a run in batches that do equal work.

    python tests/benchmarks/block_times.py [--repeats R] [--blocks K] [--batch-size B] [FOLDER]

A run of ``sd`` on ``mini-math`` times every block of B prompts twice, in random order
(``--a-a``). Each K blocks that follow each other are one repeat of a comparison whose truth is 1.
The same times are also compared with prompts as the unit, which is wrong. FOLDER keeps the run,
and resumes it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from specbench.analysis.compare import compare
from specbench.analysis.comparison import SD, TOKENS
from specbench.config import Settings
from specbench.experiment.execute import execute
from specbench.experiment.plan import build_plan
from specbench.experiment.store import Store
from specbench.experiment.variants import method_variants
from specbench.pairs.registry import get_pair
from specbench.runs.columns import TIMED_AGAIN
from specbench.runs.frames import read_samples
from specbench.tasks.task import load_task


def main() -> None:
    """Decode the blocks, then print each comparison and the number of false differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument("folder", nargs="?", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary) / "run"
        decode(folder, asked.repeats * asked.blocks, asked.batch_size, asked.new_tokens)
        samples = read_samples(folder, timings=[TIMED_AGAIN])
    second = samples["timing"].notna()
    samples.loc[second, ["method", "lenience"]] = ["lossy", 1.0]  # equal to sd
    samples = samples.drop(columns="timing")
    wrong = {"blocks": 0, "prompts": 0}
    for number, repeat in samples.groupby(samples["block"] // asked.blocks):
        alone = repeat.drop(columns="block").assign(batch_size=1)
        for unit, rows in (("blocks", repeat), ("prompts", alone)):
            ratio, low, high = tokens_ratio(rows)
            wrong[unit] += not low <= 1 <= high
            print(f"{number:4.0f} {unit:8} {ratio:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    for unit, count in wrong.items():
        print(f"{count} of {asked.repeats} differ with {unit} as the unit")


def decode(folder: Path, blocks: int, batch_size: int, new_tokens: int) -> None:
    """Time ``sd`` twice on blocks of prompts."""
    plan = build_plan(
        get_pair("mini"),
        [load_task("mini-math")],
        method_variants(["sd"], {}),
        [5],
        Settings(batch_size=batch_size, max_new_tokens=new_tokens),
        limit=blocks * batch_size,
        a_a=True,
    )
    with Store.open(folder, "run", plan.describe()) as store:
        execute(plan, store)


def tokens_ratio(samples: pd.DataFrame) -> tuple[float, float, float]:
    """Return the ratio of tokens/s of both cells with its interval."""
    rows = compare(samples, [], ["lossy"], []).rows
    ((ratio, low, high),) = rows.loc[
        (rows["metric"] == TOKENS) & (rows["against"] == SD), ["value", "ci_low", "ci_high"]
    ].to_numpy()
    return ratio, low, high


if __name__ == "__main__":
    main()
