"""How often the interval of recorded less priced tokens per round contains 0, if nothing is wrong.

    python tests/benchmarks/price_coverage.py PROMPTS TRIALS

draws a random pair of order 1 for each trial. The target writes texts of each prompt, ``sd`` is
played on others, and the price is that of one text of a prompt, of six, or of the played text.
"""

import sys

import numpy as np

from specbench.analysis.intervals import bootstrap, estimate, ratio
from specbench.price.rounds import reach_of, starts

WORDS, LONGEST, DRAFTS, PRICED, CELLS = 8, 60, 5, 6, 8
RNG = np.random.default_rng(1)


def written(p, first, texts):
    """Return texts of the target [n, texts, LONGEST]."""
    last, tokens = np.repeat(first[:, None], texts, 1), []
    for _ in range(LONGEST):
        drawn = RNG.random(last.shape)[..., None] > p.cumsum(-1)[last]
        last = drawn.sum(-1).clip(max=WORDS - 1)
        tokens.append(last)
    return np.stack(tokens, -1)


def accepted(p, q, tokens, first, length):
    """Return min(1, q / p) of each token, 0 behind the end of a text."""
    before = np.broadcast_to(first[:, None, None], (*tokens.shape[:2], 1))
    before = np.concatenate([before, tokens[..., :-1]], -1)
    inside = np.arange(LONGEST) < length[:, None, None]
    return np.where(inside, np.minimum(1, q[before, tokens] / p[before, tokens]), 0)


def expected(rates, length):
    """Return the expected rounds [n, texts]; of rates of 0 and 1 these are the played ones."""
    flat, sizes = rates.reshape(-1, LONGEST), np.repeat(length, rates.shape[1])
    walk = starts(reach_of(flat, DRAFTS), np.full(flat.shape, DRAFTS), sizes)
    return walk.sum(-1).reshape(rates.shape[:2])


def main(prompts, trials):
    missed = {"one": [], "six": [], "own": []}
    for _ in range(trials):
        p, noise = RNG.dirichlet(np.full(WORDS, 0.3), (2, WORDS))
        q, first = (p + noise) / 2, RNG.integers(WORDS, size=prompts)
        length = RNG.integers(20, LONGEST, size=prompts)
        rates = accepted(p, q, written(p, first, PRICED), first, length)
        own = accepted(p, q, written(p, first, CELLS), first, length)
        played = expected((RNG.random(own.shape) < own).astype(float), length)
        texts, owns = expected(rates, length), expected(own, length)
        for name, misses in missed.items():
            number = 0
            for cell in range(CELLS):
                rounds = {"one": texts[:, 0], "six": texts.mean(1), "own": owns[:, cell]}[name]
                sums = np.column_stack([length, rounds, length, played[:, cell]])
                totals = bootstrap(sums.astype(float))
                gap = estimate(ratio(totals[:, 2:]) - ratio(totals[:, :2]), prompts)
                number += not gap.low <= 0 <= gap.high
            misses.append(number)
    for name, numbers in missed.items():
        misses = np.array(numbers)
        rate = misses.mean() / CELLS
        print(f"{name}: {1 - rate:.1%} contain 0; variance of misses in {CELLS} cells that share")
        print(f"  texts: {misses.var():.2f}, if independent: {CELLS * rate * (1 - rate):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
