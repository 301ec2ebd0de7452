"""What of a plan is in its store and what is to be; nothing here needs PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specbench.analysis.frames import PARAMETERS
from specbench.experiment.keys import Keys
from specbench.experiment.plan import Plan, Step
from specbench.experiment.progress import Report
from specbench.experiment.store import Store
from specbench.heads.registry import HeadFile


class Ledger:
    """What of a plan is in its store, and what is to be.

    Args:
        plan: The plan.
        store: Its samples.
        report: Called with each record; of a sample that was there, with what names it.
        models: What identifies the models, see ``Workbench``.
        engine: The engine that decodes.
    """

    def __init__(
        self, plan: Plan, store: Store, report: Report, models: Mapping[str, Any], engine: str
    ) -> None:
        self._plan, self._store, self._report, self._engine = plan, store, report, engine
        self._keys = Keys(plan, models, engine)
        if store.resumed:
            for step in plan.steps():
                store.require_alike(self._keys.of(step), identity(step, plan, engine))

    def missing(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps that the store lacks, and report the others."""
        missing = []
        for step in steps:
            if self._store.has(self._keys.of(step)):
                self._report(identity(step, self._plan, self._engine))
            else:
                missing.append(step)
        return missing

    def record(self, step: Step, found: Mapping[str, Any]) -> None:
        """Put what was found of a step into the store.

        Raises:
            SpecbenchError: The disk cannot be written.
        """
        names = {"key": self._keys.of(step), "place": step.place, "run_id": self._store.run_id}
        record = names | dict(found)
        self._store.append(record)
        self._report(record)


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
