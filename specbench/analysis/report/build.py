"""Build one page from run folders, with a row per cell and two tables per task and setting."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.figures.latency import latency_tables
from specbench.analysis.report.answers import Differing, differing, pack
from specbench.analysis.report.figures import figures
from specbench.analysis.report.pages import TracedRun, collect_traces, open_run, reported
from specbench.analysis.results import ROUND_COLUMNS, Results, rounds_of
from specbench.analysis.statistics.estimates import AT_LIMIT, QUALITY, TOKENS
from specbench.analysis.statistics.front import static_weight
from specbench.analysis.statistics.positions import acceptance_by_position
from specbench.analysis.statistics.summary import prompt_counts
from specbench.analysis.tables.html import environment
from specbench.analysis.tables.run_tables import figure_tables, text_tables
from specbench.analysis.tables.shown import temperature_text
from specbench.analysis.tables.table import Column, Field, Table, condensed, percent
from specbench.analysis.tables.verdict_tables import margin_tables, verdict_tables
from specbench.analysis.trace import LEGEND
from specbench.analysis.verdicts.compare import VERDICTS, by_task
from specbench.errors import UsageError, printable
from specbench.files import shown_path
from specbench.plugins import short_name
from specbench.runs.frames import Selection
from specbench.runs.labels import method_label
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.records import latest_records
from specbench.runs.run import NOTHING_TRUSTED, Run, Trust, read_run, unfinished
from specbench.runs.shards import by_name, missing_shards, summarised_folders
from specbench.tasks.example import Example

_OF_CONFIG = ("pair", "settings", "progress", "notes")
_OMITTED = {"command", "first_prompts", "warm_ups"}  # too long, or elsewhere on the page
#: Differences from plain SD in the tables; each of the others takes seconds of bootstraps.
_COMPARED = (QUALITY, TOKENS, AT_LIMIT)
# A path on some machine, of which a page that is sent shows the last part; no address of a server.
_PATH = re.compile(r"""(?<![\w.:/~])(?:~|[A-Za-z]:)?[/\\][^\s'",;]*[/\\]([^\s'",;/\\]+)""")


class Report(NamedTuple):
    """A page, and notes for the user."""

    html: str
    notes: list[str]


class Baseline(NamedTuple):
    """The method that all others are compared with, and the loss of quality that is accepted."""

    against: str
    margin: float  # points


class _Recorded(NamedTuple):
    """What the report shows of the records of runs, and notes on what is missing."""

    positions: list[pd.DataFrame]
    traced: list[TracedRun]
    notes: list[str]
    trace_notes: list[str]
    ends: list[Table]  # of the answers of servers
    differing: list[Differing]


def build(
    paths: Sequence[Path],
    selection: Selection = Selection(),  # noqa: B008 (frozen)
    trust: Trust = NOTHING_TRUSTED,
    baseline: Baseline | None = None,
) -> Report:
    """Return the report of runs; the same runs always give the same page.

    ``paths`` are run folders, or folders that contain runs. Without a ``baseline``, methods are
    compared with ``sd`` and the static front.

    Raises:
        UsageError: A run has no readable summary, nothing in it is selected, or it lacks the
            baseline.
    """
    folders = summarised_folders(paths)
    results = Results(folders, selection, by_folder=True)
    cells = report_cells(results)
    runs = [read_run(folder, trust, required=False) for folder in folders]
    recorded = _recorded(runs, selection, cells)
    states = [(_without_folders(shown_path(f)), unfinished(f)) for f in folders]
    notes = [f"{name} is incomplete: {state}" for name, state in states if state]
    notes += missing_shards(folders)
    with suppress(UsageError):  # no samples, and no verdicts on times
        notes += filter(None, [results.untimed])
    notes += map(_without_folders, recorded.notes)
    traces = collect_traces(recorded.traced, [*map(_without_folders, recorded.trace_notes)])
    positions = pd.concat([pd.DataFrame(), *map(results.named, recorded.positions)])
    samples: pd.DataFrame | None = None
    verdicts, answer = pd.DataFrame(columns=list(VERDICTS)), list[Table]()
    if baseline is not None:
        verdicts = results.against(*baseline)
        answer = list(margin_tables(verdicts))
        verdicts = verdicts[verdicts["sentence"].notna()]
    try:
        samples = results.samples
        if baseline is None:
            verdicts, answer = results.verdicts, list(verdict_tables(results.comparison))
    except UsageError as error:
        reason = str(error)
        for folder in folders:
            reason = reason.replace(str(folder), folder.name)
        notes.append(f"no verdicts: {reason}")
    if samples is not None and not answer and any(run.servers for run in runs):
        notes.append("servers are compared with one method: add --against METHOD --margin POINTS")
    commands: list[Sequence[object]] = [run.environment.command for run in runs]
    judged = ["--against", baseline.against, "--margin", baseline.margin] if baseline else []
    commands.append(["specbench", "report", *paths, *selection.arguments(), *judged])
    template = environment().get_template("report.html")
    html = template.render(
        title=" and ".join(
            f"{', '.join(rows['task'].unique())} with the pair {pair}"
            for pair, rows in cells.groupby("pair", sort=False)
        ),
        facts=_facts(runs, cells),
        notes=notes,
        answer=answer,
        verdicts=by_task(verdicts),
        served=[*([] if samples is None else latency_tables(samples)), *recorded.ends],
        answers=pack(recorded.differing),
        tables=[*figure_tables(cells, intervals=True), *text_tables(cells)],
        figures=list(figures(cells, positions, samples)),
        front=samples is not None and static_weight(cells).nunique() > 1,
        traces=traces,
        legend=LEGEND,
        environment=_environment(runs),
        commands=[
            _without_folders(shlex.join(map(str, command))) for command in commands if command
        ],
    )
    # No text of a run may change the direction of the page's.
    return Report(printable(html), [*notes, *traces.notes])


def _recorded(runs: Sequence[Run], selection: Selection, cells: pd.DataFrame) -> _Recorded:
    """Read the records of each folder once; the rounds of shards are pooled."""
    recorded = _Recorded([], [], [], [], [], [])
    folders = {run.folder: run for run in runs}
    arms = {*map(short_name, selection.methods or ())}
    tasks = {task.partition("/")[0] for task in cells["task"]} if selection.tasks else None
    for parts in by_name(folders).values():
        rounds: list[pd.DataFrame] = []
        lacks_positions = f"no acceptance by position of {', '.join(map(shown_path, parts))}"
        for run in (folders[folder] for folder in parts):
            name = _without_folders(shown_path(run.folder))
            lacks_traces = f"no traces of {name}"
            try:
                records = latest_records(run.folder, ROUND_COLUMNS)
            except UsageError as error:
                recorded.notes.append(f"no acceptance by position of {name}: {error}")
                recorded.trace_notes.append(f"{lacks_traces}: {error}")
                continue
            of_page = name if len(runs) > 1 else None
            served = [r for r in records if r.method in run.servers]
            served = [r for r in served if not arms or short_name(r.method) in arms]
            served = [r for r in served if not tasks or r.task in tasks]
            recorded.ends.extend(ends_tables(served, of_page))
            answers = list(reported(records, cells))
            examples: Mapping[str, Mapping[str, Example]] = {}
            with suppress(UsageError):  # it may lack them
                examples = run.examples
            recorded.differing.extend(differing(answers, examples, of_page))
            if cells["draft_length"].any():
                try:
                    rounds.append(rounds_of(records, run.folder))
                except UsageError as error:
                    recorded.notes.append(f"no acceptance by position of {name}: {error}")
            try:
                recorded.traced.append(open_run(run, answers, of_page))
            except UsageError as error:
                recorded.trace_notes.append(f"{lacks_traces}: {error}")
        try:
            if rounds:
                pooled = selection.of(pd.concat(rounds, ignore_index=True))
                recorded.positions.append(acceptance_by_position(pooled))
        except UsageError as error:
            recorded.notes.append(f"{lacks_positions}: {error}")
    return recorded


def ends_tables(records: Iterable[SampleRecord], run: str | None = None) -> Iterator[Table]:
    """Yield a table of the ends and failures of each task's arms, of a ``run`` among several."""
    tasks: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for record in records:
        end = "failed" if record.status == ERROR else record.finish_reason or record.stopped_by
        tasks[record.task][method_label(vars(record))][end or "unknown"] += 1
    for task, arms in tasks.items():
        ends = dict.fromkeys(end for counts in arms.values() for end in counts)
        fields: list[Field[tuple[str, Counter[str]]]] = [
            ("arm", lambda arm: arm[0]),
            *((end, lambda arm, end=end: percent(arm[1][end] / arm[1].total())) for end in ends),
        ]
        title = f"Ends of answers on {task}" + (f", {run}" if run else "")
        yield condensed(Table.of(arms.items(), fields, title))


def _facts(runs: Sequence[Run], cells: pd.DataFrame) -> list[str]:
    """Return the models of each pair, then temperatures, draft lengths and numbers of prompts."""
    pairs = [run.config.pair for run in runs if run.config.pair.model_fields_set]
    models = []
    for pair in pairs:
        draft = f", draft {pair.draft}" if pair.draft else ""
        models.append(_without_folders(f"Pair {pair.name}: target {pair.target}{draft}"))
    shared = {
        "T": cells["temperature"].unique(),
        "N": cells.loc[cells["draft_length"] > 0, "draft_length"].unique(),
        "n": prompt_counts(cells).unique(),
    }
    facts = [
        f"{name} = {', '.join(f'{value:g}' for value in sorted(values))}"
        for name, values in shared.items()
        if len(values)
    ]
    return [*dict.fromkeys(models), "; ".join(facts) + (" prompts" if len(shared["n"]) else "")]


def _environment(runs: Sequence[Run]) -> Table:
    """Return settings, software and hardware of the runs, one column per run."""
    settings = []
    for run in runs:
        config = {n: v for n, v in run.config.plain().items() if n in _OF_CONFIG}
        facts = {n: v for n, v in run.environment.plain().items() if n not in _OMITTED}
        settings.append(dict(_flat(config | facts)))
    names = dict.fromkeys(name for values in settings for name in values)
    rows = [[name, *(values.get(name, "") for values in settings)] for name in names]
    columns = [Column("run"), *(Column(_without_folders(shown_path(run.folder))) for run in runs)]
    return Table("", columns, rows)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of nested objects with its path, without nulls."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}, {key}" if name else str(key))
    elif isinstance(value, list):
        texts = "; ".join(v if isinstance(v, str) else json.dumps(v) for v in value)
        yield name, _without_folders(texts)
    elif value is not None:
        yield name, _without_folders(value if isinstance(value, str) else json.dumps(value))


def _without_folders(text: str) -> str:
    """Return a text with the last part of each absolute path in it, which a page may tell."""
    return _PATH.sub(r"\1", text)


def report_cells(results: Results) -> pd.DataFrame:
    """Return the cells with differences from plain SD, and the ``setting`` of each table."""
    cells = results.cells
    with suppress(UsageError):  # a run may lack its samples
        cells = results.cells_beside_sd(_COMPARED)
    settings = cells["pair"] + ", " + cells["temperature"].map(temperature_text)
    if cells["engine"].nunique() > 1:
        settings += ", " + cells["engine"]
    if cells["batch_size"].nunique() > 1:
        settings += ", batch " + cells["batch_size"].astype("str")
    return cells.assign(setting=settings)
