"""``specbench compare``: methods against plain SD and against the static front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.options.groups import grouped
from specbench.cli.options.rows import Rows
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
_LESS = "Differences from sd are paired by prompt, at the same N."
_FRONT = (
    "static front (randomised): the best that static weights reach, one drawn at random for each "
    "prompt. measured: at the next static point of less acceptance, or more time, without "
    "interpolation."
)
_CONTROL = "sharpened: the same front with `sharpened` too, a control for what sharpening gains."
_SPEEDS = (
    "tokens/s: the method's over sd's; s/sample: sd's over the method's; both with prefill, so "
    "above 1 is faster."
)
_FEW = (
    "Below 100 prompts the ratio at equal quality is too low where a sample's quality is 0 or 1: "
    "at 20 prompts its interval holds the truth in 76 % of runs."
)


@grouped
def compare(
    rows: Rows,
    runs: o.Runs = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHAT",
            help=f"What is held equal: {', '.join(HELD_EQUAL[:-1])}; or {HELD_EQUAL[-1]}, the area "
            "under each method's front.",
            show_default="all four",
            autocompletion=completer(lambda: HELD_EQUAL),
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
    """Compare methods with SD, and with the static front at equal acceptance, time and quality."""
    for option, value, known in (("--at", at, HELD_EQUAL), ("--format", format, FORMATS)):
        if value is not None and value not in known:
            raise UsageError(f"unknown {option} {value!r}: give one of {', '.join(known)}")

    from specbench.analysis.compare import ATS, compare
    from specbench.analysis.frames import read_samples
    from specbench.experiment.tables import TABLE

    folders = chosen_runs(runs, TABLE)
    # Of methods those that are placed: all are compared with sd and static.
    selection = replace(rows, method=None).selection()
    samples = selection.of(read_samples(*folders))
    placed = samples[(samples["draft_length"] > 0) & ~samples["method"].isin(["sd", "static"])]
    compared_with = [name for name in ("static", "sd") if (samples["method"] == name).any()]
    methods = _chosen(rows.selection().methods, placed["method"].unique(), compared_with)
    ats: Sequence[At] = [known for known in ATS if at in (None, known)]
    found = compare(samples, ats, methods)
    for reason in found.notes:
        note(reason)
    if "quality" in ats and samples.loc[samples["method"] == "sd", "draft_length"].nunique() == 1:
        note("sd has one draft length: run with --draft-length 3,5,7 to see what choosing N gives")
    if format == "csv":
        print(found.rows.to_csv(index=False), end="")
        return
    show = print_markdown if format == "markdown" else print_text
    show(_sheets(found.rows))


def _chosen(
    names: Sequence[str] | None, known: Sequence[str], compared_with: Sequence[str]
) -> Sequence[str] | None:
    """The methods to place, each of them one of the runs; None where none was typed.

    Args:
        names: What was typed.
        known: Methods of the runs that can be placed.
        compared_with: Others of the runs, which are what all is compared with.
    """
    for name in names or ():
        if name in known:
            continue
        has = ", ".join(known) if len(known) else "none"
        if name in compared_with:
            others = (
                f"name one of {has}"
                if len(known)
                else "these runs hold no other method that drafts"
            )
            raise UsageError(f"--method {name!r} is what methods are compared with: {others}")
        raise UsageError(f"--method {name!r} is not to be compared here: these runs have {has}")
    return names


def _sheets(rows: pd.DataFrame) -> Iterator[Sheet]:
    """A sheet for each task and each thing held equal."""
    from specbench.analysis.scores import shown_name, shown_scale

    keys = ["run_id", "temperature", "engine", "batch_size", "task"]
    several = rows["run_id"].nunique() > 1
    for (run, temperature, _, _, task), run_rows in rows.groupby(keys, sort=False):
        metric = str(run_rows["quality_metric"].iloc[0])
        unit, scale = shown_name(metric), shown_scale(metric)
        where = f"{task} on {run_rows['pair'].iloc[0]}, T = {temperature:g}" + f", {run}" * several
        less = _less_than_sd(run_rows, scale)
        for at, group in run_rows.groupby("at", sort=False):
            fewest, most = group["n"].min(), group["n"].max()
            prompts = f"n = {fewest}" if fewest == most else f"n = {fewest} to {most}"
            yield _SHEETS[str(at)](group, f"{where}, {prompts}", unit, scale, less)


_Less = Callable[[Any], tuple[str, str]]
"""The differences of a row's setting from plain SD in quality and acceptance."""


def _less_than_sd(rows: pd.DataFrame, scale: float) -> _Less:
    from specbench.analysis import compare as c

    own = rows[(rows["at"] == c.OWN) & (rows["against"] == c.SD)]
    found = {
        (row.label, row.draft_length): figures
        for figures in _grouped(own)
        if (row := figures.get(c.QUALITY_LESS))
    }

    def less(row: Any) -> tuple[str, str]:
        figures = found.get((row.label, row.draft_length), {}) if row.points == 1 else {}
        return (
            _shown(figures, c.QUALITY_LESS, "+.1f", scale),
            _shown(figures, c.ACCEPTANCE_LESS, "+.1f", 100),
        )

    return less


def _beside_sd(group: pd.DataFrame, where: str, unit: str, scale: float, _: _Less) -> Sheet:
    from specbench.analysis import compare as c

    rows, notes = [], [_SPEEDS, _LESS]
    for figures in _grouped(group, "against", "against_draft_length"):
        row = next(iter(figures.values()))
        length = f"{row.against_draft_length:.0f}"
        against = f"{c.SD}, N = {length}" if row.against == c.SD else f"{c.SD}, chosen ({length})"
        rows.append(
            [
                row.label,
                _own_length(row),
                against,
                f"{scale * row.quality:.1f}",
                _shown(figures, c.QUALITY_LESS, "+.1f", scale),
                f"{row.acceptance:.1%}",
                _shown(figures, c.ACCEPTANCE_LESS, "+.1f", 100),
                _shown(figures, c.TOKENS, ".2f"),
                _shown(figures, c.TIMES, ".2f"),
            ]
        )
        if c.SHARE in figures:
            share = _shown(figures, c.SHARE, ".0f", 100, " %")
            rows.append([row.label, _own_length(row), "had by N alone", *[""] * 5, share])
        if (ratio := figures.get(c.LENGTH)) and not ratio.ci_low <= 1 <= ratio.ci_high:
            notes.append(
                f"{row.label}, {where.partition(' on ')[0]}: {_interval(ratio, '.2f')} times as "
                "many tokens a sample as sd, so tokens/s and s/sample differ."
            )
    if c.SD_CHOSEN in set(group["against"]):
        notes += [_CHOSEN, _POOLED]
    notes += [_BY_N] * (c.SHARE in set(group["metric"]))
    header = [
        *("method", "N", "against", unit, "less sd's\n[95 %]"),
        *("accepted /\ndrafted", "less sd's\n[95 %]"),
        *("tokens/s\n/ sd's [95 %]", "sd's s/sample\n/ own [95 %]"),
    ]
    return Sheet(f"Against sd, each at its own quality: {where}", header, rows, 3, tuple(notes))


def _above(group: pd.DataFrame, where: str, unit: str, scale: float, less: _Less, at: str) -> Sheet:
    from specbench.analysis.compare import ABOVE, ABOVE_MEASURED, CONTROL, FRONT

    rows = []
    for figures in _grouped(group, "against"):
        row = figures[ABOVE]
        price = f"{row.acceptance:.1%}" if at == "acceptance" else f"{row.seconds:.4f}"
        rows.append(
            [
                row.label,
                f"{row.draft_length:.0f}",
                row.against.partition(" ")[0],
                price,
                f"{scale * row.quality:.1f}",
                f"{scale * row.reference:.1f}",
                _interval(row, "+.1f", scale),
                f"{scale * figures[ABOVE_MEASURED].reference:.1f}",
                _interval(figures[ABOVE_MEASURED], "+.1f", scale),
                row.between,
                *less(row),
            ]
        )
    price = "accepted /\ndrafted" if at == "acceptance" else "s/sample"
    header = [
        *("method", "N", "front", price, unit, "front,\nrandomised", "above it\n[95 %]"),
        *("front,\nmeasured", "above measured\n[95 %]", "between"),
        *_less_headers(unit),
    ]
    controlled = CONTROL in set(group["against"])
    notes = (
        (_FRONT, *[_CONTROL] * controlled, _LESS) if FRONT in set(group["against"]) else (_LESS,)
    )
    return Sheet(f"At equal {at}: {where}", header, rows, 3, notes)


def _savings(group: pd.DataFrame, where: str, unit: str, scale: float, less: _Less) -> Sheet:
    from specbench.analysis.compare import ENOUGH

    rows = [
        [
            row.label,
            _own_length(row),
            f"{scale * row.quality:.1f}",
            f"{scale * row.against_quality:.1f}",
            f"{row.seconds:.4f}",
            _interval(row, ".2f"),
            *less(row),
        ]
        for row in _records(group)
    ]
    header = [
        *("method", "N", unit, "front's,\nrandomised", "s/sample"),
        *("front's s/sample\n/ own [95 %]", *_less_headers(unit)),
    ]
    chosen, few = bool((group["points"] > 1).any()), bool(group["n"].min() < ENOUGH)
    notes = (_FRONT, *[_CHOSEN] * chosen, *[_FEW] * few, _LESS)
    return Sheet(f"At equal quality: {where}", header, rows, notes=notes)


def _less_headers(unit: str) -> tuple[str, str]:
    return f"{unit}\nless sd's [95 %]", "accepted / drafted\nless sd's [95 %]"


def _grouped(rows: pd.DataFrame, *keys: str) -> Iterator[dict[str, Any]]:
    """The figures of each setting, by metric."""
    setting = ["label", "draft_length", "points", *keys]
    for _, group in rows.groupby(setting, sort=False, dropna=False):
        yield {row.metric: row for row in _records(group)}


def _shown(
    figures: dict[str, Any], metric: str, form: str, scale: float = 1, unit: str = ""
) -> str:
    return _interval(figures[metric], form, scale, unit) if metric in figures else ""


def _own_length(row: Any) -> str:
    """The draft length of a method, or that chosen of several."""
    length = f"{row.draft_length:.0f}"
    return length if row.points == 1 else f"chosen ({length})"


def _volumes(group: pd.DataFrame, where: str, unit: str, _scale: float, _: _Less) -> Sheet:
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


_SHEETS: dict[str, Callable[[pd.DataFrame, str, str, float, _Less], Sheet]] = {
    "own quality": _beside_sd,  # the comparison's ``OWN``
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
    return with_interval(value, low, high, form, unit)
