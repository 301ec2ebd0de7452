"""Readable tables of a comparison: an overview, or one per task and quantity held equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd

from specbench.analysis import comparison as c
from specbench.analysis.intervals import FEWEST
from specbench.analysis.summary import shown_name, shown_scale
from specbench.table import Field, Table, drop_empty, interval_of, number, number_of

CHOSEN = (
    "chosen: N is chosen on one half of the prompts and measured on the other, and vice versa; "
    "the N chosen on all prompts is in brackets."
)
POOLED = "sd's quality is pooled over its draft lengths, which emit the same distribution."
BY_N = (
    "by N alone: share of the method's time saving over sd at the same N that sd also reaches at "
    "its best N."
)
LESS = "Differences from sd are paired by prompt, at the same N."
FRONT = (
    "static front (randomised): the best mixture of static weights, one drawn at random for each "
    "prompt. measured: at the nearest static point of lower acceptance or longer time, without "
    "interpolation."
)
CONTROL = "sharpened front: also includes `sharpened` and `cooled`, controls for sharpening."
AT_ACCEPTANCE = (
    "front's quality: the best mixture of static weights at the method's acceptance (the "
    "randomised static front)."
)
SPEEDS = (
    "tokens/s: method / what it is against; s/sample: the reverse; both include prefill, and above "
    "1 is faster."
)
FEW = (
    "Below 100 prompts the ratio at equal quality is biased downwards if sample scores are 0 or 1, "
    "and its interval may miss the truth more often than 1 time in 20."
)
#: With fewer prompts, ``times_as_fast`` at equal quality is biased downwards if sample scores are 0
#: or 1: an interval of percentiles covered the truth in 76 % of simulated runs of 20 prompts.
ENOUGH = 100


#: One setting of a method: the columns its rows share and, for each metric, ``<metric>``,
#: ``<metric>_low``, ``<metric>_high`` and ``<metric>_reference``.
_Row = dict[str, Any]
_Fields = list[Field[_Row]]
_KEYS = ["run_id", "temperature", "engine", "batch_size", "task"]


def comparison_tables(rows: pd.DataFrame) -> list[Table]:
    """Return one table per task and quantity held equal, in the order of the comparison.

    ``rows`` has the columns ``comparison.COMPARISON``.
    """
    several = rows["run_id"].nunique() > 1
    tables_of_runs = []
    placed = rows[rows["against"] != c.COIN]  # static weights, of which the verdicts tell
    for (run, temperature, _, _, task), comparisons in placed.groupby(_KEYS, sort=False):
        setting = (
            f"{task} on {comparisons['pair'].iloc[0]}, T = {temperature:g}" + f", {run}" * several
        )
        tables = _Tables(task, comparisons)
        makers = {c.OWN: tables.beside_sd, "quality": tables.savings}
        for kind, group in comparisons.groupby("at", sort=False):
            counts = sorted({group["n"].min(), group["n"].max()})
            title = f"{setting}, n = {' to '.join(map(str, counts))}"
            tables_of_runs.append(makers.get(str(kind), tables.above)(group, title))
            tables_of_runs += [tables.texts(group, title)] * (kind == c.OWN)
    return tables_of_runs


def overview(rows: pd.DataFrame) -> Table:
    """Return a table of sd's values and each method's own; the intervals are in the verdicts."""
    shown_rows = rows[(rows["points"] == 1) & rows["against"].isin([c.SD, c.FRONT])]
    shown_rows = shown_rows[shown_rows["at"].isin([c.OWN, "acceptance"])]
    several = [name for name in _KEYS if shown_rows[name].nunique() > 1]
    length = [*shown_rows["draft_length"].unique()]
    title = f"Each method beside sd, N = {length[0]:.0f}" if len(length) == 1 else "Beside sd"
    fields: _Fields = [
        *((name, partial(_text, name)) for name in several),
        *_NAMES[: 1 + (len(length) > 1)],
        ("quality\nsd → own", partial(_change, "quality", ".1f", 0.0)),
        ("accepted\nsd → own", partial(_change, "acceptance", ".0%", 1.0)),
        ("s/sample\nsd → own", partial(_change, "seconds", "#.3g", 1.0)),
        _NOISE,
        ("front's\nquality", _front_quality),
    ]
    stub, settings = len(fields) - 5, merge_metrics(shown_rows, *_KEYS)
    notes = [AT_ACCEPTANCE] * bool((shown_rows["against"] == c.FRONT).any())
    return drop_empty(Table.of(settings, fields, title, notes, stub))


class _Tables:
    """The tables of one task of one run."""

    def __init__(self, task: str, rows: pd.DataFrame) -> None:
        """Store all rows of the task."""
        first = rows["quality_metric"].iloc[0]
        metric = "quality" if pd.isna(first) else str(first)
        self.task, self.unit, self.scale = task, shown_name(metric), shown_scale(metric)
        self.quality: Field[_Row] = (self.unit, number_of("quality", ".1f", self.scale))
        beside_sd = merge_metrics(rows[(rows["at"] == c.OWN) & (rows["against"] == c.SD)])
        self.from_sd = {(row["label"], row["draft_length"]): row for row in beside_sd}

    def beside_sd(self, group: pd.DataFrame, where: str) -> Table:
        share, times = interval_of(c.SHARE, ".0f", 100, " %"), interval_of(c.TIMES, ".2f")
        fields: _Fields = [
            *_NAMES,
            ("against", _against),
            self.quality,
            ("less sd's\n[95 %]", interval_of(c.QUALITY_LESS, "+.1f", self.scale)),
            _ACCEPTANCE,
            ("less sd's\n[95 %]", interval_of(c.ACCEPTANCE_LESS, "+.1f", 100)),
            ("tokens/s,\nratio [95 %]", interval_of(c.TOKENS, ".2f")),
            ("s/sample,\nratio [95 %]", lambda row: times(row) or share(row)),
            _NOISE,
        ]
        # The gain from choosing N alone has its own row, without the repeated columns.
        alone = group["metric"] == c.SHARE
        group = group.assign(alone=alone)
        group.loc[alone | (group["against"] == c.ALONE), ["quality", "acceptance"]] = float("nan")
        settings = merge_metrics(group, "against", "alone")
        notes = [SPEEDS, LESS, *filter(None, map(self.length_note, settings))]
        notes += [CHOSEN, POOLED] * (c.SD_CHOSEN in set(group["against"]))
        notes += [BY_N] * bool(alone.any())
        beside = " and no speculation" * (c.ALONE in set(group["against"]))
        title = f"Against sd{beside}, each at its own quality: {where}"
        return drop_empty(Table.of(settings, fields, title, notes, stub=3))

    def texts(self, group: pd.DataFrame, where: str) -> Table:
        """Return what a method changes about texts, for settings at a fixed N."""
        fields: _Fields = [
            *_NAMES,
            (self.unit, interval_of(c.QUALITY_LESS, "+.1f", self.scale)),
            ("of completed", interval_of(c.COMPLETED_LESS, "+.1f", self.scale)),
            ("tokens, ratio", interval_of(c.LENGTH, ".2f")),
            ("ended by limit", interval_of(c.AT_LIMIT_LESS, "+.1f", 100)),
            ("repeated 4-grams", interval_of(c.REPETITION_LESS, "+.1f", 100)),
        ]
        settings = merge_metrics(group[group["against"] == c.SD])
        return drop_empty(Table.of(settings, fields, f"Texts less sd's: {where}", [LESS], stub=2))

    def above(self, group: pd.DataFrame, where: str) -> Table:
        kind = group["at"].iloc[0]
        fields: _Fields = [
            *_NAMES,
            ("front", lambda row: row["against"].partition(" ")[0]),
            _ACCEPTANCE if kind == "acceptance" else _SECONDS,
            self.quality,
            ("front,\nrandomised", number_of(f"{c.ABOVE}_reference", ".1f", self.scale)),
            ("above it\n[95 %]", interval_of(c.ABOVE, "+.1f", self.scale)),
            ("front,\nmeasured", number_of(f"{c.ABOVE_MEASURED}_reference", ".1f", self.scale)),
            ("above measured\n[95 %]", interval_of(c.ABOVE_MEASURED, "+.1f", self.scale)),
            ("between", lambda row: row["between"]),
            *self.less_than_sd(),
        ]
        fronts = set(group["against"])
        notes = [FRONT] * (c.FRONT in fronts) + [CONTROL] * (c.CONTROL in fronts) + [LESS]
        settings, title = merge_metrics(group, "against"), f"At equal {kind}: {where}"
        return Table.of(settings, fields, title, notes, stub=3)

    def savings(self, group: pd.DataFrame, where: str) -> Table:
        fields: _Fields = [
            *_NAMES,
            self.quality,
            ("front's,\nrandomised", number_of("against_quality", ".1f", self.scale)),
            _SECONDS,
            ("front's s/sample\n/ own [95 %]", interval_of(c.TIMES, ".2f")),
            _NOISE,
            *self.less_than_sd(),
        ]
        chosen, few = bool((group["points"] > 1).any()), bool(group["n"].min() < ENOUGH)
        notes = [FRONT, *[CHOSEN] * chosen, *[FEW] * few, LESS]
        title = f"At equal quality: {where}"
        return drop_empty(Table.of(merge_metrics(group), fields, title, notes, stub=2))

    def less_than_sd(self) -> Iterator[Field[_Row]]:
        """Yield the differences from plain SD, for settings at a fixed N."""
        for name, metric, scale in (
            (self.unit, c.QUALITY_LESS, self.scale),
            ("accepted / drafted", c.ACCEPTANCE_LESS, 100.0),
        ):
            cell = partial(self._versus_sd, interval_of(metric, "+.1f", scale))
            yield f"{name}\nless sd's [95 %]", cell

    def _versus_sd(self, show: Callable[[_Row], str], row: _Row) -> str:
        beside_sd = self.from_sd.get((row["label"], row["draft_length"]), {})
        return show(beside_sd) if row["points"] == 1 else ""

    def length_note(self, row: _Row) -> str:
        """Return a note if the method's texts and sd's differ in length."""
        if c.LENGTH not in row or row[f"{c.LENGTH}_low"] <= 1 <= row[f"{c.LENGTH}_high"]:
            return ""
        return (
            f"{row['label']}, {self.task}: {interval_of(c.LENGTH, '.2f')(row)} times as many "
            "tokens per sample as sd, so tokens/s and s/sample differ."
        )


def merge_metrics(rows: pd.DataFrame, *keys: str) -> list[_Row]:
    """Merge the rows of each setting; ``keys`` distinguish settings further."""
    ends = {"": "value", "_low": "ci_low", "_high": "ci_high", "_reference": "reference"}
    groups = rows.groupby(["label", "draft_length", "points", *keys], sort=False, dropna=False)
    merged = []
    for _, group in groups:
        records: list[Any] = group.to_dict("records")
        figures = {row["metric"] + end: row[of] for row in records for end, of in ends.items()}
        merged.append(records[0] | figures | {"noise": group["noise"].max()})
    return merged


def _length(row: _Row) -> str:
    """Return the draft length of a method, marked if chosen from several."""
    length = f"{row['draft_length']:.0f}"
    return length if row["points"] == 1 else f"chosen ({length})"


def _against(row: _Row) -> str:
    if row["alone"]:
        return "by N alone"
    if row["against"] == c.ALONE:
        return "no speculation"
    length = f"{row['against_draft_length']:.0f}"
    return f"sd, N = {length}" if row["against"] == c.SD else f"sd, chosen ({length})"


def _noise(row: _Row) -> str:
    noise = row["noise"]
    return f"{1 / noise:.2f} to {noise:.2f}" if noise == noise else ""


def _text(name: str, row: _Row) -> str:
    return str(row[name])


def _change(name: str, form: str, scale: float, row: _Row) -> str:
    """Return sd's value of a column, at the same N, and the method's own."""
    if name == "seconds" and row["batch_size"] > 1 and not row["blocks"] >= FEWEST:
        return ""  # texts share their time
    before = {
        "quality": row["against_quality"],
        "acceptance": row["acceptance"] - row.get(c.ACCEPTANCE_LESS, math.nan),
        "seconds": row["reference"],
    }
    ends = [number((scale or _scale(row)) * value, form) for value in (before[name], row[name])]
    return (
        " → ".join([ends[0].removesuffix("%"), ends[1]])
        if row["against"] == c.SD and all(ends)
        else ends[1]
    )


def _front_quality(row: _Row) -> str:
    return number(_scale(row) * row.get(f"{c.ABOVE}_reference", math.nan), ".1f")


def _scale(row: _Row) -> float:
    return shown_scale(str(row["quality_metric"]))


_NAMES: _Fields = [("method", lambda row: row["label"]), ("N", _length)]
_NOISE: Field[_Row] = ("sd's s/sample\n/ sd's again", _noise)
_ACCEPTANCE: Field[_Row] = ("accepted /\ndrafted", number_of("acceptance", ".1%"))
_SECONDS: Field[_Row] = ("s/sample", number_of("seconds", ".4f"))
