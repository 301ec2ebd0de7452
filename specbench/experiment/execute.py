"""Carrying out a plan: load the pair, decode every sample, score it and record it at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from specbench.analysis.frames import PARAMETERS
from specbench.decoding.loop import decode
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.available import free_memory
from specbench.engine.engines import Engine
from specbench.engine.loading import LoadedPair, load_pair
from specbench.engine.memory import check_memory, likely_tokens
from specbench.engine.prompts import Encoded, encode
from specbench.errors import SpecbenchError
from specbench.experiment.environment import describe_environment
from specbench.experiment.examples import write_examples
from specbench.experiment.plan import Cell, Plan, Step, TaskPlan
from specbench.experiment.progress import Report
from specbench.experiment.scoring import describe_error, score_text
from specbench.experiment.settings import Settings
from specbench.experiment.store import ERROR, Store
from specbench.heads.files import fingerprints, load_head
from specbench.heads.registry import HeadFile
from specbench.methods.registry import get_method
from specbench.metrics.sandbox.launch import layers
from specbench.tasks.example import Example

Verifiers = Mapping[Cell, Callable[..., Any] | None]


def execute(plan: Plan, store: Store, report: Report) -> None:
    """Decode every step of a plan and record each sample as soon as it is there.

    A sample that raises, be it for want of memory, is recorded with status ``error`` and the run
    goes on; where only a metric raises, the generation is kept with status ``unscored``.

    Args:
        plan: What to do.
        store: Where the samples go.
        report: Called with each record.

    Raises:
        SpecbenchError: The pair or a head cannot be loaded, or the disk cannot be written.
    """
    engine = Engine(plan.settings.engine)
    check_memory(plan.pair, plan.loading, *_largest(plan))
    pair = load_pair(plan.pair, plan.loading)
    pair.engine = engine
    verifiers = _verifiers(plan, pair)
    prompts = Prompts(pair, plan.settings)
    store.write_environment(
        {
            **describe_environment(),
            "models": _describe_models(pair),
            "sandbox": list(layers()) if plan.may_execute else [],
            "first_prompts": prompts.first(plan),
        }
    )
    write_examples(store.folder, {t.task.name: t.examples for t in plan.tasks})
    pair.reserve(prompts.longest(plan))
    warm: set[tuple[str, Cell]] = set()
    for step in plan.steps():
        record = {"run_id": store.folder.name, "pair": plan.pair.name}
        record |= _identity(step, plan.settings)
        group = (step.plan.task.name, step.cell)
        try:
            prompt = prompts.of(step.plan, step.example)
            if group not in warm:
                # Code and kernels are made ready by a first decode, which is not counted.
                _decode(step, prompt.ids, pair, verifiers, plan.settings)
                warm.add(group)
            generation = _decode(step, prompt.ids, pair, verifiers, plan.settings)
        except Exception as error:
            record |= {"status": ERROR, "error": describe_error(error)}
        else:
            metrics = step.plan.task.metrics
            record |= measurements(generation) | {"prompt_cut": prompt.cut}
            record |= score_text(
                metrics, generation.text, step.example, may_execute=plan.may_execute
            )
        if record["status"] == ERROR:
            free_memory()  # only now: the error held what was on the device
        store.append(record)
        report(record)


class Prompts:
    """The examples' prompts as token ids, each made once, for all cells alike."""

    def __init__(self, pair: LoadedPair, settings: Settings) -> None:
        self._pair = pair
        self._settings = settings
        self._known: dict[tuple[str, str], Encoded] = {}

    def of(self, plan: TaskPlan, example: Example) -> Encoded:
        """Return the tokens of an example's prompt.

        Raises:
            UsageError: The prompt is over the limit and cannot be cut.
        """
        key = (plan.task.name, example.id)
        if key not in self._known:
            self._known[key] = encode(
                self._pair.tokenizer,
                example.prompt,
                passage=example.passage,
                prompt_format=self._settings.prompt_format or plan.task.prompt_format,
                limit=self._limit(plan, example),
                thinking=self._pair.thinking,
            )
        return self._known[key]

    def _limit(self, plan: TaskPlan, example: Example) -> int | None:
        """Most tokens of a prompt: what the user says, and what the models take of one to be cut.

        What cannot be cut is left to the loop, which names the context that it exceeds.
        """
        wanted, context = self._settings.max_prompt_tokens, self._pair.context
        if context is None or not example.passage:
            return wanted
        longest = max(cell.draft_length for cell in plan.cells)
        room = context - plan.max_new_tokens - longest - 1
        return wanted if room < 1 else min(room, wanted or room)

    def longest(self, plan: Plan) -> int:
        """Return the tokens of the longest text that may come of a plan, drafts included."""
        found = 1
        for task in plan.tasks:
            room = task.max_new_tokens + max(cell.draft_length for cell in task.cells) + 1
            for example in task.examples:
                with suppress(SpecbenchError):  # said again when its turn comes
                    found = max(found, len(self.of(task, example).ids) + room)
        return found

    def first(self, plan: Plan) -> dict[str, list[int] | None]:
        """Return the ids of every task's first prompt, None where it cannot be made."""
        found: dict[str, list[int] | None] = {}
        for task in plan.tasks:
            found[task.task.name] = None
            with suppress(SpecbenchError):
                found[task.task.name] = self.of(task, task.examples[0]).ids
        return found


def measurements(generation: Generation) -> dict[str, Any]:
    """Return what a generation adds to a sample's record.

    These are columns of ``samples.csv``, None where a figure does not apply, and for
    ``samples.jsonl`` the text, the tokens and the counts of every round.
    """
    rounds = generation.rounds
    proposed = sum(r.proposed for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    emitted = sum(r.emitted for r in rounds)
    seconds = generation.prefill_seconds + generation.decode_seconds
    return {
        "prompt_tokens": generation.prompt_tokens,
        "output_tokens": generation.output_tokens,
        "rounds": len(rounds),
        "proposed": proposed,
        "accepted": accepted if proposed else None,
        "draft_acceptance_rate": accepted / proposed if proposed else None,
        "acceptance_length": emitted / len(rounds) if proposed else None,
        "expected_acceptance": _mean([value for r in rounds for value in r.expected]),
        "mean_weight": _mean([value for r in rounds for value in r.weights]),
        "prefill_seconds": generation.prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "tokens_per_second": generation.output_tokens / seconds if seconds else None,
        "stopped_by": generation.stopped_by,
        "text": generation.text,
        "token_ids": generation.token_ids,
        "per_round": {
            "proposed": [r.proposed for r in rounds],
            "accepted": [r.accepted for r in rounds],
            "emitted": [r.emitted for r in rounds],
            "expected": [_rounded(r.expected) for r in rounds],
            "weights": [_rounded(r.weights) for r in rounds],
        },
    }


def _identity(step: Step, settings: Settings) -> dict[str, Any]:
    """What was decoded, in the columns of ``samples.csv``."""
    parameters = dict(step.cell.parameters)
    return {
        "task": step.plan.task.name,
        "method": step.cell.method,
        **{name: _named(parameters.get(name)) for name in PARAMETERS},
        "temperature": settings.temperature,
        "draft_length": step.cell.draft_length,
        "seed": settings.seed,
        "repeat": step.repeat,
        "sample_id": step.example.id,
        "quality_metric": step.plan.task.metric,
    }


def _named(value: Any) -> Any:
    """A parameter as tables show it: a head by its name."""
    return value.name if isinstance(value, HeadFile) else value


def _decode(
    step: Step, prompt: list[int], pair: LoadedPair, verifiers: Verifiers, settings: Settings
) -> Generation:
    return decode(
        pair,
        verifiers[step.cell],
        prompt,
        sampling=Sampling(settings.temperature, settings.top_k, settings.top_p),
        draft_length=step.cell.draft_length,
        max_new_tokens=step.plan.max_new_tokens,
        seed=settings.seed,
        sample_key=step.sample_key,
        stop=step.plan.task.stop,
    )


def _verifiers(plan: Plan, pair: LoadedPair) -> Verifiers:
    """Every cell's rule with its parameters bound; all heads are loaded before anything runs."""

    @cache
    def head(folder: Path) -> Any:
        return load_head(folder, pair).weigh

    def verifier(cell: Cell) -> Callable[..., Any] | None:
        rule = get_method(cell.method).load()
        if rule is None:
            return None
        parameters = dict(cell.parameters)
        if "head" in parameters:
            parameters["head"] = head(parameters["head"].path)
        return partial(rule, **parameters)

    return {cell: verifier(cell) for task in plan.tasks for cell in task.cells}


def _describe_models(pair: LoadedPair) -> dict[str, Any]:
    """Where and how the models run, a fingerprint of their weights, and how they were loaded."""
    dtype = str(pair.target.model.dtype).removeprefix("torch.")
    return {"device": str(pair.target.device), "dtype": dtype, **fingerprints(pair), **pair.facts}


def _largest(plan: Plan) -> tuple[int, int, int]:
    """Longest prompt, answer and draft of a plan in tokens; a prompt's are estimated."""
    limit = plan.settings.max_prompt_tokens or math.inf
    longest = likely_tokens(e.prompt for task in plan.tasks for e in task.examples)
    return (
        int(min(limit, longest)),
        max(task.max_new_tokens for task in plan.tasks),
        max(cell.draft_length for task in plan.tasks for cell in task.cells),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 4) for value in values]
