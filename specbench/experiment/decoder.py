"""Decoding the steps of a plan: from an example and a cell to what is recorded of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specbench.decoding.loop import decode_all
from specbench.decoding.records import Generation
from specbench.decoding.rows import Request
from specbench.decoding.sampling import Sampling
from specbench.engine.available import free_memory
from specbench.engine.loading import LoadedPair
from specbench.engine.prompts import Encoded
from specbench.errors import EngineError
from specbench.experiment.measurements import measurements
from specbench.experiment.plan import Cell, Plan, Step, is_executed
from specbench.experiment.prompts import Prompts
from specbench.experiment.records import ERROR
from specbench.experiment.scoring import describe_error, score_text
from specbench.heads.files import load_head
from specbench.methods import Rule
from specbench.methods.control import DraftControl, rehearsals
from specbench.methods.registry import get_method

Verifiers = Mapping[Cell, tuple[Rule | None, DraftControl | None]]
Found = tuple[Step, dict[str, Any]]

WARM_UP_TOKENS = 16  # enough rounds that every part of one has been carried out


class Decoder:
    """Decodes and scores, with one loaded pair.

    Attributes:
        warm_ups: Seconds that the first decode of each cell took, which is not counted.
    """

    def __init__(self, plan: Plan, pair: LoadedPair, prompts: Prompts) -> None:
        """Load all heads, so that none is missed once it has begun."""
        self._plan, self._pair, self._prompts = plan, pair, prompts
        self._verifiers = _verifiers(plan, pair)
        self.warm_ups: dict[tuple[str, Cell], float] = {}

    def measure(self, steps: Sequence[Step]) -> Iterator[Found]:
        """Decode steps of one cell side by side.

        Yields:
            Each step with what is to be recorded of it, as soon as it is done. One that raises, be
            it for want of memory, has the status ``error``.
        """
        ready: list[tuple[Step, Encoded]] = []
        for step in steps:
            try:
                ready.append((step, self._prompts.of(step.plan, step.example)))
            except Exception as error:
                yield step, _failed(error)
        waiting = dict(enumerate(ready))
        try:
            if ready:
                self._warm_up(ready)
                for number, generation in self._decode(ready):
                    step, prompt = waiting.pop(number)
                    yield step, self._scored(step, prompt, generation)
        except EngineError:
            raise  # no sample's fault: the next one would fail alike
        except Exception as error:
            found = _failed(error)
            del error  # it holds what was on the device
            free_memory()
            left = [step for step, _ in waiting.values()]
            if len(left) == 1:
                yield left[0], found
            else:  # one by one, so that none pays for another
                for step in left:
                    yield from self.measure([step])

    def pace(self, steps: Sequence[Step]) -> float:
        """Return the seconds per token of a short decode of some steps of one cell.

        Raises:
            Exception: Whatever made it fail.
        """
        ready = [(step, self._prompts.of(step.plan, step.example)) for step in steps]
        self._warm_up(ready)
        found = [generation for _, generation in self._decode(ready, WARM_UP_TOKENS)]
        seconds = sum(g.prefill_seconds + g.decode_seconds for g in found)
        return seconds / sum(g.output_tokens for g in found)

    def _warm_up(self, ready: Sequence[tuple[Step, Encoded]]) -> None:
        """Make code, graphs and kernels ready by a short decode.

        Where programs are run between two samples, so are the processor's caches before each of
        them: a program that has run before is not run again, and times would tell of that.
        """
        step = ready[0][0]
        group = (step.plan.task.name, step.cell)
        first = ready[: self._plan.settings.batch_size]
        if group in self.warm_ups:
            if self._plan.may_execute and is_executed(step.plan.task):
                for _ in self._decode(first, 2 * step.cell.draft_length + 2):
                    pass
        else:
            began = time.perf_counter()
            _, control = self._verifiers[step.cell]
            static = self._pair.engine.static
            for each in (*rehearsals(control, step.cell.draft_length, static), None):
                for _ in self._decode(first, WARM_UP_TOKENS, each):
                    pass
            self.warm_ups[group] = time.perf_counter() - began

    def _decode(
        self,
        ready: Sequence[tuple[Step, Encoded]],
        most: int | None = None,
        instead: DraftControl | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        step, settings = ready[0][0], self._plan.settings
        limit = step.plan.max_new_tokens
        verify, control = self._verifiers[step.cell]
        return decode_all(
            self._pair,
            verify,
            [Request(prompt.ids, step.sample_key) for step, prompt in ready],
            sampling=Sampling(settings.temperature, settings.top_k, settings.top_p),
            draft_length=step.cell.draft_length,
            max_new_tokens=limit if most is None else min(limit, most),
            seed=settings.seed,
            stop=step.plan.task.stop,
            batch_size=settings.batch_size,
            control=instead or control,
        )

    def _scored(self, step: Step, prompt: Encoded, generation: Generation) -> dict[str, Any]:
        """Where only a metric raises, the generation is kept with status ``unscored``."""
        scored = score_text(
            step.plan.task.metrics,
            generation.text,
            step.example,
            may_execute=self._plan.may_execute,
        )
        return measurements(generation) | {"prompt_cut": prompt.cut} | scored


def _failed(error: Exception) -> dict[str, Any]:
    return {"status": ERROR, "error": describe_error(error)}


def _verifiers(plan: Plan, pair: LoadedPair) -> Verifiers:
    """Every cell's rule with its parameters bound, and what controls its drafting."""

    @cache
    def head(folder: Path) -> Any:
        return load_head(folder, pair).weigh

    def verifier(cell: Cell) -> tuple[Rule | None, DraftControl | None]:
        parameters = dict(cell.parameters)
        if "head" in parameters:
            parameters["head"] = head(parameters["head"].path)
        return get_method(cell.method).bind(parameters)

    return {cell: verifier(cell) for task in plan.tasks for cell in task.cells}
