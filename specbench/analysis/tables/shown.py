"""The figures that tables, pages and plots show: heading, unit, scale and format of each, once.

A figure is a column of a data frame, with its 95 % interval in ``<name>_low`` and ``<name>_high``.
Its functions take a row of such a frame and return text; a figure that is unknown is blank.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from specbench.analysis.tables.table import Field, TableCell, between, number, with_interval
from specbench.runs.tables import dictionary
from specbench.tasks.metrics import shown_metric

Row = Mapping[Any, Any]

ENDS = ("", "_low", "_high")  # column suffixes of a value and of the ends of its interval
PHASES = ("inside_share", "accepted_inside", "accepted_outside")  # of cells with `--inside`
SCORE = "score"  # the unit of figures that have the scale of the task's quality metric
_HEADING_WIDTH = 12  # characters of a column's heading
_INTERVAL = "[95\N{NO-BREAK SPACE}%]"


def temperature_text(temperature: float) -> str:
    """Return a temperature as in titles."""
    return f"T = {temperature:g}"


def setting_text(row: Row, several: Iterable[str] = ()) -> str:
    """Return task, pair and temperature as in titles, and columns that have several values."""
    parts = [f"{row['task']} on {row['pair']}", temperature_text(row["temperature"])]
    parts += [f"batch {row[name]}" if name == "batch_size" else row[name] for name in several]
    return ", ".join(parts)


def span(counts: Iterable[float]) -> str:
    """Return the smallest and the largest of some counts: ``40``, or ``40 to 50``."""
    ends = sorted({*counts})
    return " to ".join(f"{count:.0f}" for count in dict.fromkeys([*ends[:1], *ends[-1:]]))


class ShownFigure(NamedTuple):
    """A figure as it is shown: ``scale`` times its value in the format ``form``, in ``unit``."""

    name: str  # of its column
    heading: str
    unit: str = ""
    scale: float = 1.0
    form: str = ".1f"
    abbreviation: str = ""  # of the heading, for tables with many columns

    def scaled(self, row: Row) -> tuple[float, float, float]:
        """Return the value and the ends of its interval in the unit shown; NaN if unknown."""
        value, low, high = (self.scale * row.get(self.name + end, math.nan) for end in ENDS)
        return value, low, high

    def number(self, row: Row) -> str:
        """Return the value without its unit, which the heading of a column has."""
        return between(self._least(row), self.scaled(row)[0], self.form)

    def interval(self, row: Row) -> str:
        """Return the value with its interval: ``36.4 [32.2, 41.1]``."""
        return with_interval(*self.scaled(row), self.form, least=self._least(row))

    def _least(self, row: Row) -> float:
        """Return the smaller end of a lead, see ``statistics.lead``; NaN for others."""
        return self.scale * float(row.get(f"{self.name}_least", math.nan))

    def with_unit(self, row: Row) -> str:
        """Return the value with its unit and its interval: ``0.123 s [0.110, 0.136]``."""
        unit, least = self.unit and f" {self.unit}", self._least(row)
        return with_interval(*self.scaled(row), self.form, unit, least)

    def estimate(self, value: float, low: float, high: float, least: float = math.nan) -> str:
        """Return an estimate of the figure, not yet scaled, with its unit and interval."""
        ends = zip((*ENDS, "_least"), (value, low, high, least), strict=True)
        return self.with_unit({self.name + end: limit for end, limit in ends})

    def cell(self, row: Row) -> TableCell:
        """Return the value above its interval."""
        value, *ends = (number(end, self.form) for end in self.scaled(row))
        return TableCell(value, f"[{', '.join(ends)}]" if value and all(ends) else "")

    @property
    def column(self) -> Field[Row]:
        """A column of values."""
        return self.narrow, self.number

    @property
    def column_with_interval(self) -> Field[Row]:
        """A column of values with their intervals."""
        lines = textwrap.fill(f"{self._with_unit} {_INTERVAL}", _HEADING_WIDTH)
        return lines.replace("\N{NO-BREAK SPACE}", " "), self.interval

    @property
    def narrow(self) -> str:
        """The heading with its unit, in short lines, for a column of a table."""
        return textwrap.fill(self._with_unit, _HEADING_WIDTH)

    @property
    def _with_unit(self) -> str:
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    @property
    def label(self) -> str:
        """The heading with its unit, for an axis: ``Accepted / drafted (%)``."""
        unit = self.unit or ("×100" if self.scale == 100 else "")
        return f"{self.heading[:1].upper()}{self.heading[1:]}" + (f" ({unit})" if unit else "")

    def less(self) -> ShownFigure:
        """Return the figure's difference from that of ``sd``."""
        return self._replace(name=f"{self.name}_less", heading="minus sd", unit="", form="+.1f")


def _by_name(*figures: ShownFigure) -> dict[str, ShownFigure]:
    return {figure.name: figure for figure in figures}


#: Figures that only some runs have.
_FURTHER = _by_name(
    *(ShownFigure(column.name, column.heading) for column in dictionary() if column.heading),
    ShownFigure("inside_share", "inside / output tokens", "%", 100),
    ShownFigure("accepted_inside", "accepted / drafted inside", "%", 100),
    ShownFigure("accepted_outside", "accepted / drafted outside", "%", 100),
)
_FIGURES = _FURTHER | _by_name(
    ShownFigure("quality", "", SCORE),
    ShownFigure("completed_quality", "quality of completed", SCORE),
    ShownFigure(
        *("draft_acceptance_rate", "accepted / drafted", "%", 100),
        abbreviation="acc. /\ndrafted",
    ),
    ShownFigure("draft_acceptance_rate_sample_mean", "accepted / drafted, mean of texts", "%", 100),
    ShownFigure("conditional_acceptance_rate", "accepted / judged", "%", 100),
    ShownFigure("acceptance_length", "tokens / round", form=".2f"),
    ShownFigure("seconds_per_sample", "time per sample", "s", form="3s"),
    ShownFigure("tokens_per_second", "tokens/s", form="3s"),
    ShownFigure("speedup", "tokens/s / AR's", "×", form=".2f", abbreviation="tok/s\n/ AR"),
    ShownFigure("round_seconds", "time per round", "ms", 1000, "3s"),
    ShownFigure("prefill_seconds", "prefill", "ms", 1000, "3s"),
    ShownFigure("output_tokens", "output tokens"),
    ShownFigure("rounds", "rounds"),
    ShownFigure("length_limit_rate", "ended by limit", "%", 100),
    ShownFigure("repetition", "repeated 4-grams", "%", 100),
    # Of a comparison, see ``analysis.statistics.estimates``.
    ShownFigure("acceptance", "accepted / drafted", "%", 100),
    ShownFigure("seconds", "s/sample", form="3s"),
    ShownFigure("quality_difference", "minus sd", SCORE, form="+.1f"),
    ShownFigure("completed_quality_difference", "quality of completed", SCORE, form="+.1f"),
    ShownFigure("acceptance_difference", "minus sd", "", 100, "+.1f"),
    ShownFigure("length_limit_difference", "ended by limit", "", 100, "+.1f"),
    ShownFigure("repetition_difference", "repeated 4-grams", "", 100, "+.1f"),
    ShownFigure("length_ratio", "tokens, ratio", form=".2f"),
    ShownFigure("times_as_fast", "samples/s, ratio", form=".2f"),
    ShownFigure("times_tokens_per_second", "tokens/s, ratio", form=".2f"),
    ShownFigure("share_of_gain", "by N alone", "%", 100, ".0f"),
    ShownFigure("equal_samples", "equal samples", "%", 100, ".0f"),
    ShownFigure("quality_above", "above it", SCORE, form="+.1f"),
    ShownFigure("quality_above_measured", "above measured", SCORE, form="+.1f"),
)


def shown_score(metric: str) -> ShownFigure:
    """Return how a quality metric is shown, also one of the user's own with a figure's name."""
    if metric in _FURTHER:
        return _FURTHER[metric]
    heading, scale = shown_metric(metric)
    return ShownFigure(metric, heading, "", scale)


def shown(name: str, metric: object = "") -> ShownFigure:
    """Return how a figure is shown: a score by a metric's scale, or another name as a metric."""
    figure = _FIGURES.get(name)
    if figure is None:
        return shown_score(name)
    if figure.unit != SCORE:
        return figure
    heading, scale = shown_metric(metric)
    return figure._replace(heading=figure.heading or heading or name, unit="", scale=scale)
