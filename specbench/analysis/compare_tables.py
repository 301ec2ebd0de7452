"""Tables for reading of a comparison: one for each task and each thing held equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from specbench.analysis import compare as c
from specbench.analysis.summary import shown_name, shown_scale
from specbench.table import Column, Table, with_interval

CHOSEN = (
    "chosen: N is chosen on one half of the prompts and measured on the other, and the other way "
    "round; in brackets the choice on all of them."
)
POOLED = "sd's quality is of all its draft lengths together, since they write the same law."
BY_N = (
    "had by N alone: of the time that the method saves over sd at its own N, the share that sd "
    "saves by another N."
)
LESS = "Differences from sd are paired by prompt, at the same N."
FRONT = (
    "static front (randomised): the best that static weights reach, one drawn at random for each "
    "prompt. measured: at the next static point of less acceptance, or more time, without "
    "interpolation."
)
CONTROL = "sharpened: the same front with `sharpened` too, a control for what sharpening gains."
SPEEDS = (
    "tokens/s: the method's over sd's; s/sample: sd's over the method's; both with prefill, so "
    "above 1 is faster."
)
FEW = (
    "Below 100 prompts the ratio at equal quality is too low where a sample's quality is 0 or 1: "
    "at 20 prompts its interval holds the truth in 76 % of runs."
)
#: Fewer prompts make ``times_as_fast`` at equal quality too low where quality is 0 or 1: its
#: interval held the truth in 76 % of simulated runs of 20 prompts.
ENOUGH = 100

_Figures = dict[str, Any]  # the rows of one setting, by metric


def comparison_tables(rows: pd.DataFrame) -> list[Table]:
    """Return the tables of a comparison, columns ``compare.COMPARISON``, in its order."""
    several = rows["run_id"].nunique() > 1
    keys = ["run_id", "temperature", "engine", "batch_size", "task"]
    found = []
    for (run, temperature, _, _, task), own in rows.groupby(keys, sort=False):
        where = f"{task} on {own['pair'].iloc[0]}, T = {temperature:g}" + f", {run}" * several
        tables = _Tables(task, own)
        for at, group in own.groupby("at", sort=False):
            counts = sorted({group["n"].min(), group["n"].max()})
            title = f"{where}, n = {' to '.join(map(str, counts))}"
            if at == c.OWN:
                found.append(tables.beside_sd(group, title))
            elif at == "quality":
                found.append(tables.savings(group, title))
            elif at == "hypervolume":
                found.append(tables.volumes(group, title))
            else:
                found.append(tables.above(group, title, at))
    return found


class _Tables:
    """The tables of one task of one run."""

    def __init__(self, task: str, rows: pd.DataFrame) -> None:
        """Take the rows of the task, whatever is held equal in them."""
        metric = str(rows["quality_metric"].iloc[0])
        self.task, self.unit, self.scale = task, shown_name(metric), shown_scale(metric)
        own = rows[(rows["at"] == c.OWN) & (rows["against"] == c.SD)]
        settings = (figures for figures in _grouped(own) if c.QUALITY_LESS in figures)
        self.from_sd = {_setting(figures[c.QUALITY_LESS]): figures for figures in settings}

    def beside_sd(self, group: pd.DataFrame, where: str) -> Table:
        rows, notes = [], [SPEEDS, LESS]
        for figures in _grouped(group, "against", "against_draft_length"):
            row = next(iter(figures.values()))
            length = f"{row.against_draft_length:.0f}"
            chosen = length if row.against == c.SD else f"chosen ({length})"
            name = [row.label, _length(row)]
            rows.append(
                [
                    *name,
                    f"{c.SD}, {'N = ' * (row.against == c.SD)}{chosen}",
                    f"{self.scale * row.quality:.1f}",
                    _shown(figures.get(c.QUALITY_LESS), "+.1f", self.scale),
                    f"{row.acceptance:.1%}",
                    _shown(figures.get(c.ACCEPTANCE_LESS), "+.1f", 100),
                    _shown(figures.get(c.TOKENS), ".2f"),
                    _shown(figures.get(c.TIMES), ".2f"),
                ]
            )
            if share := figures.get(c.SHARE):
                shown = _shown(share, ".0f", 100, " %")
                rows.append([*name, "had by N alone", *[""] * 5, shown])
            if (ratio := figures.get(c.LENGTH)) and not ratio.ci_low <= 1 <= ratio.ci_high:
                notes.append(
                    f"{row.label}, {self.task}: {_shown(ratio, '.2f')} times as many tokens a "
                    "sample as sd, so tokens/s and s/sample differ."
                )
        if c.SD_CHOSEN in set(group["against"]):
            notes += [CHOSEN, POOLED]
        notes += [BY_N] * (c.SHARE in set(group["metric"]))
        columns = _columns(
            *("method", "N", "against", self.unit, "less sd's\n[95 %]"),
            *("accepted /\ndrafted", "less sd's\n[95 %]"),
            *("tokens/s\n/ sd's [95 %]", "sd's s/sample\n/ own [95 %]"),
        )
        title = f"Against sd, each at its own quality: {where}"
        return Table(title, columns, rows, notes, stub=3)

    def above(self, group: pd.DataFrame, where: str, at: str) -> Table:
        rows = []
        for figures in _grouped(group, "against"):
            row, measured = figures[c.ABOVE], figures[c.ABOVE_MEASURED]
            price = f"{row.acceptance:.1%}" if at == "acceptance" else f"{row.seconds:.4f}"
            rows.append(
                [
                    *(row.label, f"{row.draft_length:.0f}", row.against.partition(" ")[0], price),
                    f"{self.scale * row.quality:.1f}",
                    f"{self.scale * row.reference:.1f}",
                    _shown(row, "+.1f", self.scale),
                    f"{self.scale * measured.reference:.1f}",
                    _shown(measured, "+.1f", self.scale),
                    row.between,
                    *self._less_than_sd(row),
                ]
            )
        columns = _columns(
            *("method", "N", "front"),
            "accepted /\ndrafted" if at == "acceptance" else "s/sample",
            *(self.unit, "front,\nrandomised", "above it\n[95 %]"),
            *("front,\nmeasured", "above measured\n[95 %]", "between"),
            *self._less_headings(),
        )
        fronts = set(group["against"])
        notes = [FRONT] * (c.FRONT in fronts) + [CONTROL] * (c.CONTROL in fronts) + [LESS]
        return Table(f"At equal {at}: {where}", columns, rows, notes, stub=3)

    def savings(self, group: pd.DataFrame, where: str) -> Table:
        rows = [
            [
                *(row.label, _length(row), f"{self.scale * row.quality:.1f}"),
                *(f"{self.scale * row.against_quality:.1f}", f"{row.seconds:.4f}"),
                *(_shown(row, ".2f"), *self._less_than_sd(row)),
            ]
            for row in group.itertuples(index=False)
        ]
        columns = _columns(
            *("method", "N", self.unit, "front's,\nrandomised", "s/sample"),
            *("front's s/sample\n/ own [95 %]", *self._less_headings()),
        )
        chosen, few = bool((group["points"] > 1).any()), bool(group["n"].min() < ENOUGH)
        notes = [FRONT, *[CHOSEN] * chosen, *[FEW] * few, LESS]
        return Table(f"At equal quality: {where}", columns, rows, notes, stub=2)

    def volumes(self, group: pd.DataFrame, where: str) -> Table:
        group = group.fillna({"draft_length": 0})
        added = {
            (row.label, row.draft_length, row.metric): _shown(row, "+.3f")
            for row in group[group["against"].notna()].itertuples(index=False)
        }
        rows = [
            [
                *(row.label, f"{row.draft_length:.0f}" if row.draft_length else "all"),
                *(f"{row.points}", row.metric.rpartition("_")[2], _shown(row, ".3f")),
                added.get((row.label, row.draft_length, row.metric), ""),
            ]
            for row in group[group["against"].isna()].itertuples(index=False)
        ]
        columns = _columns(
            *("method", "N", "points", f"{self.unit} x", "area\n[95 %]", "adds to static's\n[95 %]")
        )
        return Table(f"Hypervolume: {where}", columns, rows, stub=2)

    def _less_than_sd(self, row: Any) -> tuple[str, str]:
        """The differences of a row's setting from plain SD in quality and acceptance."""
        figures = self.from_sd.get(_setting(row), {}) if row.points == 1 else {}
        return (
            _shown(figures.get(c.QUALITY_LESS), "+.1f", self.scale),
            _shown(figures.get(c.ACCEPTANCE_LESS), "+.1f", 100),
        )

    def _less_headings(self) -> tuple[str, str]:
        return f"{self.unit}\nless sd's [95 %]", "accepted / drafted\nless sd's [95 %]"


def _columns(*headings: str) -> list[Column]:
    return list(map(Column, headings))


def _grouped(rows: pd.DataFrame, *keys: str) -> Iterator[_Figures]:
    setting = ["label", "draft_length", "points", *keys]
    for _, group in rows.groupby(setting, sort=False, dropna=False):
        yield {row.metric: row for row in group.itertuples(index=False)}


def _setting(row: Any) -> tuple[str, float]:
    return row.label, row.draft_length


def _length(row: Any) -> str:
    """The draft length of a method, or that chosen of several."""
    length = f"{row.draft_length:.0f}"
    return length if row.points == 1 else f"chosen ({length})"


def _shown(row: Any, form: str, scale: float = 1.0, unit: str = "") -> str:
    """A figure with its interval, where it has them."""
    if row is None:
        return ""
    value, low, high = (scale * number for number in (row.value, row.ci_low, row.ci_high))
    return with_interval(value, low, high, form, unit)
