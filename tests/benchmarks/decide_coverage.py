"""How often the interval of a speed-up contains the truth, by the repeats of its costs.

    python tests/benchmarks/decide_coverage.py TRIALS

simulates 200 prompts whose rounds are off by 30 %, and seconds of a round that are off by 5 %.
"""

import sys

import numpy as np

from specbench.price.costs import Costs
from specbench.price.decide import decide
from specbench.price.rounds import PricedRounds

PROMPTS, TOKENS, SECONDS, PER_ROUND, N = 200, 50.0, (1.0, 1.6), 2.0, 3


def contains(repeats, random):
    """Return whether the interval of one simulated experiment contains the true speed-up."""
    tokens = np.full(PROMPTS, TOKENS)
    rounds = TOKENS / PER_ROUND * (1 + 0.3 * random.normal(size=(PROMPTS, 1)))
    priced = PricedRounds("model", "fixed", (N,), tokens, rounds, N * rounds)
    seconds = np.array(SECONDS) * random.lognormal(-(0.05**2) / 2, 0.05, (repeats, 1, 2))
    costs = Costs("simulated", np.ones(1), np.array([0.0, N]), seconds, np.zeros_like(seconds))
    (setting,) = decide([priced], costs, [1]).settings
    return setting.speedup.low <= PER_ROUND * SECONDS[0] / SECONDS[1] <= setting.speedup.high


def main():
    """Print the coverage for 2, 3, 5, 8 and 12 repeats."""
    trials = int(sys.argv[1])
    for repeats in (2, 3, 5, 8, 12):
        random = np.random.default_rng(repeats)
        share = sum(contains(repeats, random) for _ in range(trials)) / trials
        print(f"{repeats} repeats: {share:.1%} of {trials}")


if __name__ == "__main__":
    main()
