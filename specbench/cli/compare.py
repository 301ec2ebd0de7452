"""``specbench compare``: methods against the static front and against plain SD."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.output import note
from specbench.cli.runs import chosen_runs
from specbench.cli.sheets import Sheet, print_markdown, print_text, with_interval
from specbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from specbench.analysis.compare import At

HELD_EQUAL = ("acceptance", "time", "quality", "hypervolume")
FORMATS = ("text", "markdown", "csv")

_CHOSEN = (
    "chosen: N is chosen on one half of the prompts and measured on the other, and the other way "
    "round; in brackets the choice on all of them."
)
_POOLED = "sd's quality is of all its draft lengths together, since they write the same law."
_BY_N = (
    "had by N alone: of the time that the method saves over sd at its own N, the share that sd "
    "saves by another N."
)


def compare(
    runs: o.Runs = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHAT",
            help=f"What is held equal: {', '.join(HELD_EQUAL[:-1])}, with plain SD at its own "
            f"quality beside it; or {HELD_EQUAL[-1]}, the area under each method's points.",
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
    """Compare methods with the static front at equal acceptance, time and quality, and with SD."""
    for option, value, known in (("--at", at, HELD_EQUAL), ("--format", format, FORMATS)):
        if value is not None and value not in known:
            raise UsageError(f"unknown {option} {value!r}: give one of {', '.join(known)}")

    from specbench.analysis.compare import ATS, compare
    from specbench.analysis.frames import read_samples
    from specbench.experiment.tables import TABLE

    folders = chosen_runs(runs, TABLE)
    samples = read_samples(*folders)
    placed = samples[(samples["draft_length"] > 0) & ~samples["method"].isin(["sd", "static"])]
    compared_with = [name for name in ("static", "sd") if (samples["method"] == name).any()]
    methods = _chosen("--method", method, placed["method"].unique(), compared_with)
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
    show = print_markdown if format == "markdown" else print_text
    show(_sheets(found.rows))


def _chosen(
    option: str, typed: list[str] | None, known: Iterable[str], compared_with: Sequence[str] = ()
) -> list[str] | None:
    """The names of a comma list, each of them one of the runs; None where none was typed.

    Args:
        option: Where they were typed.
        typed: What was.
        known: Those of the runs.
        compared_with: Others of the runs, which are what all is compared with.
    """
    if typed is None:
        return None
    names = [name.strip() for names in typed for name in names.split(",")]
    known = list(known)
    for name in names:
        if name in known:
            continue
        has = ", ".join(known) if known else "none"
        if name in compared_with:
            others = (
                f"name one of {has}" if known else "these runs hold no other method that drafts"
            )
            raise UsageError(f"{option} {name!r} is what methods are compared with: {others}")
        raise UsageError(f"{option} {name!r} is not to be compared here: these runs have {has}")
    return names


def _sheets(rows: pd.DataFrame) -> Iterator[Sheet]:
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


def _above(group: pd.DataFrame, where: str, unit: str, scale: float, at: str) -> Sheet:
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
    header = ["method", "N", price, unit, "static\nfront", "above it\n[95 %]"]
    return Sheet(f"At equal {at}: {where}", header, rows)


def _savings(group: pd.DataFrame, where: str, unit: str, scale: float) -> Sheet:
    rows = [
        [
            row.label,
            _own_length(row),
            f"{scale * row.quality:.1f}",
            f"{scale * row.against_quality:.1f}",
            f"{row.seconds:.4f}",
            _interval(row, ".2f"),
        ]
        for row in _records(group)
    ]
    header = [*("method", "N", unit, "static\nfront", "s/sample", "times as fast\n[95 %]")]
    notes = (_CHOSEN,) if (group["points"] > 1).any() else ()
    return Sheet(f"At equal quality: {where}", header, rows, notes=notes)


def _against_sd(group: pd.DataFrame, where: str, unit: str, scale: float) -> Sheet:
    from specbench.analysis.compare import SD, SD_CHOSEN, SHARE

    rows = []
    for row in _records(group):
        length = f"{row.against_draft_length:.0f}"
        against = f"{SD}, N = {length}" if row.against == SD else f"{SD}, chosen ({length})"
        levels = [f"{scale * level:.1f}" for level in (row.quality, row.against_quality)]
        figure = _interval(row, ".2f")
        if row.metric == SHARE:
            against, levels, figure = "had by N alone", ["", ""], _interval(row, ".0f", 100, " %")
        rows.append([row.label, _own_length(row), against, *levels, figure])
    header = ["method", "N", "against", unit, f"sd's\n{unit}", "times as fast\n[95 %]"]
    chosen, shares = SD_CHOSEN in set(group["against"]), SHARE in set(group["metric"])
    notes = (*[_CHOSEN, _POOLED] * chosen, *[_BY_N] * shares)
    return Sheet(f"Against sd, each at its own quality: {where}", header, rows, 3, notes)


def _own_length(row: Any) -> str:
    """The draft length of a method, or that chosen of several."""
    length = f"{row.draft_length:.0f}"
    return length if row.points == 1 else f"chosen ({length})"


def _volumes(group: pd.DataFrame, where: str, unit: str, scale: float) -> Sheet:
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
    header = ["method", "N", "points", f"{unit} x", "area\n[95 %]", "adds to static's\n[95 %]"]
    return Sheet(f"Hypervolume: {where}", header, rows)


_SHEETS: dict[str, Callable[[pd.DataFrame, str, str, float], Sheet]] = {
    "acceptance": partial(_above, at="acceptance"),
    "time": partial(_above, at="time"),
    "quality": _savings,
    "own quality": _against_sd,  # the comparison's ``OWN``
    "hypervolume": _volumes,
}


def _records(rows: pd.DataFrame) -> Iterator[Any]:
    yield from rows.itertuples(index=False)


def _interval(row: Any, form: str, scale: float = 1.0, unit: str = "") -> str:
    """A figure with its interval, where it has them."""
    value, low, high = (scale * number for number in (row.value, row.ci_low, row.ci_high))
    return with_interval(value, low, high, form, unit)
