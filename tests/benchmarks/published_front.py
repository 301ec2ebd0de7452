"""Compute methods' leads above the static front from a run's packed samples, without specbench.

    python tests/benchmarks/published_front.py RUN

The front is the best mixture of SD and static weights, one drawn at random for each prompt, that
accepts at least the method's share of the drafts. Prints each lead in points, the mean of the
``features`` heads that differ in their seed, this mean less the leads of ``gated`` and ``typical``
if they ran, and the mean lead over mixtures of two neighbouring weights only, with intervals over
prompts (4,000 resamples).
"""

import json
import lzma
import re
import sys
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np

FRONT = ("sd", "static")
COMPARED = ("diversed", "lossy", "speccascade", "typical", "gated", "fly")


def read(run):
    """Return the samples of the front, by weight, and of each method, ``[prompts, 3]``."""
    front, compared = {}, {}
    with lzma.open(run / "samples.jsonl.xz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    for line in lines:
        sample = json.loads(line)
        numbers = [sample[key] for key in ("quality", "accepted", "proposed")]
        if (method := sample["method"]) in FRONT:
            cell = front.setdefault(1.0 if method == "sd" else sample["weight"], {})
        elif method in COMPARED:
            cell = compared.setdefault(sample["head"] or method, {})
        else:
            continue
        cell[sample["sample_id"]] = numbers
    ids = sorted(set.intersection(*map(set, (*front.values(), *compared.values()))))
    return (
        [np.array([front[weight][i] for i in ids], float) for weight in sorted(front)],
        {name: np.array([cell[i] for i in ids], float) for name, cell in compared.items()},
    )


def heads_of_seeds(compared):
    """Return the names of the ``features`` heads that differ in nothing but their seed."""
    recipes = {name: re.sub(r"seed-\d+", "", name) for name in compared if "features" in name}
    ((recipe, _),) = Counter(recipes.values()).most_common(1)
    return [name for name in recipes if recipes[name] == recipe]


def leads(front, compared, weights):
    """Return each method's quality minus the front's, in points, for weighted prompts."""
    front = [weights @ rows / weights.sum() for rows in front]
    result, over_neighbours, heads = {}, [], heads_of_seeds(compared)
    for name, rows in compared.items():
        quality, accepted, proposed = weights @ rows / weights.sum()
        spare = [point[1] - accepted / proposed * point[2] for point in front]  # accepted drafts
        best = max(point[0] for point, more in zip(front, spare, strict=True) if more >= 0)
        nearest = front[-1][0]  # of SD, for a method that accepts less than it
        for one, other in permutations(range(len(front)), 2):
            if spare[one] > 0 > spare[other]:
                share = spare[other] / (spare[other] - spare[one])
                mixed = share * front[one][0] + (1 - share) * front[other][0]
                best = max(best, mixed)
                if other == one + 1:
                    nearest = mixed
        result[name] = 100 * (quality - best)
        if name in heads:
            over_neighbours.append(100 * (quality - nearest))
    features = [result[name] for name in heads]
    result["mean of features"] = np.mean(features)
    result["mean of features, over neighbouring weights"] = np.mean(over_neighbours)
    for rule in result.keys() & {"gated", "typical"}:
        result[f"mean of features, minus {rule}"] = np.mean(features) - result[rule]
    result["standard deviation of features"] = np.std(features, ddof=1)
    return result


def main():
    front, compared = read(Path(sys.argv[1]))
    n = len(front[0])
    exact = leads(front, compared, np.ones(n))
    generator = np.random.default_rng(0)
    counts = (np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(4000))
    resampled = [leads(front, compared, count.astype(float)) for count in counts]
    for name, value in exact.items():
        low, high = np.percentile([one[name] for one in resampled], [2.5, 97.5])
        print(f"{name}: {value:+.1f} [{low:+.1f}, {high:+.1f}], n = {n}")


if __name__ == "__main__":
    main()
