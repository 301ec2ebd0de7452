"""Sheets: tables of figures for reading, as text no wider than the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from specbench.cli.output import console

if TYPE_CHECKING:
    from rich.console import Console

LEFT = ("method", "against")  # columns of words


class Sheet(NamedTuple):
    """A table of figures.

    Attributes:
        title: What all of it shares.
        header: A name per column, of a line or two. A blank first line of two says that the column
            goes with the one before it.
        rows: A text per column.
        stub: How many columns, from the left, say what a row is.
        notes: What the figures are, a sentence each.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    stub: int = 2
    notes: tuple[str, ...] = ()


def number(value: float, form: str) -> str:
    """A figure; blank where it is not known, and no sign before one that rounds to 0."""
    text = "" if value != value else f"{value:{form}}"
    return text.lstrip("+-") if text and float(text) == 0 else text


def with_interval(value: float, low: float, high: float, form: str, unit: str = "") -> str:
    """A figure with its interval, where it has them."""
    shown, *ends = (number(each, form) for each in (value, low, high))
    return f"{shown}{unit}" * bool(shown) + (f" [{', '.join(ends)}]" if all([shown, *ends]) else "")


def print_text(sheets: Iterable[Sheet]) -> None:
    """Print sheets, and below them what the figures are.

    Columns that do not fit the width follow further down, beside the names of the rows again.
    """
    from rich.text import Text

    out = console()
    notes: dict[str, None] = {}
    for sheet in sheets:
        notes |= dict.fromkeys(sheet.notes)
        out.print(Text(sheet.title, style="italic"))
        for columns in _blocks(sheet, out.width):
            _print_block(out, sheet, columns)
            out.print()
    for said in notes:
        out.print(Text(said))


def print_markdown(sheets: Iterable[Sheet]) -> None:
    """Print sheets as Markdown; no column is left for further down."""
    notes: dict[str, None] = {}
    for sheet in sheets:
        notes |= dict.fromkeys(sheet.notes)
        header = list(_one_line(sheet.header))
        lines = [header, ["---"] * len(header), *sheet.rows]
        print(f"{sheet.title}\n")
        print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")
    if notes:
        print("\n\n".join(notes))


def _one_line(header: Sequence[str]) -> Iterator[str]:
    group = ""
    for name in header:
        above, _, below = name.partition("\n")
        group = above or group
        yield f"{group} {below}" if below else group


def _blocks(sheet: Sheet, width: int) -> Iterator[list[int]]:
    """The columns of each block: those that name a row, and as many groups as fit."""
    stub = list(range(sheet.stub))
    block = stub
    for group in _groups(sheet):
        if block != stub and _width(sheet, block + group) > width:
            yield block
            block = stub
        block = block + group
    yield block


def _groups(sheet: Sheet) -> list[list[int]]:
    groups: list[list[int]] = []
    for at in range(sheet.stub, len(sheet.header)):
        if sheet.header[at].startswith("\n"):
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _width(sheet: Sheet, columns: Sequence[int]) -> int:
    """Characters of a line: there are two blanks between columns."""
    return sum(_longest(_lines(sheet, at)) + 2 for at in columns) - 2


def _lines(sheet: Sheet, column: int) -> Iterator[str]:
    texts = chain([sheet.header[column]], (row[column] for row in sheet.rows))
    return chain.from_iterable(text.split("\n") for text in texts)


def _longest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _print_block(out: Console, sheet: Sheet, columns: Sequence[int]) -> None:
    """Print some columns; where even these do not fit, names wrap between their words.

    Left out are the rows that have figures in other columns only.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for at in columns:
        name = sheet.header[at]
        wraps = at < sheet.stub
        lines = list(_lines(sheet, at))
        table.add_column(
            name,
            justify="left" if name in LEFT else "right",
            no_wrap=not wraps,
            min_width=_longest(chain.from_iterable(map(str.split, lines)) if wraps else lines),
        )
    for row in sheet.rows:
        if any(row[at] for at in columns[sheet.stub :]) or not any(row[sheet.stub :]):
            table.add_row(*(Text(row[at]) for at in columns))
    out.print(table, crop=False)
