"""Compare two runs cell by cell, paired by their samples' names, and in times only on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.estimates import ACCEPTANCE_LESS, QUALITY_LESS, SECONDS, TIMES
from specbench.analysis.statistics.intervals import Interval
from specbench.analysis.verdicts.contrasts import COMPARISON, Row
from specbench.runs.configuration import Difference, differences_of
from specbench.runs.frames import CELL, example_ids
from specbench.runs.labels import method_labels
from specbench.runs.run import ENVIRONMENT, Run

#: Value of ``at`` in the rows of a comparison of two runs.
BETWEEN = "two runs"
#: Share of the samples that have the same counts and, by the same metric, the same quality.
EQUAL = "equal_samples"

_OF_RUN = {"run_id", "pair", "engine", "batch_size", "session"}
_CELL = [name for name in CELL if name not in _OF_RUN]
_SAMPLE = ["example", "turn", "repeat"]
_COUNTS = ["output_tokens", "rounds", "proposed", "accepted"]

# Keys that say nothing about what was measured, and keys that differ between any two runs.
_IGNORED = {
    *("notes", "progress", "samples_planned", "examples", "cells"),
    *("command", "warm_ups", "first_prompts", "gpu_states", "gpus_at_the_end"),
    "compared_with_eager",
}
_ABSENT = object()  # differs from null, which is an option that was not given
_MACHINE = ("platform", "cpu", "torch.threads", "torch.gpus")  # facts that affect times


def run_differences(first: Run, second: Run) -> list[Difference]:
    """Return the settings, tasks and facts of the environment that two runs do not share.

    Cells and numbers of examples are left out, and so are facts that only one run has.
    """
    names = first.tasks.keys() & second.tasks.keys()

    def facts(run: Run) -> dict[str, Any]:
        tasks = {name: task.plain() for name, task in run.tasks.items() if name in names}
        return {**run.config.plain(), "tasks": tasks, "environment": run.environment.plain()}

    differences = differences_of(facts(first), facts(second), _IGNORED, absent=_ABSENT)
    return [difference for difference in differences if _ABSENT not in difference[1:]]


def why_untimed(first: Run, second: Run) -> str | None:
    """Return why the times of two runs cannot be compared, or None if they can."""
    environments = first.environment.plain(), second.environment.plain()
    if not all(environments):
        return f"a run has no {ENVIRONMENT}"
    differences = differences_of(*environments, set())
    if any(difference.name.startswith(_MACHINE) for difference in differences):
        return "they were measured on different machines"
    days = [str(environment.get("started"))[: len("2026-01-01")] for environment in environments]
    return None if days[0] == days[1] else f"they were measured on {days[0]} and {days[1]}"


def between_runs(samples: pd.DataFrame, *, times: bool) -> pd.DataFrame:
    """Compare the second of two runs with the first, in the cells that both have.

    Returns:
        Columns ``contrasts.COMPARISON`` with ``at`` = ``BETWEEN``: a row's run is the second one,
        ``against`` names the first one, and ``reference`` is its value. The metrics are the
        differences in quality and acceptance, ``EQUAL`` and, with ``times``, ``TIMES``. It has no
        rows if the runs share no sample.
    """
    runs = samples["run_id"].unique()
    rows: list[Row] = []
    samples = samples.assign(example=example_ids(samples))
    for _, cell in samples.groupby(_CELL, sort=False, dropna=False):
        earlier, later = cell[cell["run_id"] == runs[0]], cell[cell["run_id"] == runs[-1]]
        shared = earlier[_SAMPLE].merge(later[_SAMPLE])
        if len(shared) and len(runs) > 1:
            rows += _compare_cells(shared.merge(earlier), shared.merge(later), times)
    return pd.DataFrame(rows, columns=list(COMPARISON))


def _compare_cells(base: pd.DataFrame, samples: pd.DataFrame, times: bool) -> Iterator[Row]:
    """Compare the samples of one cell, which are in the same order on both sides."""
    cell = samples.iloc[0]
    earlier_figures, later_figures = map(_figures_of, (base, samples))
    shared = {name: cell[name] for name in COMPARISON if name in cell} | later_figures
    shared |= {"at": BETWEEN, "label": method_labels([dict(cell)])[0], "points": 1}
    shared |= {"against": base["run_id"].iloc[0], "against_draft_length": cell["draft_length"]}

    def row(metric: str, figure_name: str, interval: Interval | None = None) -> Row:
        columns = estimates.columns(metric, interval or estimates.contrast(samples, base, metric))
        return shared | {"reference": earlier_figures.get(figure_name)} | columns

    same_metric = base["quality_metric"].iloc[0] == cell["quality_metric"]
    if same_metric and not np.isnan(later_figures["quality"] - earlier_figures["quality"]):
        yield row(QUALITY_LESS, "quality")
    if cell["draft_length"]:
        yield row(ACCEPTANCE_LESS, "acceptance")
    both = pd.concat([samples, base])
    if times and not both["session"].any() and (both["batch_size"] == 1).all():
        yield row(TIMES, "seconds")
    counts = [*_COUNTS, "quality"] if same_metric else _COUNTS
    alike = (samples[counts].fillna(-1) == base[counts].fillna(-1)).all(axis=1)
    yield row(EQUAL, "", Interval(alike.mean(), np.nan, np.nan, samples["sample_id"].nunique()))


def _figures_of(cell: pd.DataFrame) -> dict[str, float]:
    """Return the columns of ``COMPARISON`` that describe one side."""
    metric = cell["quality_metric"].iloc[0]
    scored = cell["quality"].notna().any()
    return {
        "quality": estimates.score_interval(cell, "quality", metric).value if scored else np.nan,
        "acceptance": cell["accepted"].sum() / (cell["proposed"].sum() or np.nan),
        "seconds": estimates.term(cell, SECONDS).mean(),
    }
