"""Count false differences between small samples whose labels are exchanged at random.

    python tests/benchmarks/small_samples.py [--repeats 1000]

Two cells of a bundled run are compared on n of its prompts. For each prompt, a coin decides which
of the two results belongs to which side, so the sides have the same distribution, and an interval
that excludes no difference is wrong. Each field: the share of false differences of the intervals of
specbench, that of percentiles of the same resamples, and the ratio of the median widths.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from specbench.analysis.intervals import Floats, bootstrap, is_binary, limits, score_limits
from specbench.analysis.pareto import static_weight
from specbench.runs.frames import read_samples

RESULTS = Path(__file__).parents[2] / "results"
TASKS = {
    "mini-math": "reference",
    "mini-headline": "reference",
    "python-line": "reference-python-line",
    "python-docstring": "reference-python-docstring",
}
SIZES = (10, 20, 50, 500)
ROUNDING = 1e-12


def cells(task: str) -> Floats:
    """Return quality and seconds [prompts, (sd, static w = 0.5), 2] of a task of a bundled run."""
    samples = read_samples(RESULTS / TASKS[task])
    samples = samples[samples["task"] == task]
    samples["seconds"] = samples["prefill_seconds"] + samples["decode_seconds"]
    weight = static_weight(samples)
    sides = [samples[weight == w].sort_values("sample_id") for w in (1, 0.5)]
    return np.stack([side[["quality", "seconds"]].to_numpy() for side in sides], axis=1)


def exchanged(results: Floats, n: int, repeats: int, rng: np.random.Generator) -> Floats:
    """Return samples [n, repeats, sides, 2] of n prompts whose labels are exchanged at random."""
    prompts = rng.permuted(np.tile(np.arange(len(results)), (repeats, 1)), axis=1)[:, :n].T
    sides = rng.integers(2, size=prompts.shape)
    return np.stack([results[prompts, side] for side in (sides, 1 - sides)], axis=2)


def field(low: Floats, high: Floats, resampled: Floats, null: float) -> str:
    """Describe limits [repeats] of values whose truth is ``null`` beside percentiles."""
    ends = (low, high), np.percentile(resampled, [2.5, 97.5], axis=0)
    wrong = [np.mean((a > null + ROUNDING) | (b < null - ROUNDING)) for a, b in ends]
    widths = [np.median(b - a) for a, b in ends]
    return f"{wrong[0]:.1%}, {wrong[1]:.1%}, {widths[0] / widths[1]:.2f}"


def main() -> None:
    """Print a line per task and size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1000)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    print("task, n: quality (specbench, percentiles, width), time per sample (the same)")
    for task in TASKS:
        results = cells(task)
        for n in SIZES:
            drawn = exchanged(results, n, repeats, rng)
            totals = bootstrap(drawn)
            means, seconds = np.diff(totals[..., ::-1, 0])[..., 0] / n, totals[..., 1]
            quality = limits(means[0], means[1:], n)
            if is_binary(drawn[..., 0]):
                quality = score_limits(drawn[..., 0, 0] - drawn[..., 1, 0], n)
            ratios = seconds[..., 0] / seconds[..., 1]
            time = limits(ratios[0], ratios[1:], n, log=True)
            shown = field(*quality, means[1:], 0), field(*time, ratios[1:], 1)
            print(f"{task}, n = {n}: {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
