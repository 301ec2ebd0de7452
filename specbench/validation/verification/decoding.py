"""Samples of a run are decoded again, with the models, rules and heads that are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from specbench.decoding.heads.registry import RELEASED, TRAINED, bundled_heads, training_of
from specbench.engine.pairs import ROLES
from specbench.errors import UsageError
from specbench.experiment.cells import Cell
from specbench.experiment.environment import describe_environment
from specbench.experiment.identity import sample_keys
from specbench.experiment.loader import Loader
from specbench.experiment.plan import Plan, Step, TaskPlan, own_sources
from specbench.experiment.runner import SampleRunner
from specbench.files import require_plain
from specbench.plugins import in_file
from specbench.runs.configuration import CellConfig, differences_of
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.records import names_of
from specbench.runs.run import ENVIRONMENT, Run
from specbench.validation import findings
from specbench.validation.verification.plan import arms_of

#: Absolute; probabilities are stored with four digits, and depend on the machine and the batch.
PROBABILITY = {torch.float32: 1.5e-4, torch.float64: 1.5e-4}
COARSE = 1e-3  # of the other types
#: The columns that decoding again must reproduce, causes before consequences.
DECODED = (
    *("prompt_tokens", "token_ids", "text", "stopped_by", "output_tokens", "rounds", "proposed"),
    *("accepted", "judged", "expected_acceptance", "mean_weight", "per_round", "quality", "scores"),
    "zero_p",
)
AGAIN = "decoded again"

ShowSample = Callable[[SampleRecord], object]


@dataclass(frozen=True)
class Replay:
    """Decodes samples of a run again."""

    run: Run
    samples: int  # per cell
    seed: int  # of their choice
    methods: Mapping[str, str]  # the rule that is here for each that the run names
    may_execute: bool  # generated code, for scoring

    def cell(self, config: CellConfig, task: str) -> Cell:
        """Return a cell of the run, with a rule and a head that are here."""
        recorded = Cell.recorded(config)
        recorded = replace(recorded, method=self.methods[recorded.method])
        if in_file(policy := recorded.drafter.policy):
            raise UsageError(f"its policy {policy} is not bundled")
        head, results = recorded.values.get("head"), TRAINED.parent
        path = Path(str(head))  # without a folder, it is a name
        inside = len(path.parts) == 1 or path.is_relative_to(results)
        leaves = path.is_absolute() or ".." in path.parts or not inside
        if head is not None and leaves and head not in bundled_heads():
            raise UsageError(
                f"its head is outside of {results}, the only folder that heads are read from"
            )
        try:
            cell = recorded.resolved(self.run.pair, task)
        except OSError as error:  # the name of a head may be anything
            raise UsageError(f"its head cannot be read ({error.strerror})") from error
        for head in cell.heads:
            if head.path.suffix == RELEASED:
                raise UsageError(f"{head.path} is no safetensors file")
            require_plain(head.path)
        return cell

    def decode(
        self, tasks: Sequence[TaskPlan], records: Sequence[SampleRecord], show_sample: ShowSample
    ) -> Iterator[findings.Finding]:
        """Yield the findings on the models and on the samples decoded again.

        Of those that are not checked, the sentence says what is not. ``show_sample`` is called with
        each sample decoded again.
        """
        run, options = self.run, (self.run.pair, self.run.loading, self.run.settings)
        sources, arms = own_sources(tasks), arms_of(run)
        plan = Plan(*options, tuple(tasks), self.may_execute, sources=sources, arms=arms)
        pair = Loader().load(plan)
        runner = SampleRunner(plan, pair)
        yield _check_models(run, runner)
        recorded = {names_of(record): record for record in records}
        within = PROBABILITY.get(pair.target.dtype, COARSE) if pair.is_exact else COARSE
        for number, task in enumerate(plan.tasks):
            compared, keys, is_broken = [], [], False
            for steps in self._choose(plan, number, recorded):
                for step, redecoded in runner.run(steps):
                    show_sample(redecoded)
                    record = recorded[self._names(plan, step)]
                    failed = redecoded.error if redecoded.status == ERROR else ""
                    fault = failed or _divergence(record, redecoded, within)
                    is_same_prompt = redecoded.prompt_tokens == record.prompt_tokens
                    # A later turn's prompt has the answers before it.
                    is_broken |= bool(failed) or not (is_same_prompt or (record.turn or 1) > 1)
                    compared.append((vars(record), fault))
                    keys.append((step, record))
            subject = f"{task.task.name}, {len(compared):,} samples of {len(task.cells)} cells"
            result = findings.finding(AGAIN, subject, compared)
            # In bfloat16 rounding depends on the batch and may change a token, but nothing else.
            coarse = result.verdict == findings.FAILED and within == COARSE and not is_broken
            yield replace(result, verdict=findings.REPORT) if coarse else result
            servers = run.environment.servers.items() if plan.arms else ()
            left_out = {"url", "options_refused", "options_changed"}  # which no key contains
            served = {n: {k: v for k, v in d.items() if k not in left_out} for n, d in servers}
            of_servers = {"servers": served} if plan.arms else {}
            yield from _check_keys(plan, of_servers | runner.models, runner.engine, keys)

    def _names(self, plan: Plan, step: Step) -> tuple[Any, ...]:
        """Return the name of a step's sample, with the run's own name of its rule."""
        sample = plan.identify(step, "")
        recorded_names = {method: recorded for recorded, method in self.methods.items()}
        return names_of(sample.model_copy(update={"method": recorded_names[sample.method]}))

    def _choose(
        self, plan: Plan, number: int, recorded: Mapping[tuple[Any, ...], SampleRecord]
    ) -> Iterator[list[Step]]:
        """Yield the steps to decode again, of one cell of a task at a time."""
        task = plan.tasks[number]
        repeats = {record.repeat for record in recorded.values()}
        for cell in range(len(task.cells)):
            steps = (
                plan.step((number, repeat, example, cell))
                for repeat in sorted(repeats)
                for example in range(len(task.examples))
            )
            whole = [s for s in steps if all(self._names(plan, t) in recorded for t in s.turns)]
            chosen = Random(f"{self.seed}/{number}/{cell}")
            yield chosen.sample(whole, min(self.samples, len(whole)))


def _divergence(record: SampleRecord, redecoded: SampleRecord, within: float) -> str:
    """Return the first columns in which a sample differs from the one decoded again."""
    # Code may not be executed here.
    unscored = {"quality"} if redecoded.quality is None else set()
    scores = {n: score for n, score in (redecoded.scores or {}).items() if score is not None}
    values = {**redecoded.model_dump(), "scores": scores}
    recorded = record.model_dump(exclude_unset=True)
    columns = ({name: values[name]} for name in DECODED if name not in unscored)
    texts = [text for column in columns if (text := findings.difference(recorded, column, within))]
    return "; ".join(texts[:2])


def _check_models(run: Run, runner: SampleRunner) -> findings.Finding:
    """Check that the models and their types are those of the run, and tell what else differs."""
    recorded = run.environment.models
    if not recorded.get("target"):
        text = f"whether the models are the same, without fingerprints in {ENVIRONMENT}"
        return findings.Finding("", run.pair.name, "same models", findings.SKIPPED, text)
    current = {**runner.models, **describe_environment()["packages"], "engine": runner.engine}
    earlier = {**recorded, **run.environment.packages}
    earlier["engine"] = run.environment.engine
    versions = [
        f"{name} {current[name]}, there {earlier[name]}"
        for name in ("device", "engine", "torch", "transformers")
        if earlier.get(name) not in (None, current[name])
    ]
    same = {name: runner.models[name] for name in (*ROLES, "dtype") if name in runner.models}
    wrong = findings.difference({name: recorded.get(name) for name in same}, same)
    reason = "; ".join(filter(None, [wrong, *versions]))
    return findings.Finding(
        "", run.pair.name, "same models", findings.FAILED if wrong else findings.OK, reason
    )


def _check_keys(
    plan: Plan, models: Mapping[str, Any], engine: str, samples: Sequence[tuple[Step, SampleRecord]]
) -> Iterator[findings.Finding]:
    """Compare the keys of samples: a hash of all that determines them, the head's bytes included.

    Keys depend on the version and on metrics that were added later. If no sample of a task has the
    key that it would have here, the cause may be any of them.
    """
    name = "keys follow from heads and settings"
    if not any(record.key for _, record in samples):
        text = "keys of samples, which have none"
        yield findings.Finding("", plan.pair.name, name, findings.SKIPPED, text)
        return
    best: list[str] = []
    for may_execute in (False, True):
        key = sample_keys(replace(plan, may_execute=may_execute), models, engine)
        other = [findings.named(vars(r)) for step, r in samples if r.key != key(step)]
        best = other if not may_execute or len(other) < len(best) else best
    subject = f"{samples[0][1].task}, {len(samples):,} samples"
    if len(best) < len(samples):
        faults = [f"{sample}: made with another head, example or setting" for sample in best]
        yield findings.finding_of(name, subject, faults)
        return
    text = "keys of samples, since none matches: another version, or changed settings or metrics"
    yield findings.Finding("", subject, name, findings.SKIPPED, text)


def head_difference(config: CellConfig, cell: Cell) -> str:
    """Return how the head that is here differs from a run's cell, in what the run tells of it."""
    for head in cell.heads:
        recorded = config.head.plain() if config.head else {}
        for name, first, second in differences_of(recorded, training_of(head), {"name", "path"}):
            return f"head {head.name}: {name} is {first!r}, not {second!r}"
    return ""
