"""Estimate the time and memory of a plan from a short probe of each cell."""

from __future__ import annotations

from typing import NamedTuple

from specbench.engine.device import available_memory, choose_device
from specbench.engine.memory import decoding_needs
from specbench.experiment.plan import Plan, Step
from specbench.experiment.runner import Loader, SampleRunner, largest


class CellForecast(NamedTuple):
    """The estimated cost of one cell on one task."""

    step: Step  # one step of the cell
    samples: int  # planned
    pace: float  # seconds per token in the probe, prefill included
    most: float  # seconds for all samples if every answer reaches its limit


class Forecast(NamedTuple):
    """The estimated cost of a plan."""

    cells: list[CellForecast]
    engine: str
    memory: float  # estimated bytes of both models, their caches and working memory
    free: int | None  # free bytes before loading; None if unknown


def forecast(plan: Plan) -> Forecast:
    """Decode a few tokens with each cell and estimate the cost of all samples.

    Raises:
        SpecbenchError: The pair does not fit or cannot be loaded, or a probe fails.
    """
    needs = decoding_needs(plan.pair, plan.loading, *largest(plan)).values()
    free = available_memory(
        choose_device(plan.loading.device), spread=plan.loading.device_map is not None
    )
    runner = SampleRunner(plan, Loader().load(plan))
    first: dict[tuple[int, int], list[Step]] = {}
    for batch in plan.batches():
        task, *_, cell = batch[0].place
        first.setdefault((task, cell), batch)
    cells = []
    for batch in first.values():
        work, pace = batch[0].plan, runner.pace(batch)
        samples = work.samples * plan.settings.repeats
        cells.append(CellForecast(batch[0], samples, pace, samples * work.max_new_tokens * pace))
    return Forecast(cells, runner.engine, sum(map(sum, needs)), free)
