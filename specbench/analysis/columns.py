"""The data dictionary: every column of every table, read from ``columns.csv`` beside this module.

It is the one place where a column's type is written down and whether it may be blank; the schemas
of ``analysis.frames`` are made of it. Free of pandas, for the command line.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

TYPES: dict[str, type] = {"text": str, "number": float, "integer": int}
#: Whose columns there are: tables; what samples may have been measured by beside their quality; and
#: the metrics of a summary, which are columns where it has a row per cell.
TABLES = SAMPLES, MEASURED, SUMMARY, METRICS, ROUNDS, RUNS = (
    *("samples", "measured", "summary", "metrics", "rounds", "runs"),
)


class Column(NamedTuple):
    """A column of one table or several.

    A ``number`` may be whole, and is a float where it may be blank; ``blank`` says where values are
    blank, and nothing where none is.
    """

    tables: tuple[str, ...]
    name: str
    type: str
    unit: str
    meaning: str
    blank: str
    example: str


@cache
def dictionary() -> tuple[Column, ...]:
    """Return the whole dictionary, each table's columns in their order."""
    path = Path(__file__).with_suffix(".csv")
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(Column(tuple(tables.split()), *rest) for tables, *rest in rows)


def schema(table: str) -> dict[str, type]:
    """Return the columns of a table in their order, each with the Python type of its values."""
    return {column.name: TYPES[column.type] for column in dictionary() if table in column.tables}


def may_be_blank(*tables: str) -> frozenset[str]:
    """Return the names of the columns of some tables that may be blank."""
    return frozenset(c.name for c in dictionary() if c.blank and not {*tables}.isdisjoint(c.tables))
