"""``specbench compare``: methods against the static front and against plain SD."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.output import console, note
from specbench.cli.runs import chosen_runs
from specbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from specbench.analysis.compare import At

HELD_EQUAL = ("acceptance", "time", "quality", "hypervolume")
FORMATS = ("text", "markdown", "csv")


def compare(
    runs: o.Runs = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHAT",
            help=f"What is held equal: {', '.join(HELD_EQUAL[:-1])}; or {HELD_EQUAL[-1]}, the area "
            "under each method's points.",
            show_default="all four",
            autocompletion=completer(lambda: HELD_EQUAL),
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="NAME",
            help="Methods to place; repeat or separate by commas.",
            show_default="all that draft, but sd and static",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            metavar="NAME",
            help="Tasks to look at; repeat or separate by commas.",
            show_default="all of the runs",
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}.",
            autocompletion=completer(lambda: FORMATS),
        ),
    ] = FORMATS[0],
) -> None:
    """Compare methods with the static front and plain SD at equal acceptance, time and quality."""
    for option, value, known in (("--at", at, HELD_EQUAL), ("--format", format, FORMATS)):
        if value is not None and value not in known:
            raise UsageError(f"unknown {option} {value!r}: give one of {', '.join(known)}")

    from specbench.analysis.compare import ATS, compare
    from specbench.analysis.frames import read_samples
    from specbench.experiment.tables import TABLE

    folders = chosen_runs(runs, TABLE)
    samples = read_samples(*folders)
    placed = samples[(samples["draft_length"] > 0) & ~samples["method"].isin(["sd", "static"])]
    methods = _chosen("--method", method, placed["method"].unique())
    if tasks := _chosen("--task", task, samples["task"].unique()):
        samples = samples[samples["task"].isin(tasks)]
    ats: Sequence[At] = [known for known in ATS if at in (None, known)]
    found = compare(samples, ats, methods)
    for reason in found.missing:
        note(reason)
    if "quality" in ats and samples.loc[samples["method"] == "sd", "draft_length"].nunique() == 1:
        note("sd has one draft length: run with --draft-length 3,5,7 to see what choosing N gives")
    if format == "csv":
        print(found.rows.to_csv(index=False), end="")
        return
    show = _print_markdown if format == "markdown" else _print_text
    for sheet in _sheets(found.rows):
        show(sheet)


def _chosen(option: str, typed: list[str] | None, known: Iterable[str]) -> list[str] | None:
    """The names of a comma list, each of them one of the runs; None where none was typed."""
    if typed is None:
        return None
    names = [name.strip() for names in typed for name in names.split(",")]
    known = list(known)
    for name in names:
        if name not in known:
            has = ", ".join(known) if known else "none"
            raise UsageError(f"{option} {name!r} is not to be compared here: these runs have {has}")
    return names


class _Sheet(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def _sheets(rows: pd.DataFrame) -> Iterator[_Sheet]:
    """A sheet for each task and each thing held equal."""
    from specbench.analysis.scores import shown_name, shown_scale

    keys = ["run_id", "temperature", "engine", "batch_size", "task", "at"]
    several = rows["run_id"].nunique() > 1
    for (run, temperature, _, _, task, at), group in rows.groupby(keys, sort=False):
        metric = str(group["quality_metric"].iloc[0])
        unit, scale = shown_name(metric), shown_scale(metric)
        fewest, most = group["n"].min(), group["n"].max()
        where = f"{task} on {group['pair'].iloc[0]}, T = {temperature:g}" + f", {run}" * several
        prompts = f"n = {fewest}" if fewest == most else f"n = {fewest} to {most}"
        yield _SHEETS[str(at)](group, f"{where}, {prompts}", unit, scale)


def _above(group: pd.DataFrame, where: str, unit: str, scale: float, at: str) -> _Sheet:
    price = "accepted" if at == "acceptance" else "s/sample"
    rows = [
        [
            row.label,
            f"{row.draft_length:.0f}",
            f"{row.acceptance:.1%}" if at == "acceptance" else f"{row.seconds:.4f}",
            f"{scale * row.quality:.1f}",
            f"{scale * row.reference:.1f}",
            _interval(row, "+.1f", scale),
        ]
        for row in _records(group)
    ]
    header = ["method", "N", price, unit, "static front", "above it [95 %]"]
    return _Sheet(f"At equal {at}: {where}", header, rows)


def _savings(group: pd.DataFrame, where: str, unit: str, scale: float) -> _Sheet:
    from specbench.analysis.compare import SHARE

    rows: list[list[str]] = []
    shown: list[str] = []
    for row in _records(group):
        length = f"{row.draft_length:.0f}"
        mine = [
            row.label,
            length if row.points == 1 else f"best: {length}",
            f"{scale * row.quality:.1f}",
            f"{row.seconds:.4f}",
        ]
        against, level = row.against, f"{scale * row.against_quality:.1f}"
        if row.against_draft_length == row.against_draft_length:
            at_length = f" N = {row.against_draft_length:.0f}"
            against = against + at_length if " N" not in against else against[:-2] + at_length
        figure = _interval(row, ".2f")
        if row.metric == SHARE:
            against, level, figure = "  had by N alone:", "", _interval(row, ".0f", 100, " %")
        rows.append([*(mine if mine != shown else [""] * 4), against, level, figure])
        shown = mine
    header = ["method", "N", unit, "s/sample", "against", f"its\n{unit}", "times as fast\n[95 %]"]
    return _Sheet(f"At equal quality: {where}", header, rows)


def _volumes(group: pd.DataFrame, where: str, unit: str, scale: float) -> _Sheet:
    del scale  # volumes are of quality from 0 to 1
    added = {
        (row.label, row.draft_length, row.metric): _interval(row, "+.3f")
        for row in _records(group[group["against"].notna()].fillna({"draft_length": 0}))
    }
    rows = [
        [
            row.label,
            f"{row.draft_length:.0f}" if row.draft_length else "all",
            f"{row.points}",
            row.metric.rpartition("_")[2],
            _interval(row, ".3f"),
            added.get((row.label, row.draft_length, row.metric), ""),
        ]
        for row in _records(group[group["against"].isna()].fillna({"draft_length": 0}))
    ]
    header = ["method", "N", "points", f"{unit} x", "area [95 %]", "adds to static's [95 %]"]
    return _Sheet(f"Hypervolume: {where}", header, rows)


_SHEETS: dict[str, Callable[[pd.DataFrame, str, str, float], _Sheet]] = {
    "acceptance": partial(_above, at="acceptance"),
    "time": partial(_above, at="time"),
    "quality": _savings,
    "hypervolume": _volumes,
}


def _records(rows: pd.DataFrame) -> Iterator[Any]:
    yield from rows.itertuples(index=False)


def _interval(row: Any, form: str, scale: float = 1.0, unit: str = "") -> str:
    """A figure with its interval, where it has them."""
    value, low, high = (scale * number for number in (row.value, row.ci_low, row.ci_high))
    if value != value:
        return ""
    return f"{value:{form}}{unit}" + (f" [{low:{form}}, {high:{form}}]" if low == low else "")


def _print_text(sheet: _Sheet) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=sheet.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in sheet.header:
        left = name in ("method", "against")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "method")
    for row in sheet.rows:
        table.add_row(*row)
    console().print(table)


def _print_markdown(sheet: _Sheet) -> None:
    header = [name.replace("\n", " ") for name in sheet.header]
    lines = [header, ["---"] * len(header), *sheet.rows]
    print(f"{sheet.title}\n")
    print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")
