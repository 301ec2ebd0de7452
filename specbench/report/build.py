"""Build one page from run folders."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.verdicts import VERDICTS, by_task, foremost
from specbench.errors import UsageError
from specbench.experiment.folders import NOTHING_TRUSTED, Run, Trust, read_run, unfinished
from specbench.report.figures import figures
from specbench.report.pages import render
from specbench.report.tables import read_cells, summary_tables, text_tables
from specbench.report.traces import collect_traces
from specbench.results import Results
from specbench.runs.folders import run_folders
from specbench.runs.frames import Selection
from specbench.runs.records import SUMMARY
from specbench.table import Column, Table
from specbench.trace.trace import LEGEND

_OF_CONFIG = ("pair", "settings", "progress", "notes")
_OMITTED = {"command", "first_prompts", "warm_ups"}  # too long, or elsewhere on the page


class Report(NamedTuple):
    """A page, and notes for the user."""

    html: str
    notes: list[str]


def build(
    paths: Sequence[Path],
    selection: Selection = Selection(),  # noqa: B008 (frozen)
    trust: Trust = NOTHING_TRUSTED,
) -> Report:
    """Return the report of runs; the same runs always give the same page.

    Args:
        paths: Run folders, or folders that contain runs.
        selection: Tasks, methods and draft lengths to show.
        trust: Which tokenizers may be loaded for the traces, besides the bundled ones.

    Raises:
        UsageError: A run has no readable summary, or nothing in it is selected.
    """
    folders = run_folders(paths, SUMMARY)
    cells, further = read_cells(folders, selection)
    samples = _samples(folders, selection)
    positions, unknown = _positions(folders, selection) if cells["draft_length"].any() else ([], [])
    states = {folder.name: unfinished(folder) for folder in folders}
    partial = [f"{name} is incomplete: {state}" for name, state in states.items() if state]
    runs = [read_run(folder, trust, required=False) for folder in folders]
    traces = collect_traces(runs, cells)
    verdicts = _verdicts(folders, selection)
    typed = [run.environment.get("command") for run in runs]
    itself = ["specbench", "report", *map(str, paths), *str(selection).split()]
    html = render(
        "report.html",
        title=" and ".join(f"{tasks} with the pair {pair}" for pair, tasks in _tasks(cells)),
        facts=_facts(runs, cells),
        notes=[*partial, *unknown],
        first=by_task(foremost(verdicts)),
        verdicts=by_task(verdicts),
        tables=[*summary_tables(cells), *text_tables(cells, further)],
        figures=list(figures(cells, pd.concat([pd.DataFrame(), *positions]), samples)),
        traces=traces,
        legend=LEGEND,
        environment=_environment(runs),
        commands=[shlex.join(map(str, command)) for command in [*typed, itself] if command],
    )
    return Report(html, [*partial, *unknown, *traces.notes])


def _positions(
    folders: Sequence[Path], selection: Selection
) -> tuple[list[pd.DataFrame], list[str]]:
    """Return acceptance by position of the runs that have records of rounds, and notes."""
    tables, notes = [], []
    for folder in folders:
        try:
            tables.append(Results([folder], selection).positions)
        except UsageError as error:
            notes.append(f"no acceptance by position of {folder.name}: {error}")
    return tables, notes


def _samples(folders: Sequence[Path], selection: Selection) -> pd.DataFrame | None:
    """Return the samples of the runs; None if one lacks them."""
    with suppress(UsageError):
        return Results(folders, selection).samples
    return None


def _verdicts(folders: Sequence[Path], selection: Selection) -> pd.DataFrame:
    """Return the verdicts; none if a run lacks its samples or they lack ``sd``."""
    with suppress(UsageError):
        return Results(folders, selection).verdicts
    return pd.DataFrame(columns=list(VERDICTS))


def _tasks(cells: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the name of each pair and those of its tasks."""
    for pair, rows in cells.groupby("pair", sort=False):
        yield str(pair), ", ".join(rows["task"].unique())


def _facts(runs: Sequence[Run], cells: pd.DataFrame) -> list[str]:
    """Return the models of each pair, then temperatures, draft lengths and numbers of prompts."""
    pairs = [run.config["pair"] for run in runs if "pair" in run.config]
    models = [
        f"Pair {pair.get('name')}: target {pair.get('target')}, draft {pair.get('draft')}"
        for pair in pairs
    ]
    shared = {
        "T": cells["temperature"].unique(),
        "N": cells.loc[cells["draft_length"] > 0, "draft_length"].unique(),
        "n": cells["n"].unique(),
    }
    facts = [
        f"{name} = {', '.join(f'{value:g}' for value in sorted(values))}"
        for name, values in shared.items()
        if len(values)
    ]
    return [*dict.fromkeys(models), "; ".join(facts) + (" prompts" if len(shared["n"]) else "")]


def _environment(runs: Sequence[Run]) -> Table:
    """Return settings, software and hardware of the runs, one column per run."""
    settings = [
        dict(
            _flat(
                {name: run.config[name] for name in _OF_CONFIG if name in run.config}
                | {name: v for name, v in run.environment.items() if name not in _OMITTED}
            )
        )
        for run in runs
    ]
    facts = dict.fromkeys(name for run in settings for name in run)
    columns = [Column("run"), *(Column(run.folder.name) for run in runs)]
    return Table("", columns, [[name, *(run.get(name, "") for run in settings)] for name in facts])


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of nested objects with its path, without nulls."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}, {key}" if name else str(key))
    elif isinstance(value, list):
        yield name, "; ".join(v if isinstance(v, str) else json.dumps(v) for v in value)
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)
