"""One line about rounds that are far slower than the first, or than the machine's memory."""

from typing import Any

import pytest
import torch

from specbench.decoding.records import Generation
from specbench.experiment import pace
from specbench.experiment.pace import Pace

from .runs import plan_of

CELL = plan_of(["sd"]).tasks[0].cells[-1]


class Weights:
    """A model of 1 GB, on a machine that copies 10 GB/s: 0.1 s a step."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)

    def weight_bytes(self) -> int:
        return 10**9


def doubts(seconds: list[float], device: str = "cpu", batch_size: int = 1, rounds: int = 8) -> Any:
    pair: Any = type("Pair", (), {"target": Weights(device), "draft": Weights(device)})
    compared = Pace(pair, batch_size)
    texts = [
        Generation([1], "", 1, 1, "eos", 0.0, s * rounds, *[0.0] * 4, rounds=[None] * rounds)  # type: ignore[list-item]
        for s in seconds
    ]
    return [compared.doubt(CELL, text) for text in texts]


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch) -> None:
    monkeypatch.setattr(pace, "copy_bandwidth", lambda device, size: 1e10)


def test_slow_rounds_are_named_once_with_the_remedy():
    assert CELL.draft_length > 0
    steps = 0.1 * (1 + CELL.draft_length)
    cases: list[tuple[list[float], int | None, str]] = [
        ([0.1, 0.12, 0.1, 0.3, 0.5, 0.9], 4, "500 ms, 5 times as long as those of the first texts"),
        ([0.01, 0.01, 0.01, 0.1], 3, "100 ms, 10 times as long as those of the first"),
        ([0.1, 0.1, 0.1, 0.3, 0.39], None, ""),
        ([31 * steps, 31 * steps], 0, "31 times as long as reading the weights"),
        ([29 * steps] * 4, None, ""),
    ]
    for seconds, place, told in cases:
        notes = doubts(seconds)
        assert [n for n, note in enumerate(notes) if note] == ([] if place is None else [place])
        assert place is None or (told in notes[place] and "--threads" in notes[place])


@pytest.mark.parametrize("how", [{"device": "cuda"}, {"batch_size": 2}, {"rounds": 7}])
def test_other_rounds_are_not_compared(how):
    assert doubts([0.1, 0.1, 0.1, 90.0], **how) == [None] * 4
