"""The graph engine, with a stand-in that reuses addresses and outputs as a CUDA graph does."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from specbench.config import AUTO, COMPILE, EAGER, GRAPH
from specbench.decoding.loop import Request
from specbench.engine import graphs
from specbench.engine.choice import choose_engine
from specbench.engine.engines import Engine
from specbench.engine.graphs import Graphs
from specbench.engine.pair import LoadedPair
from specbench.errors import CaptureError, RunError, UsageError
from specbench.methods.ensembles import static
from specbench.methods.strict import sd

from ..decoding.helpers import run, said
from .tiny import random_prompt, tiny_pair

REQUESTS = [Request(random_prompt(length), f"sample {length}") for length in (7, 1, 30, 12, 2)]
recorded: list[str] = []


def record(call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
    """A stand-in for ``graphs.Capture``."""
    recorded.append("call")
    outputs = call()

    def replay() -> None:
        for old, new in zip(graphs._leaves([outputs]), graphs._leaves([call()]), strict=True):
            if old is not None:
                old.copy_(new)

    return outputs, replay


@pytest.fixture(autouse=True)
def _nothing_recorded() -> None:
    recorded.clear()


def fresh_pair() -> LoadedPair:
    pair = replace(tiny_pair("llama"), engine=Engine())
    pair.target.cache = pair.draft.cache = None
    return pair


def test_one_recording_serves_all_rounds_and_a_replaced_cache_is_recorded_again():
    pair = fresh_pair()
    pair.engine = Engine(GRAPH, record=record)
    pair.reserve(64)
    for _ in range(2):
        run(pair, random_prompt(9), sd, draft_length=3)
    assert len(recorded) == 3  # drafting, the target's pass, verification
    run(pair, random_prompt(4), partial(static, weight=0.5), draft_length=3)
    assert len(recorded) == 4
    run(pair, random_prompt(4), sd, draft_length=4)
    assert len(recorded) == 7
    eager = [run(fresh_pair(), random_prompt(length), sd) for length in (20, 300, 20)]
    pair = fresh_pair()
    pair.engine = Engine(GRAPH, record=record)
    graph = [run(pair, random_prompt(length), sd) for length in (20, 300, 20)]
    assert [said(g) for g in graph] == [said(g) for g in eager] and len(recorded) == 7 + 6
    assert len(pair.engine._graphs._recordings) == 3  # those of the old cache are gone


class Pair(NamedTuple):
    x: Tensor
    n: int


def test_placed_tuples_and_outputs_are_not_copied_again():
    recordings = Graphs(record)
    read: list[int] = []
    returned: list[int] = []

    def times(pair):
        read.append(pair.x.data_ptr())
        return pair.x * pair.n

    def plus(pair, x):
        read.append(pair.x.data_ptr())
        returned.append(x.data_ptr())
        return x + pair.n

    for value in (1.0, 5.0):
        pair = recordings.place(Pair(torch.tensor([value]), 3))
        product = recordings.run(times, [pair])
        assert product.item() == value * 3
        assert recordings.run(plus, [pair, product]).item() == value * 3 + 3
        assert set(read) == {pair.x.data_ptr()} and set(returned) == {product.data_ptr()}
    assert len(recordings._recordings) == 2


def test_layers_whose_states_a_drafter_reads_have_recordings_of_their_own():
    recordings, model = Graphs(record), Mock()

    def times(model, x):
        return x * model.layers[0]

    for layer in (1, 2, 1):
        model.layers = (layer,)
        assert recordings.run(times, [model, torch.ones(1)]).item() == layer
    assert len(recordings._recordings) == 2


def failing(call: Callable[[], Any]) -> Any:
    raise CaptureError("a round cannot be captured in a CUDA graph (no memory)")


def test_a_failing_capture_is_one_line_or_falls_back_to_eager():
    pair = fresh_pair()
    expected = said(run(pair, random_prompt(9), sd))
    pair.engine = Engine(GRAPH, record=failing)
    with pytest.raises(RunError, match=r"cannot be captured .*no memory.*--engine eager"):
        run(pair, random_prompt(9), sd)

    told: list[str] = []
    pair.engine = Engine(GRAPH, told.append, failing)
    assert said(run(pair, random_prompt(9), sd)) == expected and pair.engine.name == EAGER
    assert len(told) == 1 and "no memory" in told[0]


def test_the_engine_of_a_device():
    cpu, gpu = "cpu", "cuda:1"
    assert choose_engine(AUTO, cpu) == EAGER and choose_engine(AUTO, gpu) == GRAPH
    assert choose_engine(AUTO, gpu, spread=True) == EAGER
    assert choose_engine(COMPILE, gpu) == COMPILE
    with pytest.raises(UsageError, match="layers spread over devices"):
        choose_engine(GRAPH, gpu, spread=True)
