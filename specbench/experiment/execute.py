"""Carrying out a plan: load the pair, decode every sample, score it and record it at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specbench.engine.engines import Engine, choose_engine
from specbench.engine.loading import LoadedPair, choose_device, load_pair, load_reader
from specbench.engine.memory import check_memory, likely_tokens
from specbench.engine.settings import Loading
from specbench.experiment.decoder import Decoder, Found
from specbench.experiment.environment import describe_environment
from specbench.experiment.examples import write_examples
from specbench.experiment.gpus import gpu_states, other_processes
from specbench.experiment.ledger import Ledger, identity
from specbench.experiment.plan import Plan, Step
from specbench.experiment.progress import Report
from specbench.experiment.prompts import Prompts
from specbench.experiment.store import Store
from specbench.heads.files import fingerprints
from specbench.metrics.sandbox.launch import layers
from specbench.pairs.registry import PairSpec


def execute(
    plan: Plan,
    store: Store,
    report: Report,
    *,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], object] = lambda text: None,
    loader: Loader | None = None,
) -> None:
    """Decode every step of a plan that the store lacks, and record each as soon as it is there.

    Args:
        plan: What to do.
        store: Where the samples go, and what it has of them already.
        report: Called with each record; of a sample that was there, with what names it.
        stop: Asked after each sample whether to stop there.
        note: Told what the user should know.
        loader: Has the pair perhaps, from the plan before.

    Raises:
        SpecbenchError: The pair or a head cannot be loaded, or the disk cannot be written.
        KeyboardInterrupt: The run was stopped.
    """
    bench = Workbench(plan, (loader or Loader()).load(plan, note), note)
    store.write_environment(bench.environment)
    write_examples(store.folder, {t.task.name: t.examples for t in plan.tasks})
    ledger = Ledger(plan, store, report, bench.models, bench.engine)
    for batch in plan.batches():
        for step, found in bench.measure(ledger.missing(batch)):
            ledger.record(step, found)
            if stop():
                raise KeyboardInterrupt
    store.write_environment({**bench.environment, "engine": bench.engine, **bench.afterwards()})


class Workbench:
    """A loaded pair with everything at hand to decode the steps of a plan.

    Attributes:
        models: What identifies the models and how they run, in plain values.
        environment: Where this is, for ``environment.json``.
    """

    def __init__(
        self,
        plan: Plan,
        pair: LoadedPair,
        note: Callable[[str], object],
        device: str | None = None,
    ) -> None:
        """Load all heads and make room for the longest text.

        Args:
            plan: What is to be decoded.
            pair: By what; see ``load``.
            note: Told what the user should know.
            device: What samples call the device; by default as PyTorch does.

        Raises:
            SpecbenchError: A head cannot be loaded.
        """
        self._plan, self._pair = plan, pair
        self._device = device or str(pair.target.device)
        prompts = Prompts(pair, plan.settings)
        self._decoder = Decoder(plan, pair, prompts)
        self.models = _describe_models(pair)
        self.environment = {
            **describe_environment(),
            "engine": pair.engine.name,
            "models": self.models,
            "sandbox": list(layers()) if plan.may_execute else [],
            "first_prompts": prompts.first(plan),
        }
        if others := other_processes():
            note(
                f"{len(others)} other processes compute on the GPUs: times will not be the method's"
            )
            self.environment["other_gpu_processes"] = others
        pair.reserve(prompts.longest(plan), plan.settings.batch_size)

    @property
    def engine(self) -> str:
        """How the engine works now."""
        return self._pair.engine.name

    def measure(self, steps: Sequence[Step]) -> Iterator[Found]:
        """Decode steps of one cell; yield each with all columns and measurements of its record."""
        for step, found in self._decoder.measure(steps):
            known = identity(step, self._plan, self.engine)
            yield step, {**known, "device": self._device, **found}

    def afterwards(self) -> dict[str, Any]:
        """Return what is known of the environment only once all is decoded."""
        warm_ups = [
            {"task": task, **cell.describe(), "seconds": seconds}
            for (task, cell), seconds in self._decoder.warm_ups.items()
        ]
        return {"warm_ups": warm_ups, "gpus_at_the_end": gpu_states()}


def load(plan: Plan, note: Callable[[str], object]) -> LoadedPair:
    """Load a plan's pair with its engine, once it is known to fit.

    Raises:
        UsageError: It does not fit, cannot be had, no example can be decoded, or the engine does
            not work here.
    """
    return Loader().load(plan, note)


class Loader:
    """Loads pairs, and keeps the last one for the plans that follow."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[PairSpec, Loading], LoadedPair] | None = None

    def load(self, plan: Plan, note: Callable[[str], object]) -> LoadedPair:
        """Return a plan's pair with an engine of its own, as ``load`` does.

        Before any weights are loaded, ``note`` is told which examples are too long.
        """
        loading, settings = plan.loading, plan.settings
        spread = loading.device_map is not None
        name = choose_engine(settings.engine, choose_device(loading.device), spread)
        engine = Engine(name, note if settings.engine_fallback else None)
        wanted = (plan.pair, loading)
        kept = self._loaded[1] if self._loaded and self._loaded[0] == wanted else None
        if kept is None:
            self._loaded = None  # before another one needs the memory
            check_memory(plan.pair, loading, *largest(plan))
        for text in Prompts(kept or load_reader(plan.pair, loading), settings).too_long(plan):
            note(text)
        if kept is None:
            pair = load_pair(plan.pair, loading)
            self._loaded = (wanted, pair)
        else:
            pair = kept
            pair.forget()
        pair.engine = engine
        return pair


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
