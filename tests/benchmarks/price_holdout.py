"""How far costs that were left out are from those interpolated, and where drafting stops to pay.

    python tests/benchmarks/price_holdout.py COSTS.csv [1,2,4,8,16,32] [1,5,8]

reads costs on a fine grid, keeps the named batch sizes and draft lengths (by default those that
``decide`` measures by itself), and predicts all others. The crossover is the first batch size at
which no draft length is faster than no drafts, if each draft is accepted with a given probability.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.price.costs import costs_of
from specbench.price.figures import tokens_of


def sizes(text):
    """Return the numbers in a list such as 1,2,4."""
    return [int(number) for number in text.split(",")]


def crossover(seconds, batches, lengths, acceptance):
    """Return the index of the first batch size at which no draft length pays."""
    for index, batch in enumerate(batches):
        tokens = [float(tokens_of(np.array(acceptance), n)) for n in lengths]
        plain = seconds[batch, 0]
        if all(t * plain < seconds[batch, n] for t, n in zip(tokens, lengths, strict=True)):
            return index
    return len(batches)


def main(file, batches="1,2,4,8,16,32", lengths="1,5,8"):
    table = pd.read_csv(Path(file))
    whole = costs_of(table, file)
    rows = table["batch_size"].isin(sizes(batches)) & table["draft_length"].isin(
        [0, *sizes(lengths)]
    )
    few = costs_of(table[rows], file)
    settings = [(int(b), int(n)) for b in whole.batches for n in whole.lengths]
    settings = [(b, n) for b, n in settings if b <= few.batches[-1] and n <= few.lengths[-1]]
    true = {s: whole.seconds(*s, "model").mean() for s in settings}
    predicted = {s: few.seconds(*s, "model").mean() for s in settings}
    errors = {
        s: abs(predicted[s] / true[s] - 1)
        for s in settings
        if s[0] not in few.batches or s[1] not in few.lengths
    }
    groups = {
        "all": lambda b, n: True,
        "other N": lambda b, n: b in few.batches,
        "other batches": lambda b, n: n in few.lengths,
        "both": lambda b, n: b not in few.batches and n not in few.lengths,
    }
    print(f"{file}: measured batches {batches}, N = 0,{lengths}")
    for name, belongs in groups.items():
        part = {s: error for s, error in errors.items() if belongs(*s)}
        worst = max(part, key=part.__getitem__)
        print(
            f"  {name}: {len(part)} settings, median {np.median([*part.values()]):.1%}, "
            f"worst {part[worst]:.1%} at batch {worst[0]}, N = {worst[1]}"
        )
    grid = sorted({b for b, _ in settings})
    numbers = sorted({n for _, n in settings if n})
    for acceptance in (0.4, 0.6, 0.8):
        ends = [crossover(seconds, grid, numbers, acceptance) for seconds in (true, predicted)]
        shown = [f"{grid[end]}" if end < len(grid) else f"above {grid[-1]}" for end in ends]
        print(f"  crossover at acceptance {acceptance}: measured {shown[0]}, predicted {shown[1]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
