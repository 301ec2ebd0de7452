"""Roll-outs of a training by several workers; scores and updates stay in this process.

A set of roll-outs is a schedule of its own, a sample of which is a part. A part that is decoded
again, elsewhere, gives the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from specbench.cluster.crew import Facts, Found, GivenUp, Lost, Ready, carry_out
from specbench.cluster.schedule import Batch, Row
from specbench.engine.loading import choose_dtype
from specbench.engine.settings import Loading
from specbench.errors import RunError, UsageError
from specbench.experiment.plan import Place
from specbench.heads.head import Head
from specbench.pairs.registry import PairSpec
from specbench.training.parts import Decoded, Part, RollOut


class Sampler(Protocol):
    """Has the pair somewhere, and stays from one set of roll-outs to the next."""

    def start(self) -> Facts:
        """Load the pair unless it is there; return the device and the models.

        Raises:
            SpecbenchError: The pair cannot be had.
            WorkerLost: The worker died.
        """

    def roll_out(self, head: Head, part: Part) -> Decoded:
        """Sample the texts of a part; tensors come back on the CPU.

        Raises:
            WorkerLost: The worker died.
        """


def together(
    hire: Callable[[int], Sampler],
    workers: int,
    models: Mapping[str, str],
    note: Callable[[str], object],
) -> RollOut:
    """Return what has workers decode the parts of a set.

    Args:
        hire: Returns a worker, new or known, for a number.
        workers: How many at most.
        models: Fingerprints of those of this process.
        note: Told what the user should know, each thing once.

    Returns:
        A function that raises ``RunError`` where three workers died of a part, where they die
        before they are ready, or where they have other models.
    """
    said: set[str] = set()

    def roll_out(head: Head, parts: Sequence[Part]) -> list[Decoded]:
        found: dict[Place, Decoded] = {}
        places: list[Place] = [(0, 0, number, 0) for number in range(len(parts))]
        rows = [Row(0, (Batch((place,)),)) for place in places]

        def seat(number: int) -> _Seated:
            return _Seated(hire(number), head, parts)

        for event in carry_out(seat, min(workers, len(parts)), lambda _: rows):
            match event:
                case Ready(worker, facts) if facts["models"] != models:
                    raise RunError(
                        f"worker {worker} ({facts['device']}) has other models than this process: "
                        "give all machines the same"
                    )
                case Found(_, place, decoded) if place is not None:
                    found[place] = decoded
                case Lost(worker, reason):
                    text = f"worker {worker} is lost, its part is decoded elsewhere: {reason}"
                    if text not in said:
                        said.add(text)
                        note(text)
                case GivenUp(place, reason):
                    raise RunError(
                        f"part {place[2] + 1} of {len(parts)} of a set of roll-outs is {reason}; "
                        "finished steps are kept: go on with --resume"
                    )
                case _:
                    pass
        return [found[place] for place in places]

    return roll_out


class _Seated:
    """A sampler as a worker of a crew, for one set of parts."""

    def __init__(self, sampler: Sampler, head: Head, parts: Sequence[Part]) -> None:
        self._sampler, self._head, self._parts = sampler, head, parts

    def start(self) -> Facts:
        return self._sampler.start()

    def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
        for batch in row.batches:
            for place in batch.places:
                yield place, self._sampler.roll_out(self._head, self._parts[place[2]])

    def end(self) -> Facts:
        return {}

    def dismiss(self) -> None:
        """It keeps its pair for the next set, even where it is still loading it."""


def beside(spec: PairSpec, loading: Loading, gpus: bool) -> Loading:
    """Return how this process loads a pair that workers decode with.

    It reads prompts and updates the head, which takes no GPU; a GPU may be a worker's.

    Args:
        spec: The pair.
        loading: How the workers load it.
        gpus: Whether they are on GPUs.

    Raises:
        UsageError: It cannot be loaded without a GPU.
    """
    if loading.quantization is not None:
        raise UsageError(
            "--workers has this process load the pair on the CPU, and --quantization needs a GPU: "
            "leave out one of them"
        )
    dtype = choose_dtype(spec, loading, torch.device("cuda" if gpus else "cpu"))
    return replace(loading, device="cpu", dtype=str(dtype).removeprefix("torch."))
