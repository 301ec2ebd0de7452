"""From settings to a plan: which methods suit which tasks, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from specbench.decoding.drafters.registry import MODEL, DrafterSpec
from specbench.decoding.heads.kinds import LINEAR
from specbench.decoding.heads.registry import (
    describe_heads,
    find_head,
    named_by_recipe,
    training_of,
)
from specbench.engine.pairs import Loading, PairSpec
from specbench.errors import UsageError, require
from specbench.experiment.cells import CONCURRENCY, Cell, Variant, cells_of, with_head
from specbench.experiment.plan import Plan, TaskPlan, most_in_flight, own_sources
from specbench.methods.registry import get_method
from specbench.plugins import require_distinct
from specbench.runs.columns import TIMED_AGAIN
from specbench.runs.configuration import DEFAULT_LIMIT, Settings
from specbench.runs.model import SampleRecord
from specbench.runs.tables import schema
from specbench.serving.arm import Arm
from specbench.tasks.metrics import METRICS, get_metric, try_metrics
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Task


class Systems(NamedTuple):
    """What a run measures: each variant that drafts with each draft length and drafter."""

    variants: Sequence[Variant]
    draft_lengths: Sequence[int]
    drafters: Sequence[DrafterSpec] = (MODEL,)
    # Methods that are skipped, with a note, where the pair has no head or a drafter does not suit.
    optional: Collection[str] = ()
    a_a: bool = False  # time ``sd`` twice
    arms: Sequence[Arm] = ()  # servers that decode beside the variants
    concurrency: Sequence[int] = (1,)  # requests in flight, each with each arm


def build_plan(
    pair: PairSpec,
    tasks: Sequence[Task],
    systems: Systems,
    settings: Settings,
    *,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    limit: int | None = None,
    may_execute: bool = False,
) -> Plan:
    """Plan a run: find the heads, choose the examples and validate the options.

    Without ``limit``, a task uses ``DEFAULT_LIMIT`` examples and a prompt file all of its prompts.
    """
    variants, draft_lengths, drafters, optional, a_a, arms, concurrency = systems
    for name, number in Counter(task.name for task in tasks).items():
        require(number == 1, f"two tasks are named {name}: change the `name` of one")
    suited = {method: _suited(method, drafters, optional) for method, _ in variants}
    plans = []
    headless: dict[str, list[str]] = {}
    unread: dict[str, None] = {}
    for task in tasks:
        trainable = not isinstance(task.source, PromptList)
        find = partial(find_head, pair, task.name, trainable=trainable)
        with_heads = []
        for method, parameters in (variant for variant in variants if suited[variant[0]]):
            try:
                with_heads.append((method, with_head(parameters, find)))
            except UsageError:
                if method not in optional or parameters["head"]:
                    raise
                headless.setdefault(method, []).append(task.name)
        names = named_by_recipe(v["head"] for _, v in with_heads if "head" in v)
        for _, parameters in with_heads:
            if (head := parameters.get("head")) in names:
                parameters["head"] = names[head]
        cells = cells_of(with_heads, draft_lengths, suited)
        misfits = [  # their heads read states of a draft model that does not draft
            cell
            for cell in cells
            for head in cell.heads
            if cell.drafter.kind.has_weights and training_of(head).get("kind") == LINEAR
        ]
        for method, drafter in {(cell.method, cell.drafter): None for cell in misfits}:
            reason = f"{method}: its linear head cannot read the states that {drafter} drafts from"
            advice = f"train one with --drafter {drafter}"
            require(method in optional, f"{reason}: {advice}, or leave out one of them")
            unread.setdefault(f"{reason}, so it is skipped: {advice}")
        cells = [cell for cell in cells if cell not in misfits]
        cells += [
            replace(cell, timing=TIMED_AGAIN) for cell in cells if a_a and cell.method == "sd"
        ]
        cells += [
            Cell(arm.name, ((CONCURRENCY, requests),), draft_length=0, server=True)
            for arm in arms
            for requests in concurrency
        ]
        whole = limit is None and isinstance(task.source, PromptList)
        count = None if whole else limit or DEFAULT_LIMIT
        examples = task.examples("test", count, settings.seed)[settings.shard_slice]
        require(bool(examples), f"{task.name} has too few prompts for --shard {settings.shard}")
        require_own_columns(task.metrics)
        try_metrics(task.metrics, examples)
        budget = settings.max_new_tokens or task.max_new_tokens
        plans.append(TaskPlan(task, tuple(examples), tuple(dict.fromkeys(cells)), budget))
    plan = Plan(
        pair,
        loading,
        settings,
        tuple(plans),
        may_execute=may_execute,
        notes=(*_left_out(suited, drafters), *unread, *_notes(pair, plans, headless, may_execute)),
        sources=own_sources(plans),
        arms=tuple(arms),
        in_flight=most_in_flight(plans),
    )
    require(len(plan) > 0, f"nothing to run: {'; '.join(plan.notes) or 'choose a method'}")
    return plan


def _suited(
    method: str, drafters: Sequence[DrafterSpec], optional: Collection[str]
) -> Sequence[DrafterSpec]:
    """Return the drafters that a method can judge; none if it is optional and needs others."""
    definition = get_method(method)
    if definition.rule is None:
        return (MODEL,)
    if not (definition.control or definition.takes("head")):
        return drafters
    fitting = [
        drafter
        for drafter in drafters
        if not (drafter.kind.copies or (definition.control and drafter.policy))
    ]
    if not fitting and method not in optional:
        inputs = "confidence" if definition.control else "hidden states"
        names = " and ".join(map(str, drafters))
        raise UsageError(
            f"{method} reads the {inputs} of a draft model, and {names} run "
            f"none: leave out {method}, or add --drafter model"
        )
    return fitting


def _left_out(
    suited: Mapping[str, Sequence[DrafterSpec]], drafters: Sequence[DrafterSpec]
) -> Iterator[str]:
    """Yield a sentence for each drafter on the methods that it leaves out."""
    for drafter in drafters:
        rules = {name: names for name, names in suited.items() if get_method(name).rule}
        if left_out := [method for method, names in rules.items() if drafter not in names]:
            skipped = "are skipped" if len(left_out) > 1 else "is skipped"
            reason = "stops by itself" if drafter.policy else "runs no draft model"
            yield f"{', '.join(left_out)} {skipped} with {drafter}, which {reason}"


def require_own_columns(metrics: Iterable[str]) -> None:
    """Check that metrics of the user's own do not share a column of ``samples.csv``."""
    columns = {*schema("samples", "measured"), *SampleRecord.model_fields}
    require_distinct(metrics, METRICS, columns, "column of the samples")


def _notes(
    pair: PairSpec,
    plans: Sequence[TaskPlan],
    headless: Mapping[str, Sequence[str]],
    may_execute: bool,
) -> Iterator[str]:
    """Yield one sentence each on skipped methods, used heads and unscored answers."""
    for method, tasks in headless.items():
        yield (
            f"{method} is skipped on {', '.join(tasks)}: pair {pair.name} has no head for it "
            "(train one with `specbench train`, or give one with --head)"
        )
    if used := [(p.task.name, head) for p in plans for cell in p.cells for head in cell.heads]:
        yield f"heads: {describe_heads(used, pair.name)}"
    for plan in plans:
        missing = sum(not any((e.reference, *e.references)) for e in plan.examples)
        if missing and any(get_metric(name).needs == "reference" for name in plan.task.metrics):
            yield (
                f"{missing} of {len(plan.examples)} prompts of {plan.task.name} have no "
                "reference and are not scored"
            )
    if unrun := [plan.task.name for plan in plans if plan.executed and not may_execute]:
        yield (
            f"code generated for {', '.join(unrun)} is not executed or scored: add "
            "--allow-code-execution, or score the run later with `specbench score RUN "
            "--allow-code-execution`"
        )
