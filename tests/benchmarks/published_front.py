"""Compute heads' leads above the static front from a run's samples, without specbench.

    python tests/benchmarks/published_front.py RUN

The front is the best mixture of SD and static weights, one drawn at random for each prompt, that
accepts at least the head's share of the drafts. Prints each lead in points, and the mean of the
``features`` heads with an interval over prompts (4,000 resamples).
"""

import json
import sys
from itertools import permutations
from pathlib import Path

import numpy as np

HEADS, FRONT = "diversed", ("sd", "static")


def read(run):
    """Return the samples of each head and static weight, ``[prompts, 3]``: score and drafts."""
    cells = {}
    for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        method = sample["method"]
        if method == HEADS or method in FRONT:
            name = sample["head"] if method == HEADS else f"{method} {sample.get('weight')}"
            numbers = [sample[key] for key in ("quality", "accepted", "proposed")]
            cells.setdefault((method, name), {})[sample["sample_id"]] = numbers
    ids = sorted(set.intersection(*map(set, cells.values())))
    return {cell: np.array([rows[i] for i in ids], float) for cell, rows in cells.items()}


def leads(cells, weights):
    """Return each head's quality minus the front's, in points, for weighted prompts."""
    means = {cell: weights @ rows / weights.sum() for cell, rows in cells.items()}
    front = [mean for (method, _), mean in means.items() if method in FRONT]
    result = {}
    for (method, name), (quality, accepted, proposed) in means.items():
        if method != HEADS:
            continue
        spare = [mean[1] - accepted / proposed * mean[2] for mean in front]  # accepted drafts
        best = max(mean[0] for mean, more in zip(front, spare, strict=True) if more >= 0)
        for one, other in permutations(range(len(front)), 2):
            if spare[one] > 0 > spare[other]:
                share = spare[other] / (spare[other] - spare[one])
                best = max(best, share * front[one][0] + (1 - share) * front[other][0])
        result[name] = 100 * (quality - best)
    return result


def main():
    cells = read(Path(sys.argv[1]))
    n = len(next(iter(cells.values())))
    exact = leads(cells, np.ones(n))
    generator = np.random.default_rng(0)
    counts = (np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(4000))
    resampled = [leads(cells, count.astype(float)) for count in counts]
    for name, lead in exact.items():
        low, high = np.percentile([one[name] for one in resampled], [2.5, 97.5])
        print(f"{name}: {lead:+.1f} [{low:+.1f}, {high:+.1f}] points, n = {n}")
    features = [name for name in exact if "linear" not in name]
    means = [np.mean([one[name] for name in features]) for one in resampled]
    low, high = np.percentile(means, [2.5, 97.5])
    deviation = np.std([exact[name] for name in features], ddof=1)
    mean = np.mean([exact[name] for name in features])
    print(
        f"mean of {len(features)}: {mean:+.1f} [{low:+.1f}, {high:+.1f}]; "
        f"standard deviation between heads {deviation:.1f}"
    )


if __name__ == "__main__":
    main()
