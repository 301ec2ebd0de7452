"""Which rules of some runs lie above the static front at equal acceptance, after Holm?

    python tasks/measure/claims.py [--rules NAME,NAME] [--tests M] FRONT,RUN... FRONT,RUN...

Each argument names runs of one task, pair and temperature: they are pooled, since runs of one seed
decode the same prompts with the same random numbers. Each setting of a rule, by default of those
below, makes a claim about the static front of its drafter and one about the front with ``cooled``,
both confined to the same part of a text as the rule (``--inside``). p-values are two-sided, those
of the intervals, and corrected over all arguments (Holm 1979; as one of M,
if a design has more), for each front alone. The target's quality is pooled over `sd` and
`autoregressive`. Below each table stand the leads of recipes with several heads over the static
front minus those of rules without training, where these ran. The figure:

    specbench plot tasks/measure/claims.py:draw RUN... --output FOLDER
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from specbench.analysis.figures import figure, style
from specbench.analysis.results import Results
from specbench.analysis.statistics import intervals
from specbench.analysis.statistics.estimates import QUALITY_LESS, contrast
from specbench.analysis.statistics.front import (
    front_band,
    front_of,
    front_quality,
    gap_between,
    points_with_front,
)
from specbench.analysis.statistics.intervals import Interval, bootstrap, mean_over_seeds
from specbench.analysis.statistics.lead import crossfitted_leads
from specbench.analysis.statistics.points import TARGET, Setting, settings_of
from specbench.analysis.statistics.sessions import methods_of
from specbench.analysis.tables.table import with_interval
from specbench.analysis.verdicts.contrasts import FRONTS
from specbench.methods.registry import PARAMETER_COLUMNS
from specbench.runs.frames import read_samples

RULES: tuple[str, ...] = (
    "fly",
    "typical",
    "mars",
    "ears",
    "entropy-verify",
    "gated",
    "relaxed",
    "diversed",
)
UNTRAINED = ("gated", "typical")
#: More than tables have: with theirs, standard errors may be 2 to 5 % too small in all cells of n.
RESAMPLES = 10_000


def pooled(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of the task that all runs have as those of one run; equal cells once."""
    tasks = set.intersection(*(set(rows["task"]) for _, rows in samples.groupby("run_id")))
    samples = samples[samples["task"].isin(tasks)].assign(session=0, run_id="", batch_size=1)
    cell = ["method", *PARAMETER_COLUMNS, "draft_length", "drafter", "sample_id", "task"]
    return samples.drop_duplicates(cell)


def by_marks(samples: pd.DataFrame) -> list[pd.DataFrame]:
    """Split samples by the marks of ``--inside``, those without first; all have ``TARGET``."""
    marks = samples["settings"].str.extract(r"inside=(.*)")[0].fillna("")
    target = samples[samples["method"].isin(TARGET)]
    return [
        pd.concat([target, rows]) if label else rows
        for label, rows in samples.groupby(marks.to_numpy())
    ]


def distances(samples: pd.DataFrame, rules: Sequence[str] = RULES) -> list[dict[str, Any]]:
    """Return label, acceptance, quality minus SD, and the distances from both fronts."""
    alone = samples[samples["drafter"].isna()]
    drafters = [pd.concat([rows, alone]) for _, rows in samples.groupby("drafter", sort=False)]
    return [row for rows in drafters for part in by_marks(rows) for row in _distances(part, rules)]


def _distances(samples: pd.DataFrame, rules: Sequence[str]) -> list[dict[str, Any]]:
    fronts, claims = settings_of(samples), samples[samples["method"].isin(rules)]
    rows = []
    for method in methods_of(settings_of(claims), set(claims["method"])):
        (heads,) = method.lengths.values()
        gaps = [
            gap_between(heads, front_of(fronts, family), "acceptance") for family in FRONTS.values()
        ]
        size = len(heads)  # `sd` is the first point of a front
        less = gaps[0].reached.contrast(QUALITY_LESS, range(size), size)
        if size == 1:
            target = samples[samples["method"].isin(TARGET)]
            less = contrast(heads[0].samples, target, QUALITY_LESS)
        rows.append(
            {
                "label": method.label,
                "seed": method.seeds == 1,
                "acceptance": gaps[0].reached.acceptance[0, :size].mean(),
                "less": less,
                "above": [gap.above for gap in gaps],
            }
        )
    return rows


def leads_over(samples: pd.DataFrame, rules: Sequence[str] = RULES) -> dict[str, Interval]:
    """Return the leads of recipes of heads over the static front, minus those of other rules."""
    settings = settings_of(samples)
    untrained = [setting for setting in settings if setting.method in UNTRAINED]
    differences = {}
    for recipe in methods_of(settings, {*rules}):
        (heads,) = recipe.lengths.values()
        if len(heads) == 1:
            continue
        for rule in untrained:
            name = f"{recipe.label}, minus {rule.method}"
            differences[name] = difference_of_leads(heads, [rule], front_of(settings))
    return differences


def difference_of_leads(
    recipe: Sequence[Setting], other: Sequence[Setting], front: list[Setting]
) -> Interval:
    """Return the mean lead of a recipe's heads over a front, minus that of a rule or recipe.

    Both ends: over the best mixtures of all prompts, where both leads are too small, and over those
    that halves of the prompts have chosen, where both are too large. The interval has those of
    both, and p is the larger one. Heads are paired by number; those of two recipes are independent,
    so any pairing would do.
    """
    size = len(recipe) + len(other)
    points = points_with_front([*recipe, *other], front)
    reached, n = points.estimates(), len(points.unit_values("acceptance")[0])
    gains, quality = reached.gains("acceptance"), reached.quality
    mixtures = gains.of(slice(size, None)), quality[:, size:]
    best = [quality[:, i] - front_quality(*mixtures, gains.value[:, i]) for i in range(size)]
    crossed = bootstrap(crossfitted_leads(*points.unit_values("acceptance"), size)) / n
    ends = [
        mean_over_seeds(leads[:, : len(recipe)] - leads[:, len(recipe) :], n)
        for leads in (np.stack(best, axis=-1), crossed)
    ]
    values = sorted(end.value for end in ends)
    low, high = min(end.low for end in ends), max(end.high for end in ends)
    return Interval(values[1], low, high, n, max(end.p for end in ends), values[0])


@figure()
def draw(results: Results) -> style.Drawing:
    """Draw quality against acceptance: the pooled fronts of each task, and each setting."""
    samples = by_marks(results.samples)[0]
    ruled = samples[samples["method"].isin(RULES)]["task"].unique()
    drawing, axes = style.panels(1, len(ruled), height=2.4)
    data, methods = [], list[str]()
    for axis, task in zip(axes[0], ruled, strict=True):
        rows = samples[samples["task"] == task]
        rows = pooled(rows[rows["draft_length"].isin([0, 5])])
        for family, method, line in zip(FRONTS.values(), ("static", "cooled"), "-:", strict=True):
            band = front_band(rows, "acceptance", family)
            colour = style.look(method).colour
            axis.plot(100 * band["gain"], 100 * band["quality"], line, color=colour)
        cells = [*PARAMETER_COLUMNS]
        for (method, *_), of in rows.groupby(["method", *cells], dropna=False, sort=False):
            if method not in (*RULES, "sd"):
                continue
            part = of.iloc[[0]][["task", "method", "settings"]].assign(
                acceptance=of["accepted"].sum() / of["proposed"].sum(), quality=of["quality"].mean()
            )
            size = style.look(method).size * (0.5 if method == "diversed" and len(ruled) > 1 else 1)
            style.method_points(
                axis, part, method, "100*acceptance", "100*quality", markersize=size
            )
            data.append(part)
            methods.append(method)
        axis.set_title(task)
        axis.set_xlabel("Accepted / drafted (%)")
    axes[0, 0].set_ylabel("Quality (×100)")
    fronts = [
        Line2D([], [], color=style.look(method).colour, ls=line, label=label)
        for method, label, line in (
            ("static", "static front", "-"),
            ("cooled", "front with cooled", ":"),
        )
    ]
    handles = [style.handle(m) for m in style.ordered([*dict.fromkeys(methods)])]
    style.legend(drawing, [*handles, *fronts])
    style.settle(drawing)
    return style.Drawing(drawing, pd.concat(data, ignore_index=True))


def holm(p_values: list[float], tests: int = 0) -> list[float]:
    """Return p-values corrected for at least ``tests`` of them, in their order; NaN stays."""
    order = sorted((i for i, p in enumerate(p_values) if p == p), key=p_values.__getitem__)
    corrected, largest, tests = [*p_values], 0.0, max(tests, len(order))
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (tests - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def text(interval: Interval) -> str:
    """Return a difference in points with its interval."""
    value, low, high, least = (100 * number for number in (*interval[:3], interval.least))
    return with_interval(value, low, high, "+.1f", least=least)


def main(*arguments: str) -> None:
    """Print a table for each argument."""
    rules, tests = RULES, 0
    intervals.RESAMPLES = RESAMPLES
    while arguments[0] in ("--rules", "--tests"):
        if arguments[0] == "--rules":
            rules = tuple(arguments[1].split(","))
        else:
            tests = int(arguments[1])
        arguments = arguments[2:]
    runs = [pooled(read_samples(*map(Path, argument.split(",")))) for argument in arguments]
    tables = [distances(samples, rules) for samples in runs]
    rows = [row for table in tables for row in table if not row["seed"]]  # of seeds, their mean
    for front in range(len(FRONTS)):
        corrected = holm([row["above"][front].p for row in rows], tests)
        for row, p in zip(rows, corrected, strict=True):
            row.setdefault("p", []).append(p)
    for argument, samples, table in zip(arguments, runs, tables, strict=True):
        print(f"\n{argument}\n")
        print("| method | accepted | minus SD | above the static front | above it with `cooled` |")
        print("|---|--:|--:|--:|--:|")
        for row in table:
            if row["seed"]:
                continue
            cells = []
            for interval, p in zip(row["above"], row["p"], strict=True):
                mark = "**" if p < 0.05 and interval.value > 0 else ""
                cells.append(f"{mark}{text(interval)}{mark}")
            share = f"{100 * row['acceptance']:.0f} %"
            print(f"| `{row['label']}` | {share} | {text(row['less'])} | {' | '.join(cells)} |")
        for name, difference in leads_over(samples, rules).items():
            print(f"\n{name}: {text(difference)}, p = {difference.p:.4f}")
    for front, name in enumerate(FRONTS):
        signs = [(row["p"][front] < 0.05, row["above"][front].value > 0) for row in rows]
        above, below = signs.count((True, True)), signs.count((True, False))
        print(f"\n{name}: of {len(rows)} claims, {above} above and {below} below after Holm")


if __name__ == "__main__":
    main(*sys.argv[1:])
