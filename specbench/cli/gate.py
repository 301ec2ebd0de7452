"""What ``specbench compare`` requires of runs, so that a pipeline notices what got worse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.analysis.tables.table import percent
from specbench.cli.finished import Rows
from specbench.cli.options import ALL, TableFormat
from specbench.config import option
from specbench.errors import RunError
from specbench.plugins import short_name
from specbench.runs.run import CONFIG, read_run, unfinished
from specbench.runs.shards import missing_shards, run_name

if TYPE_CHECKING:
    import pandas as pd

    from specbench.analysis.results import Results
    from specbench.analysis.verdicts.contrasts import Row

BOTH = "--against METHOD and --margin POINTS belong together: give both"
ALONE = "--against compares with one method alone: omit --at and --times"
WITHIN, SAMPLED = "within", "same-distribution"
_LOSS = "Loss of quality that is acceptable, in points, for --against."
MARGIN = option(None, _LOSS, metavar="POINTS", gt=0, lt=100, needs={"against": BOTH})
MOST_NAMED = 5  # methods in a sentence


class GatedFormat(TableFormat):
    """What to compare with, how to print it, and what must hold for exit code 0."""

    against: str | None = option(
        None,
        "Compare every other method with this one, such as sd, 'static w=0.5' or a server: is its "
        "loss of quality within --margin, and how fast is it?",
        metavar="METHOD",
        shown="sd and the static front",
        needs={"margin": BOTH},
        conflicts=dict.fromkeys(("at", "times"), ALONE),
    )
    margin: float | None = MARGIN
    noise: list[str] | None = option(
        None,
        "With --against: servers that are the same as it at other addresses; how much they differ "
        "from it is noise.",
        metavar="SERVER[,...]",
        shown="a server at its own address",
        needs={"against": "{} needs --against: name the server that it repeats"},
    )
    require: str | None = option(
        None,
        "End with exit code 1 unless (within) every method is shown to be within --margin of "
        "--against; (same-distribution) none is shown to sample otherwise, and greedy texts "
        "in one of five answers would be seen in 80 % of such runs.",
        choices=(WITHIN, SAMPLED),
        shown="nothing",
        needs={"against": "{} needs --against METHOD and --margin POINTS: add both"},
    )
    require_acceptance: float | None = option(
        None,
        "End with exit code 1 unless every method that drafts has at least this share of its "
        "drafts accepted.",
        metavar="PERCENT",
        shown="nothing",
        gt=1,  # a share, such as 0.6, would hold for all
        le=100,
    )


def hold(
    options: GatedFormat,
    results: Results,
    folders: Sequence[Path],
    rows: Rows,
    judged: pd.DataFrame | None = None,
) -> None:
    """End the command by an error that names methods, tasks and reasons if a requirement fails.

    ``judged`` are rows of ``margin.margin_rows``, if there is anything to compare.
    """
    against, floor = options.against, options.require_acceptance
    if not options.require and floor is None:
        return
    lacking = [*_lacking(folders, results.decodes, rows, against)]
    failed: dict[str, list[str]] = {}
    if options.require == SAMPLED:
        unlike = () if judged is None else _unlike(judged)
        failed[f"not shown to sample as {against}"] = [*lacking, *unlike]
    elif options.require:
        points = f"{options.margin:g} point{'s' if options.margin != 1 else ''}"
        beyond = () if judged is None else _beyond(judged, results.samples)
        failed[f"not shown to be within {points} of {against}"] = [*lacking, *beyond]
    if floor is not None:
        repeated = [] if judged is None else judged.loc[judged["again"].eq(True), "method"]
        rejected = _rejected(results, floor, {against, *repeated} if against else None)
        failed[f"not known to accept {floor:g} % of drafts"] = [*lacking, *rejected]
    sentences = []
    for requirement, parts in failed.items():
        unnamed = parts[MOST_NAMED:]
        names = ", ".join(dict.fromkeys(part.partition(" on ")[0] for part in unnamed))
        more = f" and {len(unnamed)} more: {names}" if unnamed else ""
        sentences += [f"{requirement}: {', '.join(parts[:MOST_NAMED])}{more}"] if parts else []
    if sentences:
        raise RunError("; ".join(sentences))


def _lacking(
    folders: Sequence[Path], samples: pd.DataFrame, rows: Rows, against: str | None
) -> Iterator[str]:
    """Yield what is missing of the runs, and selected methods without a single answer."""
    from specbench.runs.frames import folder_names

    for folder in folders:
        if state := unfinished(folder):
            yield f"{folder} (incomplete: {state})"
        elif not (folder / CONFIG).exists():
            yield f"{folder} (without {CONFIG}, which says whether it ended)"
    yield from missing_shards(folders)
    names = folder_names(folders)
    present = {*samples[["run_id", "task", "method"]].itertuples(index=False, name=None)}
    methods = {*map(short_name, rows.method or [ALL]), (against or "").partition(" ")[0]}
    planned: dict[str, None] = {}
    for folder in folders:
        run_id = names.get(run_name(folder), run_name(folder))
        for task, plan in read_run(folder, required=False).tasks.items():
            # A task may be selected by one of its categories, as in questions/math.
            if rows.task and not any(n == ALL or f"{n}/".startswith(f"{task}/") for n in rows.task):
                continue
            for method in (cell.method for cell in plan.cells):
                if {ALL, short_name(method)} & methods and (run_id, task, method) not in present:
                    planned[f"{short_name(method)} on {task} (missing)"] = None
    yield from planned


def _beyond(judged: pd.DataFrame, samples: pd.DataFrame) -> Iterator[str]:
    """Yield the methods that rows of ``margin_rows`` do not show within the margin, and why."""
    from specbench.analysis.statistics.estimates import QUALITY_LESS
    from specbench.analysis.statistics.intervals import FEWEST
    from specbench.analysis.tables.shown import shown
    from specbench.analysis.verdicts import words
    from specbench.runs.frames import rows_of

    baseline = judged[judged["against"].isna()].iloc[0]
    compared = samples[samples["method"] != baseline["method"]]
    judged_tasks, tasks = (
        dict.fromkeys(zip(rows["run_id"], rows["task"], strict=True)) for rows in (judged, compared)
    )
    for run, task in tasks:
        if (run, task) not in judged_tasks:
            yield f"{baseline['label']} on {task} (missing)"
    for row in rows_of(judged):
        of_recipe = row["seeds"] == 1  # judged by the mean over its heads
        if not isinstance(row["against"], str) or of_recipe or row["loss"] == words.EXCLUDED:
            continue
        reason, more = str(row["verdict"]), row["more_prompts"]
        if not row["n"] >= FEWEST:
            reason = f"{words.FEW}: {row['n']:.0f} of at least {FEWEST}"
        elif difference := shown(QUALITY_LESS, row["quality_metric"]).interval(row):
            reason += f": {difference} points"
            reason += f", about {float(f'{more:.2g}'):.0f} more prompts would decide" * (more > 0)
        yield _named(row, reason, judged)


def _unlike(judged: pd.DataFrame) -> Iterator[str]:
    """Yield the methods whose texts differ, and those of which that would not have been seen."""
    from specbench.analysis.verdicts import sampling
    from specbench.runs.frames import rows_of

    for row in rows_of(judged[judged["against"].notna() & ~(judged["seeds"] > 1)]):
        power = row["same_texts_power"]
        if row["same_texts"] == sampling.DIFFER:
            yield _named(row, f"{sampling.DIFFER}, p = {row['same_texts_p']:.2g}", judged)
        elif not isinstance(row["same_texts"], str):
            yield _named(row, "nothing is sampled at T = 0", judged)
        elif isnan(power):  # they were not compared
            yield _named(row, "too few texts of a prompt: --repeats 8", judged)
        elif power < sampling.ENOUGH:
            seen = f"greedy texts in one of five answers would be seen in {percent(power, '.0f')}"
            yield _named(row, f"{seen}: raise -n or --repeats", judged)


def _rejected(results: Results, floor: float, plain: Collection[str] | None) -> Iterator[str]:
    """Yield the methods that accept fewer drafts than the floor, or of which that is unknown.

    Of several servers one may draft nothing on purpose. A server that tells no acceptance therefore
    counts only where others are named ``plain``, or where no method tells any.
    """
    from specbench.analysis.statistics.summary import ACCEPTANCE
    from specbench.runs.frames import rows_of

    cells = results.cells
    labels, drafting = {*cells["label"]}, 0
    several = cells.loc[cells["draft_length"] > 0, "draft_length"].nunique() > 1
    for cell in rows_of(cells):
        rate, is_server = cell[ACCEPTANCE], cell["method"] in results.servers
        names = {cell["label"], *({short_name(cell["method"]), cell["method"]} - labels)}
        if names & {*(plain or ())} or not (is_server or cell["draft_length"] > 0):
            continue
        if rate != rate and is_server and plain is None:
            continue
        drafting += 1
        if not 100 * rate >= floor:
            cell["label"] += f", N = {cell['draft_length']}" if several else ""
            yield _named(cell, percent(rate, ".1f") or "its acceptance is unknown", cells)
    if not drafting:
        yield "no method tells its acceptance"


def _named(row: Row, reason: str, rows: pd.DataFrame) -> str:
    """Name method, task and, where the rows have several, the run, with a reason."""
    loads = rows["concurrency"].nunique() if "concurrency" in rows else 0
    at = f" at concurrency {row['concurrency']:.0f}" if loads > 1 else ""
    run = f" in {row['run_id']}" if rows["run_id"].nunique() > 1 else ""
    return f"{row['label']}{at} on {row['task']}{run} ({reason})"
