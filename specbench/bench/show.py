"""The tables of a benchmark on the screen, and what is worth a warning in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from specbench.bench.plan import name_of

_TEXT = ("engine", "method", "ratio of", "system")
_PARTS = {
    "draft\nstep": "draft_step_seconds",
    "\nverify": "verify_seconds",
    "\naccept": "accept_seconds",
    "\nother": "other_seconds",
    "\nround": "round_seconds",
    "\nprefill": "prefill_seconds",
}


def setting(table: pd.DataFrame) -> str:
    """Say in one line what all systems share, and how to read their tables."""
    first = table.iloc[0]
    return (
        f"{first['pair']} in {first['dtype']} on {first['device']}: prompts of "
        f"{first['prompt_tokens']} tokens, {first['new_tokens']} new ones, "
        f"T = {first['temperature']:g}, {first['repeats']} repeats; copies reach "
        f"{_short(first['copy_bandwidth'] / 1e9)} GB/s; times in ms, warm-up in s"
    )


def system_tables(table: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per batch size: parts of a round in ms, warming up in s."""
    for size, rows in table.groupby("batch_size", sort=False):
        yield _table(f"batch {size}", map(_figures, rows.to_dict("records")))


def ratios_table(ratios: pd.DataFrame) -> Table:
    """Return the ratios, each kind on its own."""
    return _table("", map(_ratio, ratios.to_dict("records")))


def warnings(table: pd.DataFrame) -> Iterator[str]:
    """Say which systems read faster than the device's memory can be read."""
    for row in table[table["limit_share"] > 1].to_dict("records"):
        yield (
            f"{row['engine']} {name_of(row)} at batch {row['batch_size']} reads "
            f"{_short(row['bytes_per_second'] / 1e9)} GB/s and copies reach "
            f"{_short(row['copy_bandwidth'] / 1e9)}: impossible unless weights stay in caches, so "
            "its share of the limit says nothing"
        )


def _table(title: str, cells: Iterable[Mapping[str, str]]) -> Table:
    """A table without the columns that nothing stands in."""
    rows = list(cells)
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    shown = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for name in names:
        left = name.strip() in _TEXT
        shown.add_column(name, justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        shown.add_row(*(row[name] for name in names))
    return shown


def _figures(row: Mapping[Any, Any]) -> dict[str, str]:
    return {
        "\nengine": row["engine"],
        "\nmethod": name_of(row),
        "\nN": str(row["draft_length"] or ""),
        "\nforced": _number(row["forced_acceptance"], "g"),
        "accepted\n/ judged": _number(row["position_acceptance"], ".3f"),
        "decode\ntokens/s [95 %]": _speed(row),
        "tokens/\nround": _number(row["acceptance_length"], ".2f"),
        **{title: _short(1e3 * row[name]) for title, name in _PARTS.items()},
        "\nGB/s": _short(row["bytes_per_second"] / 1e9),
        "of\nlimit": _number(row["limit_share"], ".0%"),
        "warm-\nup": _number(row["warm_up_seconds"], ".1f"),
    }


def _ratio(row: Mapping[Any, Any]) -> dict[str, str]:
    value, low, high = (_number(row[name], ".2f") for name in ("value", "low", "high"))
    return {
        "ratio of": row["ratio"],
        "batch": str(row["batch_size"]),
        "system": f"{row['engine']} {name_of(row)}",
        "N": str(row["draft_length"] or ""),
        "forced": _number(row["forced_acceptance"], "g"),
        "[95 %]": f"{value} [{low}, {high}]" if low else value,
    }


def _speed(row: Mapping[Any, Any]) -> str:
    value, low, high = (_short(row[f"tokens_per_second{end}"]) for end in ("", "_low", "_high"))
    return f"{value} [{low}, {high}]" if low else value


def _short(value: float) -> str:
    """A number with about three digits; nothing where there is none."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return _number(value, f",.{digits}f")


def _number(value: float | None, form: str) -> str:
    return "" if value is None or value != value else f"{value:{form}}"
