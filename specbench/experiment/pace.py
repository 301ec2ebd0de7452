"""Rounds that take far longer than the first ones, or than the machine needs for them."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from specbench.decoding.records import Generation
from specbench.engine.hardware import copy_bandwidth
from specbench.engine.pair import LoadedPair
from specbench.experiment.cells import Cell

FIRST = 3  # texts of a cell whose rounds are the measure of later ones
SLOWER = 4  # times as long as these
BEYOND = 30  # times as long as reading all weights once; slow processors need up to ten
SLOW_SECONDS = 0.2  # of a round; shorter ones are not compared with the machine
LEAST_ROUNDS = 8  # of a text, so that a single pause is not a rate


class SlowRounds:
    """Compares the seconds of rounds on a CPU, and says once what slows them down."""

    def __init__(self, pair: LoadedPair, batch_size: int) -> None:
        self._pair = pair
        # The texts of a batch share its times, and some end early.
        self._active = pair.target.device.type == "cpu" and batch_size == 1
        self._compares = True  # with the machine, once
        self._first: defaultdict[Cell, list[float]] = defaultdict(list)

    def doubt(self, cell: Cell, generation: Generation) -> str | None:
        """Return what to do if a text's rounds were slow; None if not, or if it was said before."""
        rounds = len(generation.rounds)
        if not self._active or rounds < LEAST_ROUNDS:
            return None
        seconds, first = generation.decode_seconds / rounds, self._first[cell]
        ratio, measure = 0.0, "those of the first texts"
        if len(first) < FIRST:
            first.append(seconds)
        elif seconds > SLOWER * median(first):
            ratio = seconds / median(first)
        if not ratio and seconds > SLOW_SECONDS and self._compares:
            self._compares = False
            target, draft = self._pair.target, self._pair.draft
            size = target.weight_bytes() + cell.draft_length * draft.weight_bytes()
            reading, measure = size / copy_bandwidth(target.device, size), "reading the weights"
            ratio = seconds / reading if seconds > BEYOND * reading else 0.0
        if not ratio:
            return None
        self._active = False
        return (
            f"rounds of {cell.method} take {1000 * seconds:.0f} ms, {ratio:.0f} times as long as "
            f"{measure}: if other processes use the cores, stop them; else give fewer --threads, "
            "such as 1"
        )
