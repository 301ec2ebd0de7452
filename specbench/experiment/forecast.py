"""What a plan will take, from a short probe of each of its cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from specbench.engine.available import available_memory
from specbench.engine.loading import choose_device
from specbench.engine.memory import decoding_needs
from specbench.experiment.decoder import Decoder
from specbench.experiment.execute import largest, load
from specbench.experiment.ledger import identity
from specbench.experiment.plan import Cell, Plan, Step
from specbench.experiment.prompts import Prompts


class CellForecast(NamedTuple):
    """What one cell will take on one task.

    Attributes:
        task: The task's name.
        cell: The cell.
        identity: What its samples are called by, in the columns of ``samples.csv``.
        samples: How many there will be.
        pace: Seconds per token in the probe, reading the prompt included.
        most: Seconds of all samples if every answer is as long as it may be.
    """

    task: str
    cell: Cell
    identity: dict[str, Any]
    samples: int
    pace: float
    most: float


class Forecast(NamedTuple):
    """What a plan will take.

    Attributes:
        rows: Cell by cell.
        engine: The engine that decodes.
        memory: Bytes of both models, their caches and what they work with, estimated.
        free: Bytes that were free before anything was loaded; None where nobody says.
    """

    rows: list[CellForecast]
    engine: str
    memory: float
    free: int | None


def forecast(plan: Plan, note: Callable[[str], object]) -> Forecast:
    """Decode a few tokens with each cell and reckon what all samples will take.

    Args:
        plan: The plan.
        note: Told what the user should know.

    Raises:
        SpecbenchError: The pair does not fit or cannot be loaded, or a probe fails.
    """
    needs = decoding_needs(plan.pair, plan.loading, *largest(plan)).values()
    free = available_memory(
        choose_device(plan.loading.device), spread=plan.loading.device_map is not None
    )
    pair = load(plan, note)
    prompts = Prompts(pair, plan.settings)
    pair.reserve(prompts.longest(plan), plan.settings.batch_size)
    decoder = Decoder(plan, pair, prompts)
    first: dict[tuple[str, Cell], list[Step]] = {}
    for batch in plan.batches():
        first.setdefault((batch[0].plan.task.name, batch[0].cell), batch)
    rows = []
    for (task, cell), batch in first.items():
        whole = batch[0].plan
        samples, pace = len(whole.examples) * plan.settings.repeats, decoder.pace(batch)
        most = samples * whole.max_new_tokens * pace
        known = identity(batch[0], plan, pair.engine.name)
        rows.append(CellForecast(task, cell, known, samples, pace, most))
    return Forecast(rows, pair.engine.name, sum(map(sum, needs)), free)
