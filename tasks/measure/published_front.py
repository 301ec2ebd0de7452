"""Compute methods' leads above the static front from a run's packed table, without specbench.

    python tasks/measure/published_front.py [--cooled] RUN

The front is the best mixture of SD and static weights (with ``--cooled``, of `cooled` too), one
drawn at random for each prompt, that accepts at least the method's share of the drafts. SD's
quality is the mean of `sd` and `autoregressive`. The mixture is chosen on one half of the prompts
and measured on the other, in turn, for many random halves. Prints each lead in points, the means of
heads that differ in nothing but their seed, and each mean less the leads of ``gated`` and
``typical``, if they ran, and of the other means, with intervals over prompts. Beside each
stands the lead over the mixture that is chosen and measured on all prompts, which is too small, as
that over mixtures of halves is too large.
"""

import bz2
import csv
import lzma
import re
import sys
from itertools import permutations
from pathlib import Path

import numpy as np

FRONT, SD = ("sd", "static"), ("sd", None, None)
COMPARED = ("diversed", "lossy", "speccascade", "typical", "gated", "fly")
RESAMPLES, HALVES, HALVES_OF_A_RESAMPLE = 400, 200, 10


def read(run, cooled):
    """Return the samples of the front's settings and of each method, ``[prompts, 3]`` each."""
    front, compared, alone = {}, {}, {}
    (packed,) = run.glob("samples.csv.*")
    with {".bz2": bz2, ".xz": lzma}[packed.suffix].open(packed, "rt", encoding="utf-8") as file:
        samples = [{key: cell or None for key, cell in row.items()} for row in csv.DictReader(file)]
    for sample in samples:
        numbers = [float(sample[key] or 0) for key in ("quality", "accepted", "proposed")]
        if (method := sample["method"]) in FRONT or (cooled and method == "cooled"):
            cell = front.setdefault((method, sample["weight"], sample["settings"]), {})
        elif method in COMPARED:
            cell = compared.setdefault(sample["head"] or method, {})
        elif method == "autoregressive":
            cell = alone
        else:
            continue
        cell[sample["sample_id"]] = numbers
    ids = sorted(set.intersection(*map(set, (*front.values(), *compared.values()))))
    for i in ids:  # both write the target's distribution
        front[SD][i][0] = (front[SD][i][0] + alone.get(i, front[SD][i])[0]) / 2
    return (
        [np.array([cell[i] for i in ids], float) for cell in front.values()],
        {name: np.array([cell[i] for i in ids], float) for name, cell in compared.items()},
    )


def recipes_of(compared):
    """Return the names of the heads that differ in nothing but their seed, by their folder."""
    recipes = {}
    for name in compared:
        if "seed-" in name:
            recipes.setdefault(re.sub(r"/?seed-\d+", "", name), []).append(name)
    return {recipe: names for recipe, names in recipes.items() if len(names) > 1}


def mixture(front, rows, weights):
    """Return the two points of the best mixture for weighted prompts; one twice if it is best."""
    means = [weights @ point / weights.sum() for point in front]
    _, accepted, proposed = weights @ rows / weights.sum()
    spare = [point[1] - accepted / proposed * point[2] for point in means]  # accepted drafts
    best = {(k, k): point[0] for k, point in enumerate(means) if spare[k] >= 0}
    for one, other in permutations(range(len(front)), 2):
        if spare[one] > 0 > spare[other]:
            share = spare[other] / (spare[other] - spare[one])
            best[one, other] = share * means[one][0] + (1 - share) * means[other][0]
    return max(best, key=best.__getitem__)


def lead(front, rows, chosen, weights):
    """Return a method's quality minus that of a mixture of two points at its acceptance."""
    quality, accepted, proposed = weights @ rows / weights.sum()
    one, other = (weights @ front[k] / weights.sum() for k in chosen)
    if chosen[0] == chosen[1]:
        return 100 * (quality - one[0])
    spare = [point[1] - accepted / proposed * point[2] for point in (one, other)]
    share = spare[1] / (spare[1] - spare[0])
    return 100 * (quality - share * one[0] - (1 - share) * other[0])


def leads(front, compared, weights, halves):
    """Return each method's lead, in points, for weighted prompts; ``halves`` are 0 or 1 [k, n]."""
    result = {}
    for name, rows in compared.items():
        values = []
        for half in halves:
            sides = [weights * half, weights * (1 - half)]
            for choose, measure in (sides, sides[::-1]):
                values.append(lead(front, rows, mixture(front, rows, choose), measure))
        result[name] = np.mean(values)
    rules, recipes = result.keys() & {"gated", "typical"}, recipes_of(compared)
    means = {name: np.mean([result[head] for head in of]) for name, of in recipes.items()}
    for name, mean in means.items():
        result[f"mean of {name}"] = mean
        for other, value in ({rule: result[rule] for rule in rules} | means).items():
            if other != name:
                result[f"mean of {name}, minus {other}"] = mean - value
        heads = [result[head] for head in recipes[name]]
        result[f"standard deviation of {name}"] = np.std(heads, ddof=1)
    return result


def main():
    *options, run = sys.argv[1:]
    front, compared = read(Path(run), "--cooled" in options)
    n, generator = len(front[0]), np.random.default_rng(0)

    def halves(count):
        return np.array([generator.permutation(n) % 2 for _ in range(count)], float)

    exact = leads(front, compared, np.ones(n), halves(HALVES))
    counts = (np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(RESAMPLES))
    resampled = [
        leads(front, compared, count.astype(float), halves(HALVES_OF_A_RESAMPLE))
        for count in counts
    ]
    for name, value in exact.items():
        low, high = np.percentile([one[name] for one in resampled], [2.5, 97.5])
        beside = ""
        if name in compared:
            every = np.ones(n)
            chosen = mixture(front, compared[name], every)
            beside = f"; on all prompts {lead(front, compared[name], chosen, every):+.1f}"
        print(f"{name}: {value:+.1f} [{low:+.1f}, {high:+.1f}], n = {n}{beside}")


if __name__ == "__main__":
    main()
