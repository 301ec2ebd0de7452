"""From a unit of a suite to a plan, and what it may take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.experiment.folders import COMPLETE, read_config, same_plan
from specbench.experiment.plan import Plan, build_plan
from specbench.heads.registry import HeadFile
from specbench.pairs.registry import PairSpec, get_pair, with_draft
from specbench.suites.suite import DRAFTS, EVERY, HEADS, TUNED, Suite, Unit
from specbench.tasks.dataset import Sourcing
from specbench.tasks.task import load_task


def plan_of(suite: Suite, unit: Unit, output: Path, sourcing: Sourcing, may_execute: bool) -> Plan:
    """Lay out one run of a suite.

    Args:
        suite: The suite.
        unit: The run.
        output: Where the suite goes, with what it has trained.
        sourcing: Where examples come from.
        may_execute: Generated programs of models that are not bundled may be run.

    Raises:
        UsageError: There is no such pair or task, or a head is missing.
    """
    entry, spec = unit.entry, _pair(suite, unit, output)
    return build_plan(
        spec,
        [load_task(unit.task, sourcing)],
        entry.variants(_heads(suite, unit, output)),
        entry.draft_lengths,
        unit.settings(),
        loading=suite.loading,
        limit=entry.limit,
        may_execute=may_execute or spec.bundled,
    )


def is_done(folder: Path, plan: Plan) -> bool:
    """Tell whether a folder holds all samples of a plan, none of which failed."""
    config = read_config(folder)
    if config is None:
        return False
    progress = config["progress"]
    whole = progress["state"] == COMPLETE and progress["samples"] == len(plan)
    return bool(whole and not progress["failed"]) and same_plan(config, plan.describe())


def _pair(suite: Suite, unit: Unit, output: Path) -> PairSpec:
    spec = get_pair(unit.pair)
    if unit.entry.drafts != TUNED:
        return spec
    (job,) = (job for job in suite.needs(unit) if job.training.what == DRAFTS)
    return with_draft(spec, str(job.folder(output)))


def _heads(suite: Suite, unit: Unit, output: Path) -> list[Any]:
    """The heads that its methods verify with, as ``build_plan`` takes them."""
    jobs = [job for job in suite.needs(unit) if job.training.what == HEADS]
    if unit.entry.heads == EVERY:
        return [HeadFile(job.task, job.folder(output)) for job in jobs]
    return [str(job.folder(output).parent) for job in jobs] or [None]


def measured_paces(output: Path) -> dict[str, float]:
    """Return tokens per second of all samples in a suite's folder, by pair."""
    from specbench.analysis.frames import read_samples
    from specbench.experiment.tables import TABLE

    if not any(output.glob(f"*/{TABLE}")):
        return {}
    samples = read_samples(output)
    seconds = samples["prefill_seconds"] + samples["decode_seconds"]
    sums = samples.assign(seconds=seconds).groupby("pair")[["output_tokens", "seconds"]].sum()
    return {str(pair): row.output_tokens / row.seconds for pair, row in sums.iterrows()}


def most_hours(suite: Suite, unit: Unit, paces: Mapping[str, float]) -> float | None:
    """Return the hours of one worker if no answer ends before its limit.

    Args:
        suite: The suite.
        unit: The run.
        paces: Tokens per second by pair.

    Returns:
        None for a pair of which no pace is known.
    """
    if unit.pair not in paces:
        return None
    limit = unit.settings().max_new_tokens or load_task(unit.task).max_new_tokens
    return unit.samples(heads_of(suite, unit)) * limit / paces[unit.pair] / 3600


def heads_of(suite: Suite, unit: Unit) -> int:
    """Return how many heads a suite trains for the pair of a run."""
    return sum(job.training.what == HEADS and job.pair == unit.pair for job in suite.jobs())
