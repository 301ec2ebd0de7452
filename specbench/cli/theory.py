"""``specbench theory``: what theory predicts of finished runs, beside what was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.options.groups import grouped
from specbench.cli.options.rows import Rows
from specbench.cli.output import note
from specbench.cli.runs import chosen_runs
from specbench.cli.sheets import Sheet, number, print_markdown, print_text, with_interval
from specbench.errors import SpecbenchError, UsageError

if TYPE_CHECKING:
    import pandas as pd

TEXT, MARKDOWN, CSV = FORMATS = ("text", "markdown", "csv")
_GROUP = ["run_id", "pair", "task", "temperature", "engine", "batch_size"]

_POSITIONS = (
    "accepted / judged: of the drafts judged, those up to a round's first rejection. A run's "
    "table counts those behind it too."
)
_WHOLE = (
    "length: drafts accepted in a round that no end of the text cuts short. tokens/round: of all "
    "rounds, with the target's own token."
)
_SAME_TIME = (
    "speed-up at the measured time of a round: what was measured, but with the tokens/round "
    "predicted; where these agree it agrees by construction."
)


@grouped
def theory(
    rows: Rows,
    runs: o.Runs = None,
    front_gap: Annotated[
        int | None,
        typer.Option(
            "--front-gap",
            metavar="TEXTS",
            help="Also load each run's models, read so many texts of each method and task, and "
            "measure how far its rule lies off the front of rejection and bias.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}. A csv has a row per figure, with both intervals "
            "and that of the difference.",
            autocompletion=completer(lambda: FORMATS),
        ),
    ] = TEXT,
) -> None:
    """Print what theory predicts of finished runs beside what was measured, with differences.

    Acceptance and tokens per round are predicted from the probabilities that the rules recorded
    before any draft was drawn, speed-ups from these and the measured time of a round.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown --format {format!r}: give one of {', '.join(FORMATS)}")
    if front_gap is not None and front_gap < 1:
        raise UsageError(f"--front-gap must be 1 or more, not {front_gap}")

    import pandas as pd

    from specbench.experiment.progress import quiet_libraries
    from specbench.experiment.records import PACKED, RECORDS

    quiet_libraries(downloads=sys.stderr.isatty())
    tables: list[pd.DataFrame] = []
    for folder in chosen_runs(runs, RECORDS, PACKED):
        tables += _tables(folder, front_gap)
    # Of the predictions: these need the rest of a run, its autoregressive decoding above all.
    table = rows.selection().of(pd.concat(tables, ignore_index=True))
    if format == CSV:
        print(table.to_csv(index=False), end="")
        return
    show = print_markdown if format == MARKDOWN else print_text
    show(_sheets(table))


def _tables(folder: Path, texts: int | None) -> Iterator[pd.DataFrame]:
    from specbench.theory.models import bytes_ratio, front_gaps
    from specbench.theory.table import theory_table
    from specbench.theory.tally import read_tallies

    tallies = read_tallies(folder)
    ratio = None
    try:
        ratio = bytes_ratio(folder)
    except SpecbenchError as error:
        note(f"the memory-bound speed-up is left out: {error}")
    yield theory_table(tallies, ratio)
    if texts is not None:
        yield front_gaps(folder, texts)


def _sheets(table: pd.DataFrame) -> Iterator[Sheet]:
    """The sheets of each task; those without a row are left out."""
    several = table["run_id"].nunique() > 1
    for (run, pair, task, temperature, _, _), group in table.groupby(_GROUP, sort=False):
        where = f"{task} on {pair}, T = {temperature:g}" + f", {run}" * several
        labelled = group.assign(label=_labels(group))
        for make in (_acceptance, _speed, _gaps):
            sheet = make(labelled, where)
            if sheet.rows:
                yield sheet


def _labels(rows: pd.DataFrame) -> list[str]:
    from specbench.analysis.labels import method_labels

    return method_labels(rows.to_dict("records"))


def _acceptance(group: pd.DataFrame, where: str) -> Sheet:
    from specbench.theory.table import ACCEPTANCE, IID, LENGTH

    rows = [
        [
            *name,
            *_sides(found, ACCEPTANCE, ".1f", 100),
            _interval(found.get(ACCEPTANCE), "difference", "+.1f", 100),
            *_sides(found, LENGTH, ".2f"),
            _interval(found.get(LENGTH), "difference", "+.2f"),
            _value(found.get(IID), "predicted", ".2f"),
        ]
        for name, found in _by_cell(group, ACCEPTANCE)
    ]
    header = [
        *("method", "N", "accepted / judged %\npredicted", "\nmeasured", "\ndifference [95 %]"),
        *("length\npredicted", "\nmeasured", "\ndifference [95 %]", "length\ni.i.d."),
    ]
    notes = (_POSITIONS, _WHOLE)
    return Sheet(f"Acceptance and accepted length: {where}", header, rows, notes=notes)


def _speed(group: pd.DataFrame, where: str) -> Sheet:
    from specbench.theory.table import MEMORY_BOUND, SPEEDUP, TOKENS

    rows = [
        [
            *name,
            *_sides(found, TOKENS, ".2f"),
            _interval(found.get(TOKENS), "difference", "+.2f"),
            *_sides(found, SPEEDUP, ".2f"),
            _interval(found.get(SPEEDUP), "difference", "+.2f"),
            _value(found.get(MEMORY_BOUND), "predicted", ".2f"),
        ]
        for name, found in _by_cell(group, TOKENS)
    ]
    header = [
        *("method", "N", "tokens/round\npredicted", "\nmeasured", "\ndifference [95 %]"),
        *("tokens/s / AR's\npredicted", "\nmeasured", "\ndifference [95 %]", "memory\nbound"),
    ]
    title = f"Tokens per round, and speed-up at the measured time of a round: {where}"
    return Sheet(title, header, rows, notes=(_SAME_TIME,))


def _gaps(group: pd.DataFrame, where: str) -> Sheet:
    from specbench.theory.table import BIAS, GAP

    rows = [
        [
            *name,
            _interval(found.get(BIAS), "measured", ".2f", 100),
            _value(found.get(GAP), "predicted", ".2f", 100),
            _interval(found.get(GAP), "measured", ".2f", 100),
        ]
        for name, found in _by_cell(group, GAP)
    ]
    header = ["method", "N", "bias % [95 %]", "front gap %\npredicted", "\nmeasured [95 %]"]
    return Sheet(f"Off the front: {where}", header, rows)


def _by_cell(group: pd.DataFrame, metric: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Label and N of each cell that has a metric, with its rows by their metrics."""
    for (label, length), rows in group.groupby(["label", "draft_length"], sort=False):
        found = {row["metric"]: row for row in rows.to_dict("records")}
        if metric in found:
            yield [str(label), f"{length}"], found


def _sides(found: dict[str, Any], metric: str, form: str, scale: float = 1.0) -> list[str]:
    return [_value(found.get(metric), side, form, scale) for side in ("predicted", "measured")]


def _value(row: Any, side: str, form: str, scale: float = 1.0) -> str:
    """A figure; blank where it is not known."""
    return "" if row is None else number(scale * row[side], form)


def _interval(row: Any, side: str, form: str, scale: float = 1.0) -> str:
    """A figure with its interval, where it has them."""
    if row is None:
        return ""
    value, low, high = (scale * row[f"{side}{end}"] for end in ("", "_low", "_high"))
    return with_interval(value, low, high, form)
