"""The main table as a grid: which rows and columns there are, and what fits a page.

A width is in characters, of which every format has about as many to a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from specbench.analysis.best import ACCEPTANCE, QUALITY, SPEEDUP
from specbench.analysis.published import REFERENCE, remarks
from specbench.analysis.scores import shown_name
from specbench.analysis.table import FIGURES, SECTION
from specbench.engine.settings import EAGER

PAPER, DIFFERENCE = "paper", "diff"
GAP, TASK_GAP = "  ", "   "  # between columns, and between tasks

_TWO_DECIMALS = ("rouge", "bleu", SPEEDUP)  # others have one, as shares of a few hundred prompts


class Entry(NamedTuple):
    """A number of the table as text, its interval where that is shown, and whether it is best."""

    text: str = ""
    interval: str = ""
    best: bool = False


class Column(NamedTuple):
    """One's own numbers for a figure of a task, or what stands beside them.

    Attributes:
        figure: One of ``table.FIGURES``.
        name: What the figure is called.
        beside: ``PAPER`` or ``DIFFERENCE``; blank for one's own.
        entries: One for each row of the table.
    """

    figure: str
    name: str
    beside: str
    entries: list[Entry]

    @property
    def heading(self) -> str:
        """What stands right above it."""
        return self.beside or self.name


@dataclass(frozen=True)
class Section:
    """One table.

    Attributes:
        key: A name of its own.
        title: What all of it shares.
        stub: Headings of what names a row: the method, and the run where several runs hold the
            same method on the same task.
        names: These names, row by row.
        tasks: Columns by task.
        remarks: What is to be said of this table alone, a sentence each.
    """

    key: str
    title: str
    stub: list[str]
    names: list[list[str]]
    tasks: dict[str, list[Column]]
    remarks: list[str]

    @property
    def columns(self) -> list[Column]:
        """The columns of all tasks."""
        return [column for columns in self.tasks.values() for column in columns]

    @property
    def has_intervals(self) -> bool:
        """True where any of its numbers shows one."""
        return any(entry.interval for column in self.columns for entry in column.entries)

    def filled(self) -> set[int]:
        """Return which rows have a number."""
        entries = (enumerate(column.entries) for column in self.columns)
        return {at for column in entries for at, entry in column if entry.text}

    def stub_widths(self) -> list[int]:
        """Return the width of each column of names."""
        return [max(map(len, column)) for column in zip(self.stub, *self.names, strict=True)]

    def width(self) -> int:
        """Return the characters of a line."""
        names = sum(self.stub_widths()) + len(GAP) * len(self.stub)
        spans = [span(task, widths(columns)) for task, columns in self.tasks.items()]
        return names + sum(spans) + len(TASK_GAP) * (len(spans) - 1)


def sections(table: pd.DataFrame, intervals: bool) -> list[Section]:
    """Return the tables of a main table, in their order.

    Args:
        table: The main table, perhaps with published numbers.
        intervals: Whether to show them.
    """
    return [_section(rows, intervals) for _, rows in table.groupby(SECTION, sort=False)]


def caption(shown: Sequence[Section], mark: str) -> str:
    """Say what the figures of some tables are and which are marked.

    Args:
        shown: The tables.
        mark: How the best are marked, as in ``Bold``.
    """
    columns = [column for section in shown for column in section.columns]
    figures = {column.figure for column in columns}
    explained = {
        ACCEPTANCE: "acc/drafted: accepted over drafted tokens, in %.",
        QUALITY: "Quality: times 100.",
        SPEEDUP: "tok/s/AR: tokens/s, with prefill, over autoregressive's, paired by prompt.",
    }
    said = [explained[figure] for figure in FIGURES if figure in figures]
    if any(entry.best for column in columns for entry in column.entries):
        names = {ACCEPTANCE: "acceptance", SPEEDUP: "tokens/s"}
        others = " and ".join(name for figure, name in names.items() if figure in figures)
        same = f"; of {others} the same, among methods of such quality" if others else ""
        best = (
            "the highest quality, and any where the paired 95 % interval of the difference to it "
            "includes 0"
        )
        said.append(f"{mark}: {best}{same}.")
    if any(section.has_intervals for section in shown):
        said.append("Brackets: 95 % intervals over prompts.")
    if any(column.beside for column in columns):
        said.append(
            f"{PAPER}: {REFERENCE}, 100 prompts per task, without intervals; whatever its w, l and "
            "deferral rule were, every setting of a method meets its one number. "
            f"{DIFFERENCE}: own minus {PAPER}."
        )
    return " ".join(said)


def blocks(section: Section, width: int) -> Iterator[Section]:
    """Cut a table into parts that fit the width, each of at least one task.

    A part leaves out the rows that have numbers in other parts only.
    """
    block = replace(section, tasks={})
    for task, columns in section.tasks.items():
        wider = replace(block, tasks=block.tasks | {task: columns})
        if block.tasks and wider.width() > width:
            yield _without_blanks(block, section)
            wider = replace(block, tasks={task: columns})
        block = wider
    yield _without_blanks(block, section)


def _without_blanks(block: Section, section: Section) -> Section:
    mine, all_of_it = block.filled(), section.filled()
    kept = [at for at in range(len(block.names)) if at in mine or at not in all_of_it]
    return replace(
        block,
        names=[block.names[at] for at in kept],
        tasks={
            task: [c._replace(entries=[c.entries[at] for at in kept]) for c in columns]
            for task, columns in block.tasks.items()
        },
    )


def widths(columns: Sequence[Column]) -> list[int]:
    """Return the width of each column: its heading, its numbers with a mark, its intervals."""
    return [
        max(
            len(column.heading),
            *(max(len(entry.text) + 1, len(entry.interval)) for entry in column.entries),
        )
        for column in columns
    ]


def span(task: str, columns: Sequence[int]) -> int:
    """Return the width of a task above columns of these widths."""
    return max(len(task), sum(columns) + len(GAP) * (len(columns) - 1))


def _section(rows: pd.DataFrame, intervals: bool) -> Section:
    several = rows.duplicated(["label", "task", "figure", "metric"]).any()
    stub = {"method": "label", "run": "run_id"} if several else {"method": "label"}
    rows = rows.assign(name=list(zip(*(rows[name] for name in stub.values()), strict=True)))
    names = list(rows["name"].unique())
    tasks: dict[str, list[Column]] = {task: [] for task in rows["task"].unique()}
    for task, cells in _cells(rows):
        place = {name: at for at, name in enumerate(cells["name"])}
        for column in _columns(cells, intervals):
            found = [column.entries[place[n]] if n in place else Entry() for n in names]
            tasks[task].append(column._replace(entries=found))
    return Section(
        "-".join(map(str, rows[SECTION].iloc[0])),
        _title(rows),
        list(stub),
        [list(name) for name in names],
        {task: columns for task, columns in tasks.items() if columns},
        remarks(rows) if "published" in rows else [],
    )


def _cells(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each column that holds something: one of a task, a figure and a metric."""
    for figure in FIGURES:
        mine = rows[rows["figure"] == figure]
        for (task, _), cells in mine.groupby(["task", "metric"], sort=False):
            if cells["value"].notna().any():
                yield task, cells


def _columns(cells: pd.DataFrame, intervals: bool) -> Iterator[Column]:
    """One column, or three with the published numbers and the differences."""
    figure, metric = cells["figure"].iloc[0], cells["metric"].iloc[0]
    digits = 2 if metric.startswith(_TWO_DECIMALS) else 1
    own = zip(*(cells[n] for n in ("value", "ci_low", "ci_high", "best")), strict=True)
    name = _name(figure, metric)
    yield Column(
        figure,
        name,
        "",
        [
            Entry(_number(value, digits), _interval(low, high, digits) if intervals else "", best)
            for value, low, high, best in own
        ],
    )
    if "published" in cells and cells["published"].notna().any():
        for beside, source, sign in ((PAPER, "published", ""), (DIFFERENCE, "difference", "+")):
            entries = [Entry(_number(value, digits, sign)) for value in cells[source]]
            yield Column(figure, name, beside, entries)


def _name(figure: str, metric: str) -> str:
    if figure == QUALITY:
        return shown_name(metric).replace(" of 32 words", "-32") or QUALITY
    return {ACCEPTANCE: "acc/drafted", SPEEDUP: "tok/s/AR"}[figure]


def _number(value: float, digits: int, sign: str = "") -> str:
    return "" if value != value else f"{value:{sign}z.{digits}f}"


def _interval(low: float, high: float, digits: int) -> str:
    return "" if low != low else f"[{low:.{digits}f}, {high:.{digits}f}]"


def _title(rows: pd.DataFrame) -> str:
    pair, temperature, length, engine, batch = rows[SECTION].iloc[0]
    prompts = rows.groupby(["run_id", "task", "label"])["n"].max()
    fewest, most = prompts.min(), prompts.max()
    said = [
        f"Pair {pair}",
        f"T = {temperature:g}",
        f"N = {length}" if length else "nothing drafted",
    ]
    said += [] if engine == EAGER else [f"engine {engine}"]
    said += [] if batch == 1 else [f"batches of {batch}"]
    counts = f"{most}" if fewest == most else f"{fewest} to {most}"
    said.append(f"{counts} prompt{'s' if most > 1 else ''} per task")
    scored = rows[(rows["figure"] == QUALITY) & rows["value"].notna()]["n"]
    said += [f"quality of {scored.min()} of them"] if scored.min() < fewest else []
    return ", ".join(said)
