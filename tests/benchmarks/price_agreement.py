"""Priced against recorded rounds, for every lossless cell of runs that draft.

    python tests/benchmarks/price_agreement.py FOLDER RUN...

scores the target's texts of each run into FOLDER and writes ``agreement.csv`` there. It then prints
in how many cells the 95 % interval of the paired difference contains 0, and how wide the interval
of the difference between two draft lengths is when priced, relative to decoding both.
"""

import csv
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from specbench.analysis.intervals import bootstrap, cluster_sums, estimate, ratio
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.policies import POLICIES
from specbench.price.checks import compare, deviations
from specbench.price.passes import score_texts, texts_of
from specbench.price.pricing import price
from specbench.price.records import recorded_rounds, target_texts
from specbench.runs.run import read_run

LARGEST = 200  # prompts of a task


def measured(records):
    """Return tokens and rounds of each prompt ``[n, 2]``, in the order of their names."""
    terms = [(r["output_tokens"], r["rounds"]) for r in records]
    return cluster_sums(terms, [f"{r['task']} {r['sample_id']}" for r in records])


def sharpness(scores, cells):
    """Yield the widths of intervals of differences between N: priced, and decoded."""
    cells = {
        c[0]["draft_length"]: c
        for c in cells
        if (c[0]["method"], c[0]["drafter"]) == ("sd", "model")
    }
    for first, second in pairwise(sorted(cells)):
        labels, one = measured(cells[first])
        _, two = measured(cells[second])
        both, rows, _ = np.intersect1d(scores.prompt_labels, labels, return_indices=True)
        if len(both) < len(labels):
            continue
        totals = bootstrap(np.hstack([one, two]))
        loop = estimate(ratio(totals[:, 2:]) - ratio(totals[:, :2]), len(labels))
        part = price(scores, "model", POLICIES["fixed"], [first, second]).of(rows).resampled
        priced = estimate(part[:, 1] - part[:, 0], len(labels))
        yield first, second, priced.high - priced.low, loop.high - loop.low


def main(folder, *runs):
    torch.set_num_threads(1)
    rows, widths = [], []
    for name in runs:
        run = read_run(Path(name))
        records = [r for r in run.records() if r["sample_id"] is not None]
        texts = target_texts(records, limit=LARGEST)
        pair, sampling = load_pair(run.pair, run.loading), run.settings.part(Sampling)
        began = time.perf_counter()
        by_task = score_texts(
            pair, texts_of(run, pair, texts), sampling, Path(folder), lambda text: None
        )
        print(name, f"scored in {time.perf_counter() - began:.0f} s", flush=True)
        for task, scores in by_task.items():
            for deviation in deviations(scores):
                print(f"  {task}: {deviation.name} {deviation.mean:+.5f}, {deviation.errors:+.1f}")
            cells = recorded_rounds(records, [task])
            widths += [(run.folder.name, task, *width) for width in sharpness(scores, cells)]
            for cell in cells:
                c = compare(scores, cell)
                rows.append(
                    {
                        **{"run": run.folder.name, "pair": run.pair.name, "task": task},
                        **{"temperature": scores.temperature, "cell": c.label},
                        **{"n": c.difference.n, "priced": c.predicted.value},
                        **{"recorded": c.measured.value, "difference": c.difference.value},
                        **{"low": c.difference.low, "high": c.difference.high},
                    }
                )
                print("  ", *(f"{v:.3f}" if isinstance(v, float) else v for v in rows[-1].values()))
    with (Path(folder) / "agreement.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(
            {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
    agreed = sum(row["low"] <= 0 <= row["high"] for row in rows)
    print(f"{agreed} of {len(rows)} cells agree")
    for run, task, first, second, priced, loop in widths:
        print(
            f"{run} {task} N = {second} - {first}: {priced:.3f} / {loop:.3f} = {priced / loop:.2f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
