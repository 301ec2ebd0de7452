"""Summary tables: a row per cell, a table per task and setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specbench.analysis.scores import shown_name, shown_scale
from specbench.metrics import METRICS
from specbench.report.cells import Cell, distinct, scale, setting


class Field(NamedTuple):
    """A value; below it, in small, its interval or run; and what it is sorted by."""

    text: str
    below: str = ""
    order: str = ""


class Table(NamedTuple):
    """A table with its caption; each column has a name and a unit."""

    caption: str
    columns: list[tuple[str, str]]
    rows: list[list[Field]]


class _Column(NamedTuple):
    metric: str
    name: str
    unit: str
    form: str
    scale: float = 1.0


_COLUMNS = (
    _Column("draft_acceptance_rate", "accepted / drafted", "%, pooled", ".1f", 100),
    _Column(
        "draft_acceptance_rate_sample_mean", "accepted / drafted", "%, mean of samples", ".1f", 100
    ),
    _Column("acceptance_length", "tokens / round", "pooled", ".2f"),
    _Column("seconds_per_sample", "time / sample", "s", "#.3g"),
    _Column("tokens_per_second", "tokens/s", "", "#.4g"),
    _Column("speedup", "tokens/s over autoregressive's", "×", ".2f"),
    _Column("output_tokens", "output", "tokens", ".1f"),
    _Column("rounds", "rounds", "", ".1f"),
    _Column("length_limit_rate", "length limit", "% at it", ".1f", 100),
)


def summary_tables(cells: Sequence[Cell], further: Sequence[str]) -> list[Table]:
    """Return the tables of all cells, in the order of tasks.

    Args:
        cells: All that the report shows.
        further: Metrics beside quality.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell["task"], setting(cell, cells)), []).append(cell)
    several = len(distinct(cells, "run_id")) > 1
    return [
        _table(f"{task} on {where}", mine, further, several)
        for (task, where), mine in groups.items()
    ]


def _table(title: str, cells: Sequence[Cell], further: Sequence[str], several: bool) -> Table:
    columns = [c for c in _columns(cells[0], further) if any(_known(cell, c) for cell in cells)]
    counts = {cell["n"] for cell in cells} - {0}
    prompts = (
        "" if not counts else f", {' to '.join(f'{n}' for n in sorted(_ends(counts)))} prompts"
    )
    names = [("method", ""), ("N", ""), *((c.name, c.unit) for c in columns)]
    rows = [
        [
            Field(cell["label"], cell["run_id"] if several else "", cell["label"]),
            Field(str(cell["draft_length"] or ""), order=str(cell["draft_length"])),
            *(_field(cell, column) for column in columns),
        ]
        for cell in cells
    ]
    return Table(title + prompts, names, rows)


def _columns(cell: Cell, further: Sequence[str]) -> Iterator[_Column]:
    metric = METRICS.get(cell["quality_metric"])
    yield _Column("quality", metric.unit if metric else "quality", "", ".1f", scale(cell))
    yield from _COLUMNS
    for name in further:
        yield _Column(name, shown_name(name), "", ".1f", shown_scale(name))


def _known(cell: Cell, column: _Column) -> bool:
    value = cell[column.metric]
    return bool(value == value)


def _field(cell: Cell, column: _Column) -> Field:
    if not _known(cell, column):
        return Field("")
    value, low, high = (column.scale * cell[column.metric + end] for end in ("", "_low", "_high"))
    text, *ends = (f"{number:{column.form}}".rstrip(".") for number in (value, low, high))
    return Field(text, "" if low != low else " to ".join(ends), f"{value:.6g}")


def _ends(counts: set[int]) -> set[int]:
    return {min(counts), max(counts)}
