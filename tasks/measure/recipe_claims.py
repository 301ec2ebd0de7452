"""The claims of `results/published/recipes.md`, after Holm over eight; run at the root.

    python tasks/measure/recipe_claims.py FRONT,RUN...

The runs are pooled as by `claims.py`. Each claim is about the mean of the heads of a recipe, named
by the folder of its heads, with heads and prompts as random effects. Claims whose texts are missing
are named, and count as tests.
"""

import sys
from pathlib import Path

import numpy as np
from claims import RESAMPLES, difference_of_leads, holm, pooled, text

from specbench.analysis.statistics import intervals
from specbench.analysis.statistics.front import front_of, gap_between
from specbench.analysis.statistics.intervals import Interval
from specbench.analysis.statistics.points import Setting, settings_of
from specbench.analysis.verdicts.contrasts import FRONTS
from specbench.runs.frames import read_samples

STATIC, COOLED = FRONTS.values()
PAPER, OURS, SHORT = "heads/paper/", "heads/default/", "heads/whole/"
TYPICAL = "typical"
#: What is compared with what: a recipe with a front, with a rule, or with another recipe.
CLAIMS: tuple[tuple[str, tuple[str, ...] | str], ...] = (
    *((recipe, family) for family in (STATIC, COOLED, TYPICAL) for recipe in (PAPER, OURS)),
    (OURS, PAPER),
    (SHORT, STATIC),
)
NAMES: dict[tuple[str, ...] | str, str] = {
    PAPER: "the paper's recipe",
    OURS: "ours",
    SHORT: "ours with 24 steps",
}
NAMES |= {STATIC: "above the static front", COOLED: "above the front with `cooled`"}
NOT_BETTER = 0.03  # a lead that is excluded


def claim(
    settings: list[Setting], recipe: str, other: tuple[str, ...] | str
) -> tuple[Interval, float] | None:
    """Return a claim's interval, and the acceptance of its heads; None if texts are missing."""
    heads = [setting for setting in settings if recipe in str(setting.cell["head"])]
    beside = [s for s in settings if s.method == other or str(other) in str(s.cell["head"])]
    if not heads or (isinstance(other, str) and not beside):
        return None
    if isinstance(other, str):
        interval = difference_of_leads(heads, beside, front_of(settings, STATIC))
    else:
        interval = gap_between(heads, front_of(settings, other), "acceptance").above
    shares = [s.samples["accepted"].sum() / s.samples["proposed"].sum() for s in heads]
    return interval, float(np.mean(shares))


def word(interval: Interval, p: float) -> str:
    """Return the word of the design for a claim."""
    if p < 0.05 and min(interval.low, interval.least) > 0:
        return "shown"
    return "not better" if interval.high < NOT_BETTER else "open"


def main(argument: str) -> None:
    """Print a table of the claims."""
    intervals.RESAMPLES = RESAMPLES
    settings = settings_of(pooled(read_samples(*map(Path, argument.split(",")))))
    results = [claim(settings, *sides) for sides in CLAIMS]
    corrected = holm([result[0].p if result else np.nan for result in results], len(CLAIMS))
    print("| heads | accepted | compared | points | p after Holm | |\n|---|--:|---|--:|--:|---|")
    for (recipe, other), result, p in zip(CLAIMS, results, corrected, strict=True):
        beside = NAMES.get(other, f"`{other}`")
        beside = beside if other in (STATIC, COOLED) else f"minus {beside}"
        if result is None:
            print(f"| {NAMES[recipe]} | | {beside} | not measured | | |")
            continue
        interval, accepted = result
        figures = f"{100 * accepted:.1f} % | {beside} | {text(interval)} | {p:.3f}"
        print(f"| {NAMES[recipe]} | {figures} | {word(interval, p)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
