"""Decode the samples of a benchmark: several engines and batch sizes, and answers without ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from specbench.engine.engines import Engine
from specbench.engine.hardware import copy_bandwidth
from specbench.engine.memory import bytes_per_round
from specbench.engine.pair import LoadedPair
from specbench.errors import RunError
from specbench.experiment import measurements
from specbench.experiment.cells import Cell
from specbench.experiment.environment import describe_environment
from specbench.experiment.plan import Plan, Step, TaskPlan
from specbench.experiment.runner import Ready, SampleRunner

FULL = ("shared_rounds", "full_rounds", "full_seconds")  # of the batches
WARM_UP_SHARE = 3  # a warm-up has at most a third of the new tokens


class BenchRunner(SampleRunner):
    """Decodes the samples of a benchmark, for their times only.

    Batch sizes run one after another, because caches and graphs have a fixed batch size. All cells
    of a batch size are warmed up before the first is timed.
    """

    def __init__(self, plan: Plan, pair: LoadedPair, device: str | None = None) -> None:
        self._pairs: dict[str, LoadedPair] = {}  # by engine
        super().__init__(plan, replace(pair, eos_ids=frozenset()), device)

    def run(self, steps: Sequence[Step]) -> Iterator[measurements.SampleResult]:
        """Decode steps of one cell together; see ``SampleRunner.run``.

        Raises:
            RunError: The device runs out of memory.
        """
        ready = [(step, self._prompts.of(step.plan, step.example)) for step in steps]
        try:
            self._warm_up(ready)
            for number, generation in self._decode(ready):
                step = steps[number]
                times = measurements.times_of(generation, step.cell.draft_length > 0)
                times |= {name: getattr(generation, name) for name in FULL}
                columns = {name: value for name, value in times.items() if value == value}  # no NaN
                yield step, self._identity(step).filled(**columns)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"a batch of {steps[0].plan.batch_size} does not fit in the memory of "
                f"{self._pair.target.device}: choose a smaller --batch-size, fewer systems or "
                "shorter prompts"
            ) from error

    def opening_facts(self) -> dict[str, Any]:
        """Return the content of ``environment.json`` at the start of a benchmark."""
        target = self._pair.target
        bandwidth = copy_bandwidth(target.device, target.weight_bytes())
        facts = {"models": self.models, "fused_layers": self._pair.fused_layers}
        return {**describe_environment(), **facts, "copy_bandwidth": bandwidth}

    def closing_facts(self) -> dict[str, Any]:
        """Return the facts known at the end: of each cell also the bytes that its rounds read."""
        systems = []
        for task in self._plan.tasks:
            # On average, half of the new tokens are in the cache.
            prompt = self._prompts.of(task, task.examples[0])
            cached = len(prompt.ids) + task.max_new_tokens / 2
            for cell in task.cells:
                size = bytes_per_round(self._pair, cell.draft_length, task.batch_size, cached)
                columns = {"batch_size": task.batch_size, "engine": cell.engine, **cell.columns()}
                seconds = self._warm_ups.get((task.task.name, cell))
                systems.append({**columns, "warm_up_seconds": seconds, "bytes_per_round": size})
        return super().closing_facts() | {"warm_ups": systems}

    def _warm_up(self, ready: Sequence[Ready]) -> None:
        task = ready[0][0].plan
        if (task.task.name, ready[0][0].cell) not in self._warm_ups:
            self._pair.reserve(self._prompts.longest_text(), task.batch_size)
            for cell in task.cells:
                steps = ((replace(step, cell=cell), prompt) for step, prompt in ready)
                self._warm_up_cell([*steps][: task.batch_size])

    def _warm_up_tokens(self, task: TaskPlan) -> int:
        return max(1, min(super()._warm_up_tokens(task), task.max_new_tokens // WARM_UP_SHARE))

    def _pair_of(self, cell: Cell) -> LoadedPair:
        if cell.engine not in self._pairs:
            self._pairs[cell.engine] = replace(self._pair, engine=Engine(cell.engine))
        return self._pairs[cell.engine]
