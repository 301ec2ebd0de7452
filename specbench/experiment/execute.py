"""Carrying out a plan: load the pair, decode every sample, score it and record it at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from specbench.analysis.frames import PARAMETERS
from specbench.engine.engines import Engine, choose_engine
from specbench.engine.loading import LoadedPair, choose_device, load_pair
from specbench.engine.memory import check_memory, likely_tokens
from specbench.experiment.decoder import Decoder
from specbench.experiment.environment import describe_environment
from specbench.experiment.examples import write_examples
from specbench.experiment.gpus import gpu_states, other_processes
from specbench.experiment.keys import Keys
from specbench.experiment.plan import Plan, Step
from specbench.experiment.progress import Report
from specbench.experiment.prompts import Prompts
from specbench.experiment.store import Store
from specbench.heads.files import fingerprints
from specbench.heads.registry import HeadFile
from specbench.metrics.sandbox.launch import layers


def execute(
    plan: Plan,
    store: Store,
    report: Report,
    *,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], object] = lambda text: None,
) -> None:
    """Decode every step of a plan that the store lacks, and record each as soon as it is there.

    Args:
        plan: What to do.
        store: Where the samples go, and what it has of them already.
        report: Called with each record; of a sample that was there, with what names it.
        stop: Asked after each sample whether to stop there.
        note: Told what the user should know.

    Raises:
        SpecbenchError: The pair or a head cannot be loaded, or the disk cannot be written.
        KeyboardInterrupt: The run was stopped.
    """
    pair = load(plan, note)
    prompts = Prompts(pair, plan.settings)
    decoder = Decoder(plan, pair, prompts)
    models = _describe_models(pair)
    environment = {
        **describe_environment(),
        "engine": pair.engine.name,
        "models": models,
        "sandbox": list(layers()) if plan.may_execute else [],
        "first_prompts": prompts.first(plan),
    }
    if others := other_processes():
        note(f"{len(others)} other processes compute on the GPUs: times will not be the method's")
        environment["other_gpu_processes"] = others
    store.write_environment(environment)
    write_examples(store.folder, {t.task.name: t.examples for t in plan.tasks})
    pair.reserve(prompts.longest(plan), plan.settings.batch_size)
    keys = Keys(plan, models, pair.engine.name)
    for batch in plan.batches():
        todo = []
        for step in batch:
            if store.has(keys.of(step)):
                report(identity(step, plan, pair.engine.name))
            else:
                todo.append(step)
        for step, found in decoder.measure(todo):
            record = {"key": keys.of(step), "place": step.place, "run_id": store.folder.name}
            record |= identity(step, plan, pair.engine.name) | found
            store.append(record)
            report(record)
            if stop():
                raise KeyboardInterrupt
    warm_ups = [
        {"task": task, **cell.describe(), "seconds": seconds}
        for (task, cell), seconds in decoder.warm_ups.items()
    ]
    after = {"engine": pair.engine.name, "warm_ups": warm_ups, "gpus_at_the_end": gpu_states()}
    store.write_environment({**environment, **after})


def load(plan: Plan, note: Callable[[str], object]) -> LoadedPair:
    """Load a plan's pair with its engine, once it is known to fit.

    Raises:
        UsageError: It does not fit, cannot be had, or the engine does not work here.
    """
    loading, settings = plan.loading, plan.settings
    spread = loading.device_map is not None
    name = choose_engine(settings.engine, choose_device(loading.device), spread)
    engine = Engine(name, note if settings.engine_fallback else None)
    check_memory(plan.pair, loading, *largest(plan))
    pair = load_pair(plan.pair, loading)
    pair.engine = engine
    return pair


def identity(step: Step, plan: Plan, engine: str) -> dict[str, Any]:
    """Return what was decoded and how, in the columns of ``samples.csv``."""
    settings = plan.settings
    parameters = dict(step.cell.parameters)
    return {
        "pair": plan.pair.name,
        "task": step.plan.task.name,
        "method": step.cell.method,
        **{name: _named(parameters.get(name)) for name in PARAMETERS},
        "temperature": settings.temperature,
        "draft_length": step.cell.draft_length,
        "engine": engine,
        "batch_size": settings.batch_size,
        "seed": settings.seed,
        "repeat": step.repeat,
        "sample_id": step.example.id,
        "quality_metric": step.plan.task.metric,
    }


def _named(value: Any) -> Any:
    """A parameter as tables show it: a head by its name."""
    return value.name if isinstance(value, HeadFile) else value


def _describe_models(pair: LoadedPair) -> dict[str, Any]:
    """Where and how the models run, a fingerprint of their weights, and how they were loaded."""
    dtype = str(pair.target.model.dtype).removeprefix("torch.")
    return {"device": str(pair.target.device), "dtype": dtype, **fingerprints(pair), **pair.facts}


def largest(plan: Plan) -> tuple[int, int, int, int]:
    """Return longest prompt (estimated), answer and draft of a plan in tokens, and its rows."""
    limit = plan.settings.max_prompt_tokens or math.inf
    longest = likely_tokens(e.prompt for task in plan.tasks for e in task.examples)
    return (
        int(min(limit, longest)),
        max(task.max_new_tokens for task in plan.tasks),
        max(cell.draft_length for task in plan.tasks for cell in task.cells),
        plan.settings.batch_size,
    )
