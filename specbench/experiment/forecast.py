"""What a plan will take, from a short probe of each of its cells."""

from __future__ import annotations

from typing import NamedTuple

from specbench.engine.device import available_memory, choose_device
from specbench.engine.memory import decoding_needs
from specbench.experiment.plan import Plan, Step
from specbench.experiment.runner import Loader, SampleRunner, largest


class CellForecast(NamedTuple):
    """What one cell will take on one task."""

    step: Step  # one of its steps
    samples: int  # how many there will be
    pace: float  # seconds per token in the probe, prefill included
    most: float  # seconds of all samples if every answer is as long as it may be


class Forecast(NamedTuple):
    """What a plan will take."""

    cells: list[CellForecast]
    engine: str
    memory: float  # bytes of both models, their caches and working memory, estimated
    free: int | None  # bytes before anything was loaded; None where unknown


def forecast(plan: Plan) -> Forecast:
    """Decode a few tokens with each cell and estimate what all samples will take.

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
        samples = len(work.examples) * plan.settings.repeats
        cells.append(CellForecast(batch[0], samples, pace, samples * work.max_new_tokens * pace))
    return Forecast(cells, runner.engine, sum(map(sum, needs)), free)
