"""How often do the words "above" and "below" a front, and intervals of differences, err?

    python tasks/measure/levels.py [DRAWS]

Runs are drawn whose truth is known, and judged by the functions that `compare`, `table`, `train`
and the report use. The first table has methods that lie exactly on the front (``lead`` 0), where
either word is wrong, and methods above or below it. Beside the words of now stand those of a front
that is chosen and measured on the same prompts. The second table has differences between a method
that fails on some prompts and one that does not. About 20 minutes with 1,000 draws of each setting.
"""

import sys
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from specbench.analysis.statistics.front import front_quality
from specbench.analysis.statistics.intervals import (
    Floats,
    Interval,
    bootstrap,
    mean_over_seeds,
)
from specbench.analysis.statistics.lead import lead
from specbench.analysis.statistics.points import Gains
from specbench.analysis.statistics.proportions import paired_difference

DRAFTS = 40  # tokens drafted per text, about
SEED = 0


class Setting(NamedTuple):
    """Runs of one kind: a front of static points, and heads that have a lead over it."""

    #: By acceptance: flat, line, concave, convex, S-shaped, or a coin with other weights below it.
    front: str
    n: int
    points: int
    heads: int = 1
    skewed: bool = False  # scores like ROUGE; otherwise 0 or 1
    lead: float = 0.0
    time: bool = False  # the gain is time, of texts whose lengths vary much
    repeats: int = 1  # texts of a prompt, whose mean counts

    def draw(self, rng: np.random.Generator) -> tuple[Floats, Gains]:
        """Return scores and gains [n, heads + points] of a run; prompts are more or less hard."""
        place = np.concatenate([np.full(self.heads, 0.5), np.linspace(0, 1, self.points)])
        truth = 0.6 - (0.0 if self.front == "flat" else 0.5) * (place - 0.5)
        bends = {"concave": 0.4 * place * (1 - place), "convex": -0.4 * place * (1 - place)}
        bends["S-shaped"] = -0.1 * np.sin(2 * np.pi * place)  # convex, then concave
        truth += bends.get(self.front, 0.0)
        if self.front == "coin":
            truth[self.heads + 1 : -1] -= 0.12
        front = Gains(place[None, self.heads :], np.ones((1, self.points)))
        truth[: self.heads] = front_quality(front, truth[None, self.heads :], np.array([0.5]))
        truth[: self.heads] += self.lead
        shared = rng.standard_normal((self.n, 1))
        single = rng.standard_normal((self.repeats, self.n, len(place)))
        luck = (shared + single) / np.sqrt(2)
        if self.skewed:
            scores = np.exp(luck - 0.5)  # of mean 1 and a long tail
            quality = 0.25 * truth * scores.mean(axis=0)
        else:
            limits = np.array([NormalDist().inv_cdf(share) for share in truth])
            quality = (luck < limits).mean(axis=0)
        if self.time:
            length = np.exp(0.6 * shared + 0.6 * rng.standard_normal((self.n, len(place))))
            return quality, Gains((0.5 * place - 1) * length, np.ones_like(length))
        drafted = rng.integers(DRAFTS // 2, 2 * DRAFTS, (self.n, 1)) * np.ones(len(place))
        noise = 0.08 * (shared + rng.standard_normal((self.n, len(place))))
        accepted = np.clip(0.5 + 0.4 * place + noise, 0, 1) * drafted
        return quality, Gains(accepted, drafted)


def judged(quality: Floats, gains: Gains, heads: int) -> tuple[Interval, Interval]:
    """Return the lead, and the one over a front that is chosen and measured on all prompts."""
    n = len(quality)
    units = np.stack([quality, gains.numerator, gains.denominator])
    means = bootstrap(units.transpose(1, 0, 2)) / n  # [1 + RESAMPLES, 3, heads + points]
    of_front = Gains(means[:, 1, heads:], means[:, 2, heads:])
    at = Gains(means[:, 1, :heads], means[:, 2, :heads]).value
    front = [front_quality(of_front, means[:, 0, heads:], level) for level in at.T]
    leads = means[:, 0, :heads] - np.stack(front, axis=-1)
    before = mean_over_seeds(leads, n)
    coin = Gains(of_front.numerator[0, [0, -1]], of_front.denominator[0, [0, -1]])
    ends = [front_quality(coin, means[0, 0, [heads, -1]], level) for level in at[0]]
    over_coin = float((means[0, 0, :heads] - ends).mean())
    return lead(leads, quality, gains, over_coin), before


FLAT_AND_LINE = [
    *(Setting("flat", n, 5) for n in (20, 30, 50)),
    *(Setting("flat", n, 5, skewed=True) for n in (30, 50)),
    *(Setting("line", n, 5) for n in (30, 100)),
    *(Setting(front, 100, 9) for front in ("flat", "line")),
    *(Setting("flat", 500, points) for points in (5, 9)),
    Setting("line", 200, 9, skewed=True),
    Setting("flat", 100, 9, heads=3),
    Setting("line", 50, 5, heads=3),
    *(Setting(front, n, 5) for front in ("concave", "coin", "S-shaped") for n in (20, 50, 100)),
    *(Setting("convex", n, 5) for n in (20, 50, 100)),
    *(Setting(front, 50, 5, heads=heads) for front in ("convex", "S-shaped") for heads in (3, 8)),
    *(Setting(front, 50, 5, repeats=3) for front in ("convex", "S-shaped")),
    Setting("S-shaped", 300, 9, heads=3),
    *(Setting("line", n, 5, time=True) for n in (50, 200)),
]
EFFECTS = [
    Setting("line", 30, 5, lead=0.25),
    Setting("line", 100, 9, lead=0.12),
    Setting("flat", 100, 5, lead=0.12),
    Setting("line", 200, 9, skewed=True, lead=0.15),
    Setting("line", 100, 5, lead=-0.12),
    Setting("flat", 100, 9, lead=-0.12),
]


def words(setting: Setting, draws: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares of "below" and "above" and the mean lead in points, now and before."""
    rng = np.random.default_rng(SEED)
    figures = [judged(*setting.draw(rng), setting.heads) for _ in range(draws)]
    shares = []
    for side in zip(*figures, strict=True):
        below = np.mean([figure.high < 0 for figure in side])
        above = np.mean([figure.low > 0 for figure in side])
        value, least = (100 * np.mean([f[k] for f in side]) for k in (0, -1))
        shares.append({"below": 100 * below, "above": 100 * above, "lead": value, "least": least})
    return shares[0], shares[1]


def missed(n: int, failing: float, draws: int) -> float:
    """Return how often, in %, the interval of a difference misses that of failing answers."""
    rng = np.random.default_rng(SEED)
    misses = 0
    for _ in range(draws):
        base = rng.beta(4, 6, n)  # scores of mean .4
        fails = rng.random(n) < failing
        scores = np.where(fails, 0, np.clip(base + rng.normal(0, 0.05, n), 0, 1))
        difference = paired_difference((scores, np.arange(n)), (base, np.arange(n)))
        misses += not difference.low <= -0.4 * failing <= difference.high
    return 100 * misses / draws


def main(draws: int = 1000) -> None:
    """Print both tables."""
    print("| front | n | points | heads | scores | true lead | below | above | mean lead |", end="")
    print(" below, before | above, before | mean least lead |")
    print("|---|--:|--:|--:|---|" + "--:|" * 7)
    for setting in (*FLAT_AND_LINE, *EFFECTS):
        now, before = words(setting, draws)
        scores = "skewed" if setting.skewed else "0 or 1"
        true = 100 * setting.lead * (0.25 if setting.skewed else 1)
        front = f"{setting.front}, time" if setting.time else setting.front
        front += f", {setting.repeats} texts" if setting.repeats > 1 else ""
        print(
            f"| {front} | {setting.n} | {setting.points} | {setting.heads} | {scores} |"
            f" {true:+.1f} | {now['below']:.1f} % | {now['above']:.1f} % | {now['lead']:+.1f} |"
            f" {before['below']:.1f} % | {before['above']:.1f} % | {now['least']:+.1f} |",
            flush=True,
        )
    print("\n| n | 2 % fail | 4 % | 8 % | 15 % |\n|--:|--:|--:|--:|--:|")
    for n in (20, 50, 100, 200):
        shares = [missed(n, failing, 2 * draws) for failing in (0.02, 0.04, 0.08, 0.15)]
        print(f"| {n} | {' | '.join(f'{share:.1f} %' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
