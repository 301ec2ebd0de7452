"""The memory and the download of a plan, and its time from probes of its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from specbench.config import LLAMACPP
from specbench.decoding.drafters.registry import DrafterSpec
from specbench.experiment.execute import Worker
from specbench.experiment.plan import Plan, Step, engine_name

CellIndex = tuple[int, int]  # indices of a task of the plan and of its cell


class Cost(NamedTuple):
    """The estimated cost of some samples."""

    samples: int
    tokens: int  # the greatest length of an answer
    pace: float | None  # seconds per token, prefill included; None if unknown

    @property
    def most_seconds(self) -> float | None:
        """The time if every answer reaches its greatest length, None for an unknown pace."""
        return None if self.pace is None else self.samples * self.tokens * self.pace


class Forecast(NamedTuple):
    """The estimated cost of a plan."""

    cells: list[tuple[Step, Cost]]  # one step of each cell on each task, and the cell's cost
    engine: str
    memory: float  # estimated bytes of both models, their caches and working memory; 0 if unknown
    free: int | None  # free bytes before loading; None if unknown
    download: int  # bytes of weights that are not on this machine


def forecast(plan: Plan, worker: Worker, probe: bool = False) -> Forecast:
    """Check a plan without weights and estimate its memory; with ``probe`` its time too.

    A probe loads the pair and decodes a few tokens. GGUF files that are not on this machine are
    neither downloaded nor checked without it.

    Raises:
        SpecbenchError: The pair does not fit or cannot be loaded, or a probe fails.
    """
    from specbench.engine.device import available_memory, choose_device
    from specbench.engine.hub import download_bytes
    from specbench.engine.memory import decoding_needs
    from specbench.experiment.runner import largest

    of_pair, loading, engine = plan.part(servers=False), plan.loading, ""
    memory, free, download = 0.0, None, 0
    if len(of_pair):
        download, engine = download_bytes(plan.pair, loading), LLAMACPP
        if probe or not (plan.pair.gguf and download):
            engine = worker.prepare(of_pair)
            memory = sum(map(sum, decoding_needs(plan.pair, loading, *largest(of_pair)).values()))
        spread = loading.device_map is not None
        free = available_memory(choose_device(loading.device), spread=spread)
    batches: dict[CellIndex, list[Step]] = {}
    for batch in plan.batches():
        task, *_, cell = batch[0].place
        batches.setdefault((task, cell), batch)
    paces: Mapping[CellIndex, float] = {}
    if probe:
        engine = worker.start(plan)["engine"]
        paces = _paces(batches, worker.pace)
    cells = []
    for index, (step, *_) in sorted(batches.items()):
        samples = step.plan.samples * plan.settings.repeats
        cells.append((step, Cost(samples, step.plan.max_new_tokens, paces.get(index))))
    return Forecast(cells, engine_name(engine, plan.arms), memory, free, download)


def _paces(
    batches: Mapping[CellIndex, list[Step]], pace: Callable[[list[Step]], float]
) -> dict[CellIndex, float]:
    """Return the seconds per token of each cell, from one of its batches.

    Of the cells of a task that differ in the values of parameters only, the first and the last are
    probed. The others are interpolated, as the values of a sweep are in order.
    """
    alike: dict[tuple[int, str, int, DrafterSpec], list[CellIndex]] = {}
    for index in sorted(batches):
        cell = batches[index][0].cell
        alike.setdefault((index[0], cell.method, cell.draft_length, cell.drafter), []).append(index)
    paces: dict[CellIndex, float] = {}
    for first, *further in alike.values():
        ends = [pace(batches[index]) for index in (first, *further[-1:])]
        slope = (ends[-1] - ends[0]) / max(1, len(further))
        paces |= {index: ends[0] + slope * i for i, index in enumerate((first, *further))}
    return paces
