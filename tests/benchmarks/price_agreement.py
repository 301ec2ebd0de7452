"""Priced against recorded rounds, for every lossless cell of runs that draft.

    python tests/benchmarks/price_agreement.py FOLDER RUN...

scores the target's texts of all runs into FOLDER and writes ``agreement.csv`` there. Each cell is
priced by all lossless texts of its prompts but its own; runs of one pair, temperature and seed have
the same prompts. It prints in how many cells the 95 % interval of the paired difference contains 0,
whether the differences are larger than chance over all cells, and how wide the interval of the
difference between two draft lengths is when priced on so many texts of each prompt, relative to
decoding both. ``--own`` prices each cell by its own texts instead, which leaves to chance only the
draws of acceptance.
"""

import csv
import sys
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom, chi2

from specbench.analysis.intervals import bootstrap, cluster_sums, estimate, ratio
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.methods.drafters import DRAFTERS
from specbench.policies import POLICIES
from specbench.price.checks import compare, deviations
from specbench.price.passes import PairScores, score_texts, texts_of
from specbench.price.pricing import price
from specbench.price.records import name_of, recorded_rounds, target_texts
from specbench.runs.run import read_run

LARGEST = 200  # prompts of a task
STRICT = ("sd", "model")
TEXTS = (1, 2, 4, 8, 16)


def measured(records):
    """Return tokens and rounds of each prompt ``[n, 2]``, in the order of their names."""
    terms = [(r["output_tokens"], r["rounds"]) for r in records]
    return cluster_sums(terms, [f"{r['task']} {r['sample_id']}" for r in records])


def sharpness(scores, cells):
    """Yield the widths of intervals of differences between N: priced, and decoded."""
    lengths = {
        c[0]["draft_length"]: c for c in cells if (c[0]["method"], c[0]["drafter"]) == STRICT
    }
    for first, second in pairwise(sorted(lengths)):
        labels, one = measured(lengths[first])
        _, two = measured(lengths[second])
        if {*labels} <= {*scores.prompt}:
            totals = bootstrap(np.hstack([one, two]))
            loop = estimate(ratio(totals[:, 2:]) - ratio(totals[:, :2]), len(labels))
            for texts, rows in first_texts(scores, {*labels}):
                few = scores.of(rows)
                part = price(few, "model", POLICIES["fixed"], [first, second]).resampled
                priced = estimate(part[:, 1] - part[:, 0], len(labels))
                yield second, first, texts, priced.high - priced.low, loop.high - loop.low


def first_texts(scores, prompts):
    """Yield 1, 2, 4, ... and all, each with the rows of so many texts of each prompt."""
    numbers, seen = [], Counter()
    for prompt in scores.prompt:
        numbers.append(seen[prompt])
        seen[prompt] += 1
    most = max(seen[prompt] for prompt in prompts)
    for texts in (*(size for size in TEXTS if size < most), most):
        rows = zip(scores.prompt, numbers, strict=True)
        yield texts, [i for i, (p, number) in enumerate(rows) if p in prompts and number < texts]


def compared(scores, cells, about, own):
    """Yield a row for each cell, and its difference in standard errors."""
    for cell in cells:
        c = compare(scores, cell, each_cell=own)
        row = {**about, "cell": c.label, "n": c.difference.n, "priced": c.predicted.value}
        row |= {"recorded": c.measured.value, "difference": c.difference.value}
        row |= {"low": c.difference.low, "high": c.difference.high, "errors": c.errors}
        row["agrees"] = c.difference.low <= 0 <= c.difference.high
        yield row


def main(folder, *names):
    torch.set_num_threads(1)
    own, names = "--own" in names, [name for name in names if name != "--own"]
    groups = {}
    for run in (read_run(Path(name)) for name in names):
        settings = run.settings
        groups.setdefault((run.pair.name, settings.temperature, settings.seed), []).append(run)
    rows, widths = [], []
    for (pair_name, temperature, _), runs in groups.items():
        pair, sampling = load_pair(runs[0].pair, runs[0].loading), runs[0].settings.part(Sampling)
        records = [[r for r in run.records() if r["sample_id"] is not None] for run in runs]
        texts = (
            texts_of(run, pair, target_texts(few, limit=LARGEST))
            for run, few in zip(runs, records, strict=True)
        )
        source, whole = PairScores(pair, sampling), chain.from_iterable(texts)
        by_task = score_texts(source, whole, Path(folder), lambda text: None)
        for task, scores in by_task.items():
            about = {"pair": pair_name, "task": task, "temperature": temperature}
            for deviation in deviations(scores):
                print(*about.values(), f"{deviation.name} {deviation.errors:+.1f} errors")
            # Of a cell that several runs have, the one with most prompts.
            cells = {}
            recorded = (recorded_rounds(few, [task], DRAFTERS) for few in records)
            for cell in chain.from_iterable(recorded):
                name = name_of(cell[0]).method
                cells[name] = max(cells.get(name, []), cell, key=len)
            widths += [(*about.values(), *w) for w in sharpness(scores, cells.values())]
            rows += compared(scores, cells.values(), about, own)
    with (Path(folder) / "agreement.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(
            {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
    for row in rows:
        print(*(f"{v:.3f}" if isinstance(v, float) else v for v in row.values()))
    agreed, n = sum(row["agrees"] for row in rows), len(rows)
    print(f"{agreed} of {n} cells agree; fewer in {binom.cdf(agreed - 1, n, 0.95):.1%} of cases")
    varied = np.array([row["errors"] for row in rows if row["low"] < row["high"]])
    p_value = chi2.sf((varied**2).sum(), len(varied))
    print(f"sum of squared errors {(varied**2).sum():.1f} of {len(varied)}, p = {p_value:.2f}")
    for *about, second, first, texts, priced, loop in widths:
        print(
            *about, f"N = {second} - {first}, {texts} texts: {priced:.3f} / {loop:.3f} = ", end=""
        )
        print(f"{priced / loop:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
