"""Tables for reading: one description, written as text, Markdown or LaTeX.

The first columns of a table, its stub, name a row; a group may stand above several columns. A
table's cells are texts: ``number`` and ``with_interval`` make them.
"""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from typing import Any, Literal, NamedTuple, TypeVar

from rich.cells import cell_len

Record = TypeVar("Record")

_ENDS = ("", "_low", "_high")  # of the names of a value and of its interval
GAP = "  "  # between columns
MARKDOWN_WIDTH = 160  # a wider table has to be scrolled sideways
LATEX_WIDTH = 110  # characters of footnote size across a page of two columns

_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"[": "{[}", "*": "{*}"},  # at the start of a row the line break before it would read them
    **{"α": r"$\alpha$", "×": r"$\times$", "─": "--", "\n": " "},
}


class Cell(NamedTuple):
    """A text, perhaps of several lines; an interval to show below it; whether it is the best."""

    text: str = ""
    interval: str = ""
    best: bool = False


class Column(NamedTuple):
    """A column; text that is aligned left wraps where a line is too short for it."""

    heading: str  # perhaps in several lines
    group: str = ""  # stands above all neighbours with the same group, which are never torn apart
    align: Literal["left", "right"] = "right"


#: A column and what makes its cell of a record, which is what a row is about.
Field = tuple[str | Column, Callable[[Record], str | Cell]]


@dataclass(frozen=True)
class Table:
    """A table: a text or a cell for every row and column."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    notes: Sequence[str] = ()  # what its figures are, a sentence each
    stub: int = 1  # how many columns, from the left, name a row; they are always aligned left

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        fields: Iterable[Field[Record]],
        title: str = "",
        notes: Sequence[str] = (),
        stub: int = 1,
    ) -> Table:
        """Make a table with a row for each record."""
        named, cells = zip(*fields, strict=True)
        columns = [Column(name) if isinstance(name, str) else name for name in named]
        rows = [[cell(record) for cell in cells] for record in records]
        return cls(title, columns, rows, notes, stub)


def number(value: float | None, form: str) -> str:
    """Format a number: blank for None and NaN, and without a sign where it rounds to 0."""
    if value is None or value != value:
        return ""
    text = f"{value:{form}}"
    return text.lstrip("+-") if not text.strip("+-0.,%") else text


def with_interval(value: float, low: float, high: float, form: str, unit: str = "") -> str:
    """Format a number and behind it its interval, where it has one: ``1.2 [1.0, 1.4]``."""
    shown, *ends = (number(each, form) for each in (value, low, high))
    interval = f" [{', '.join(ends)}]" if all([shown, *ends]) else ""
    return f"{shown}{unit}{interval}" if shown else ""


def number_of(name: str, form: str, scale: float = 1.0) -> Callable[[Mapping[Any, Any]], str]:
    """Return what formats a number of a record; blank where it is not known."""
    return lambda record: number(scale * record.get(name, math.nan), form)


def interval_of(
    name: str, form: str, scale: float = 1.0, unit: str = ""
) -> Callable[[Mapping[Any, Any]], str]:
    """Return what formats ``name`` of a record with its interval, ``name_low`` to ``name_high``."""

    def show(record: Mapping[Any, Any]) -> str:
        value, low, high = (scale * record.get(name + end, math.nan) for end in _ENDS)
        return with_interval(value, low, high, form, unit)

    return show


def cell_at(
    key: object, show: Callable[[Any], str | Cell]
) -> Callable[[tuple[Any, Mapping[Any, Any]]], Cell]:
    """Return what shows the value at a key, of a record that is a name with values by key."""
    return lambda record: _cell(show(record[1][key])) if key in record[1] else Cell()


def drop_empty(table: Table) -> Table:
    """Return a table without the columns that hold nothing; the stub stays."""
    filled = {at for row in table.rows for at, cell in enumerate(row) if _cell(cell).text}
    return _part(table, [at for at in range(len(table.columns)) if at < table.stub or at in filled])


def to_text(*tables: Table, width: int) -> str:
    """Write tables as plain text; the best numbers have a star.

    Columns that do not fit the width follow further down, beside the names of the rows again. A
    note of several tables stands once, below the last of them.
    """

    def body(table: Table) -> str:
        parts = ("\n".join(_text_lines(part, width)) for part in _parts(table, width))
        return f"{textwrap.fill(table.title, width)}\n".lstrip() + "\n\n".join(parts)

    return _joined(tables, body, lambda note: textwrap.fill(note, width), "\n")


def to_markdown(*tables: Table) -> str:
    """Write tables as Markdown; the best numbers are bold. Notes as in ``to_text``."""

    def body(table: Table) -> str:
        title = [f"{_plain(table.title)}."] if table.title else []
        return "\n\n".join([*title, *map(_markdown_part, _parts(table, MARKDOWN_WIDTH))])

    return _joined(tables, body, _plain, "\n\n")


def to_latex(*tables: Table) -> str:
    """Write tables as LaTeX, for a document with booktabs; titles and notes become captions."""
    return "\n\n".join([r"% needs \usepackage{booktabs}", *map(_latex_table, tables)]) + "\n"


def _cell(cell: str | Cell) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _has_groups(table: Table) -> bool:
    return any(column.group for column in table.columns)


def _groups(table: Table) -> list[list[int]]:
    """Return which columns beside the stub belong together."""
    places = range(table.stub, len(table.columns))
    return [list(mine) for _, mine in groupby(places, lambda at: table.columns[at].group or at)]


def _joined(
    tables: Sequence[Table], body: Callable[[Table], str], note: Callable[[str], str], between: str
) -> str:
    last = {text: at for at, table in enumerate(tables) for text in table.notes}
    parts = []
    for at, table in enumerate(tables):
        notes = [note(text) for text in dict.fromkeys(table.notes) if last[text] == at]
        parts += [body(table), *([between.join(notes)] if notes else [])]
    return "\n\n".join(parts) + "\n"


def _part(table: Table, places: Sequence[int]) -> Table:
    """Return some columns of a table, without the rows that hold something in others only."""

    def holds(row: Sequence[str | Cell], places: Sequence[int]) -> bool:
        return any(_cell(row[at]).text for at in places)

    rest = range(table.stub, len(table.columns))
    rows = [r for r in table.rows if holds(r, places[table.stub :]) or not holds(r, rest)]
    own = [[row[at] for at in places] for row in rows]
    return replace(table, columns=[table.columns[at] for at in places], rows=own)


def _parts(table: Table, width: int) -> Iterator[Table]:
    """Cut a table into parts that fit a width, each with the stub and at least one group."""
    least, natural = _widths(table, [_lines(table, at) for at in range(len(table.columns))])
    needed = natural[: table.stub] + least[table.stub :]
    stub = list(range(table.stub))
    part = stub
    for group in _groups(table):
        if part != stub and _span(needed[at] for at in part + group) > width:
            yield _part(table, part)
            part = stub
        part = part + group
    yield _part(table, part)


def _widths(table: Table, cells: Sequence[list[list[str]]]) -> tuple[list[int], list[int]]:
    """How narrow columns may be, where text that is aligned left wraps, and how wide they are."""
    least, natural = [], []
    for at, column in enumerate(table.columns):
        lines = {*column.heading.split("\n"), *chain.from_iterable(cells[at])}
        natural.append(max(map(cell_len, lines)))
        words = {word for line in lines for word in line.split()} if _wraps(table, at) else lines
        least.append(max(map(cell_len, words), default=0))
    for group in _groups(table):
        missing = cell_len(table.columns[group[0]].group) - _span(natural[at] for at in group)
        if missing > 0:
            natural[group[0]] += missing
            least[group[0]] += missing
    return least, natural


def _span(widths: Iterator[int] | Sequence[int]) -> int:
    """The characters that columns of these widths take beside each other."""
    known = list(widths)
    return sum(known) + len(GAP) * (len(known) - 1)


def _wraps(table: Table, at: int) -> bool:
    return at < table.stub or table.columns[at].align == "left"


def _lines(table: Table, at: int) -> list[list[str]]:
    """The lines of each cell of a column; a star, or room for it, where any cell is the best."""
    cells = [_cell(row[at]) for row in table.rows]
    starred = any(cell.best for cell in cells)
    found = []
    for text, interval, best in cells:
        lines = text.split("\n")
        if starred:
            lines = [line and line + " *"[best] for line in lines]
        found.append([*lines, interval] if interval else lines)
    return found


def _text_lines(part: Table, width: int) -> Iterator[str]:
    columns = range(len(part.columns))
    cells = [_lines(part, at) for at in columns]
    least, widths = _widths(part, cells)
    while _span(widths) > width and widths != least:
        widths[max(columns, key=lambda at: (widths[at] > least[at], widths[at]))] -= 1

    def wrapped(lines: list[str], at: int) -> list[str]:
        if not _wraps(part, at) or max(map(len, lines)) <= widths[at]:
            return lines
        return [piece for line in lines for piece in textwrap.wrap(line, widths[at]) or [""]]

    def padded(text: str, at: int) -> str:
        length = len(text) if text.isascii() else cell_len(text)  # some signs take two columns
        blank = " " * (widths[at] - length)
        return text + blank if _wraps(part, at) else blank + text

    def shown(row: Sequence[list[str]]) -> Iterator[str]:
        for texts in zip_longest(*map(wrapped, row, columns), fillvalue=""):
            yield GAP.join(map(padded, texts, columns)).rstrip()

    groups = [(part.columns[g[0]].group, _span(widths[at] for at in g)) for g in _groups(part)]
    if _has_groups(part):
        names = [" " * width for width in widths[: part.stub]]
        yield GAP.join([*names, *(name.center(span) for name, span in groups)]).rstrip()
        yield GAP.join([*names, *(" ─"[bool(name)] * span for name, span in groups)]).rstrip()
    headings = [wrapped(c.heading.split("\n"), at) for at, c in enumerate(part.columns)]
    height = max(map(len, headings))
    yield from shown([[""] * (height - len(lines)) + lines for lines in headings])
    yield "─" * _span(widths)
    for row in zip(*cells, strict=True):
        yield from shown(row)


def _markdown_part(part: Table) -> str:
    rule = ("---" if _wraps(part, at) else "--:" for at in range(len(part.columns)))
    named = (", ".join(filter(None, [c.group, c.heading])) for c in part.columns)
    headings = (_plain(" ".join(name.split())) for name in named)
    rows = ([_markdown_cell(_cell(cell)) for cell in row] for row in part.rows)
    first, *others = (f"| {' | '.join(row)} |" for row in (headings, *rows))
    return "\n".join([first, f"|{'|'.join(rule)}|", *others])


def _markdown_cell(cell: Cell) -> str:
    text = _plain(cell.text).replace("\n", "<br>")
    return "<br>".join(filter(None, [f"**{text}**" if cell.best else text, cell.interval]))


def _plain(words: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_|<]|(?<=\])\()", r"\\\1", words)


def _latex_table(table: Table) -> str:
    parts = "\n\\par\\medskip\n".join(map(_tabular, _parts(table, LATEX_WIDTH)))
    return rf"""\begin{{table*}}[t]
\centering\footnotesize\setlength{{\tabcolsep}}{{3pt}}
{parts}
\caption{{{_escaped(" ".join([f"{table.title}.", *table.notes]))}}}
\label{{tab:{re.sub("[^A-Za-z0-9.]+", "-", table.title)}}}
\end{{table*}}"""


def _tabular(part: Table) -> str:
    align = "".join("l" if _wraps(part, at) else "r" for at in range(len(part.columns)))
    lines = [rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}", r"\toprule"]
    if _has_groups(part):
        spans = [(_escaped(part.columns[mine[0]].group), mine) for mine in _groups(part)]
        names = [rf"\multicolumn{{{len(mine)}}}{{c}}{{{name}}}" for name, mine in spans]
        rules = [rf"\cmidrule(lr){{{m[0] + 1}-{m[-1] + 1}}}" for name, m in spans if name]
        lines += [_latex_row([*[""] * part.stub, *names]), " ".join(rules)]
    lines += [_latex_row([_escaped(column.heading) for column in part.columns]), r"\midrule"]
    for row in part.rows:
        cells = list(map(_cell, row))
        names = [_escaped(cell.text) for cell in cells[: part.stub]]
        lines.append(_latex_row([*names, *map(_latex_number, cells[part.stub :])]))
        if any(cell.interval for cell in cells):
            small = (rf"{{\scriptsize {c.interval}}}" if c.interval else "" for c in cells)
            lines.append(_latex_row(list(small)))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_number(cell: Cell) -> str:
    text = re.sub(r"-(?=\d)", "$-$", _escaped(cell.text))
    return rf"\textbf{{{text}}}" if cell.best else text


def _escaped(words: str) -> str:
    """Text as every LaTeX sets it; a sign that it may not know appears by its code point."""
    return "".join(
        _LATEX.get(sign) or (sign if _is_common(sign) else f"U+{ord(sign):04X}") for sign in words
    )


def _is_common(sign: str) -> bool:
    """ASCII, and Latin letters with an accent."""
    return sign.isascii() or (sign < "\u0100" and unicodedata.decomposition(sign)[:2] == "00")
