"""Tables for reading, rendered as text or Markdown; ``latex`` and ``html`` render them, too.

The first columns of a table, its stub, name the rows. A group heading can span several columns.
Cells are strings, formatted by ``number`` and ``with_interval``.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from rich.cells import cell_len

if TYPE_CHECKING:
    import pandas as pd

Record = TypeVar("Record")

GAP = "  "  # between columns
MARKDOWN_WIDTH = 160  # wider tables need horizontal scrolling
_NAMED = 12  # characters that a name may be longer than a text beside it
WIDE = 120  # characters of a terminal from which all columns are shown

_LEVEL = re.compile(r"\s\[95 %\]")  # in a heading, of the intervals below it
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a spreadsheet's formula begins


class TableCell(NamedTuple):
    """A text of one or more lines, an interval shown below it, and whether it is the best."""

    text: str = ""
    interval: str = ""
    best: bool = False


class Column(NamedTuple):
    """A column; left-aligned text wraps if the column is too narrow."""

    heading: str  # may have several lines
    group: str = ""  # heading shared by adjacent columns, which are never separated
    align: Literal["left", "right"] = "right"
    further: bool = False  # not shown on a terminal of fewer characters than ``WIDE``
    legend: str = ""  # a note that explains the column, wherever it is shown

    @property
    def whole_heading(self) -> str:
        """The heading below that of its group, for tables without headings of groups."""
        return f"{self.group}\n{self.heading}" if self.group else self.heading


#: A column, and a function that formats its cell from a record. Each row shows one record.
Field = tuple[str | Column, Callable[[Record], str | TableCell]]


@dataclass(frozen=True)
class Table:
    """A table with a string or ``TableCell`` for every row and column."""

    title: str  # its second line, if any, has what all rows share
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | TableCell]]
    notes: Sequence[str] = ()  # explanations of the numbers, one sentence each
    stub: int = 1  # number of leftmost columns that name the row; always left-aligned

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        fields: Iterable[Field[Record]],
        title: str = "",
        notes: Sequence[str] = (),
        stub: int = 1,
    ) -> Table:
        """Build a table with one row per record; a column without intervals names no level."""
        headings, cells = zip(*fields, strict=True)
        columns = [Column(name) if isinstance(name, str) else name for name in headings]
        rows = [[cell(record) for cell in cells] for record in records]
        for index, column in enumerate(columns):
            if not any("[" in "".join(cell_of(row[index])[:2]) for row in rows):
                columns[index] = column._replace(heading=_LEVEL.sub("", column.heading))
        return cls(title, columns, rows, notes, stub)

    @property
    def explanations(self) -> list[str]:
        """The legends of the columns, and the notes."""
        return [*(column.legend for column in self.columns if column.legend), *self.notes]

    @property
    def groups(self) -> list[list[int]]:
        """The indices of the columns after the stub, by group."""
        indices = range(self.stub, len(self.columns))
        return [[*group] for _, group in groupby(indices, lambda i: self.columns[i].group or i)]

    def wraps(self, index: int) -> bool:
        """Return whether the text of a column wraps."""
        return index < self.stub or self.columns[index].align == "left"


def number(value: float | None, form: str) -> str:
    """Format a number: blank for None and NaN, without a sign if it rounds to 0.

    The format ``3s`` has three significant digits, and never an exponent.
    """
    if value is None or value != value:
        return ""
    if form == "3s":
        exponent = int(f"{value:.2e}".partition("e")[2])
        form = f".{max(0, 2 - exponent)}f"
    text = f"{value:{form}}"
    return text.lstrip("+-") if not text.strip("+-0.,") else text


def between(least: float, value: float, form: str) -> str:
    """Format a number, or two of which the first is known and differs: ``3.4 to 4.2``."""
    text, lower = number(value, form), number(least, form)
    return f"{lower} to {text}" if lower and lower != text else text


def percent(share: float | None, form: str = ".0f") -> str:
    """Format a share in per cent: ``36 %``; blank for None and NaN."""
    text = number(None if share is None else 100 * share, form)
    return text and f"{text} %"


def with_interval(
    value: float, low: float, high: float, form: str, unit: str = "", least: float = math.nan
) -> str:
    """Format a number followed by its interval, if it has one: ``1.2 [1.0, 1.4]``.

    A lead has two values, the second of which is at least the first: ``0.9 to 1.2 [1.0, 1.4]``.
    """
    text, ends = between(least, value, form), [number(low, form), number(high, form)]
    interval = f" [{', '.join(ends)}]" if all([text, *ends]) else ""
    return f"{text}{unit}{interval}" if text else ""


def cell_at(
    key: object, show: Callable[[Any], str | TableCell]
) -> Callable[[tuple[Any, Mapping[Any, Any]]], TableCell]:
    """Return a function that shows the value at a key of a record ``(name, values by key)``."""
    return lambda record: cell_of(show(record[1][key])) if key in record[1] else TableCell()


def also(field: Field[Record], legend: str = "") -> Field[Record]:
    """Return a field whose column wide terminals and files show, with its legend."""
    column, show = field
    column = Column(column) if isinstance(column, str) else column
    return column._replace(further=True, legend=legend), show


def condensed(table: Table) -> Table:
    """Return a table without empty columns, except the stub's, and without those of one value.

    The title's second line has the count or the part of a name that a column has in all rows.
    """
    shared, shown = [], [0]
    for index, column in list(enumerate(table.columns))[1:]:
        first, *others = {cell_of(row[index]) for row in table.rows} or {TableCell()}
        names = index < table.stub or (first.text.isdigit() and not column.group)
        if first.text and not others and len(table.rows) > 1 and names:
            shared.append(" ".join([*column.whole_heading.split(), first.text]))
        elif others or first.text or index < table.stub:
            shown.append(index)
    title = f"{table.title}\nin all rows: {', '.join(shared)}" if shared else table.title
    part = _part(table, shown)
    return replace(part, title=title, stub=sum(index < table.stub for index in shown))


def with_notes(tables: Iterable[Table], notes: Sequence[str]) -> list[Table]:
    """Return tables with further notes below them."""
    return [replace(table, notes=[*table.notes, *notes]) for table in tables]


def notes_once(tables: Sequence[Table]) -> list[tuple[Table, list[str]]]:
    """Return each table with the notes below it: one that several share, below the last of them."""
    last = {text: i for i, table in enumerate(tables) for text in table.explanations}
    return [
        (table, [text for text in dict.fromkeys(table.explanations) if last[text] == i])
        for i, table in enumerate(tables)
    ]


def to_text(*tables: Table, width: int) -> str:
    """Render tables as plain text; the best numbers have a star.

    Columns that do not fit the width continue further down, with the stub repeated; those that are
    ``further`` need a wide terminal. A note shared by several tables appears once, below the last.
    """
    names = dict.fromkeys(c.group or c.heading for t in tables for c in t.columns if c.further)
    if names and width < WIDE:
        hint = f"From {WIDE} columns on also: {', '.join(names).rstrip('?')}."
        narrow = [[i for i, c in enumerate(table.columns) if not c.further] for table in tables]
        tables = (*with_notes(map(_part, tables, narrow), [hint]),)

    def body(table: Table) -> str:
        parts = ("\n".join(_text_lines(part, width)) for part in split(table, width))
        title = (textwrap.fill(line, width) for line in table.title.split("\n"))
        return "\n".join([*title, ""]).lstrip() + "\n\n".join(parts)

    return _joined(tables, body, lambda note: textwrap.fill(note, width), "\n")


def to_markdown(*tables: Table) -> str:
    """Render tables as Markdown; the best numbers are bold. Notes are as in ``to_text``."""

    def body(table: Table) -> str:
        title = [f"{markdown_line('; '.join(table.title.splitlines()))}."] if table.title else []
        return "\n\n".join([*title, *map(part_lines, split(table, MARKDOWN_WIDTH))])

    def part_lines(part: Table) -> str:
        rule = ("---" if part.wraps(i) else "--:" for i in range(len(part.columns)))
        groups = (", ".join(filter(None, [c.group, c.heading])) for c in part.columns)
        headings = (_plain(" ".join(name.split())) for name in groups)
        rows = ([cell_text(cell_of(cell)) for cell in row] for row in part.rows)
        lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
        return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])

    def cell_text(cell: TableCell) -> str:
        text = _plain(cell.text).replace("\n", "<br>")
        return "<br>".join(filter(None, [f"**{text}**" if cell.best else text, cell.interval]))

    return _joined(tables, body, markdown_line, "\n\n")


def to_csv(rows: pd.DataFrame, form: str | Callable[[float], str] | None = None) -> str:
    """Return rows as CSV, in which no text is a spreadsheet's formula; ``form`` is of numbers."""
    texts = {
        name: [_inert(value) for value in rows[name]]
        for name in rows.select_dtypes(exclude="number")
    }
    inert = rows.assign(**texts).rename(columns=_inert)
    return str(inert.to_csv(index=False, float_format=form))


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def cell_of(cell: str | TableCell) -> TableCell:
    """Return a cell of a table, which may be a text alone."""
    return TableCell(cell) if isinstance(cell, str) else cell


def _joined(
    tables: Sequence[Table], body: Callable[[Table], str], note: Callable[[str], str], between: str
) -> str:
    parts = []
    for table, notes in notes_once(tables):
        parts += [body(table), *([between.join(map(note, notes))] if notes else [])]
    return "\n\n".join(parts) + "\n"


def _part(table: Table, indices: Sequence[int]) -> Table:
    """Return some columns of a table, without rows whose values are all in other columns."""

    def holds(row: Sequence[str | TableCell], indices: Sequence[int]) -> bool:
        return any(cell_of(row[i]).text for i in indices)

    values = range(table.stub, len(table.columns))
    rows = [r for r in table.rows if holds(r, indices[table.stub :]) or not holds(r, values)]
    cells = [[row[i] for i in indices] for row in rows]
    return replace(table, columns=[table.columns[i] for i in indices], rows=cells)


def split(table: Table, width: int, wrapped: bool = True) -> Iterator[Table]:
    """Split a table into parts that fit a width, each with the stub and at least one group.

    Texts may be ``wrapped``.
    """
    least, natural = _widths(table, [_lines(table, i) for i in range(len(table.columns))])
    needed = natural[: table.stub] + (least if wrapped else natural)[table.stub :]
    stub = list(range(table.stub))
    part = stub
    for group in table.groups:
        if part != stub and _span(needed[i] for i in part + group) > width:
            yield _part(table, part)
            part = stub
        part = part + group
    yield _part(table, part)


def _widths(table: Table, cells: Sequence[list[list[str]]]) -> tuple[list[int], list[int]]:
    """Return the minimum width of each column, with wrapping, and its natural width."""
    least, natural = [], []
    for i, column in enumerate(table.columns):
        lines = {*column.heading.split("\n"), *chain.from_iterable(cells[i])}
        natural.append(max(map(cell_len, lines)))
        words = {word for line in lines for word in line.split()} if table.wraps(i) else lines
        least.append(max(map(cell_len, words), default=0))
    for group in table.groups:
        missing = cell_len(table.columns[group[0]].group) - _span(natural[i] for i in group)
        if missing > 0:
            natural[group[0]] += missing
            least[group[0]] += missing
    return least, natural


def _span(widths: Iterator[int] | Sequence[int]) -> int:
    """Return the total width of adjacent columns in characters."""
    every = list(widths)
    return sum(every) + len(GAP) * (len(every) - 1)


def _lines(table: Table, index: int) -> list[list[str]]:
    """Return the lines of each cell of a column; if any cell is the best, add a star column."""
    cells = [cell_of(row[index]) for row in table.rows]
    starred = any(cell.best for cell in cells)
    lines_of_cells = []
    for text, interval, best in cells:
        lines = text.split("\n")
        if starred:
            lines = [line and line + " *"[best] for line in lines]
        lines_of_cells.append([*lines, interval] if interval else lines)
    return lines_of_cells


def _text_lines(part: Table, width: int) -> Iterator[str]:
    columns = range(len(part.columns))
    cells = [_lines(part, i) for i in columns]
    least, widths = _widths(part, cells)
    while _span(widths) > width and widths != least:
        widths[
            max(columns, key=lambda i: (widths[i] > least[i], widths[i] - _NAMED * (i < part.stub)))
        ] -= 1

    def wrapped(lines: list[str], index: int) -> list[str]:
        if not part.wraps(index) or max(map(len, lines)) <= widths[index]:
            return lines
        return [
            piece
            for line in lines
            for piece in textwrap.wrap(line, widths[index], break_on_hyphens=False) or [""]
        ]

    def padded(text: str, index: int) -> str:
        # Some characters are two columns wide.
        length = len(text) if text.isascii() else cell_len(text)
        blank = " " * (widths[index] - length)
        return text + blank if part.wraps(index) else blank + text

    def shown(row: Sequence[list[str]]) -> Iterator[str]:
        for texts in zip_longest(*map(wrapped, row, columns), fillvalue=""):
            yield GAP.join(map(padded, texts, columns)).rstrip()

    groups = [(part.columns[g[0]].group, _span(widths[i] for i in g)) for g in part.groups]
    if any(name for name, _ in groups):
        names = [" " * width for width in widths[: part.stub]]
        yield GAP.join([*names, *(name.center(span) for name, span in groups)]).rstrip()
        yield GAP.join([*names, *(" ─"[bool(name)] * span for name, span in groups)]).rstrip()
    headings = [wrapped(c.heading.split("\n"), i) for i, c in enumerate(part.columns)]
    height = max(map(len, headings))
    yield from shown([[""] * (height - len(lines)) + lines for lines in headings])
    yield "─" * _span(widths)
    for row in zip(*cells, strict=True):
        yield from shown(row)


def markdown_line(words: str) -> str:
    """Escape text for Markdown, on one line."""
    return _plain(" ".join(words.split()))


def _plain(words: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_|<]|(?<=\])[(:])", r"\\\1", words)
