"""Many replays of a round's graphs equal eager passes, while other graphs overwrite free memory."""

from functools import partial
from inspect import signature

import pytest
import torch
from torch import Tensor

from specbench.config import EAGER, GRAPH
from specbench.decoding.drafting import State, draft, draft_token
from specbench.decoding.round import target_forward
from specbench.decoding.sampling import Sampling
from specbench.engine.engines import Engine
from specbench.engine.graphs import Record
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair

from ..engine.test_graphs import record
from ..engine.tiny import random_prompt, tiny_pair

ROWS, N, LENGTH = 2, 3, 120


def poison(x: Tensor) -> Tensor:
    """Fill memory that the pool has free with NaN."""
    torch.full((2**22,), torch.nan, device=x.device)
    return x + 0


def states(pair: LoadedPair, count: int) -> list[State]:
    generator = torch.Generator().manual_seed(0)
    random_states = []
    for _ in range(count):
        last = torch.randint(pair.target.vocabulary, (ROWS, 2), generator=generator)
        length = torch.randint(2, LENGTH, (ROWS,), generator=generator)
        uniforms = torch.rand(ROWS, 2 * N + 1, generator=generator, dtype=torch.float64)
        parts = (part.to(pair.target.device) for part in (last, length, uniforms, length > 0))
        random_states.append(State(*parts, None))
    return random_states


@torch.inference_mode()
def largest_difference(pair: LoadedPair, count: int, record: Record | None = None) -> float:
    """Between replays and eager passes; 1 where over 1 % of the drafts are others."""
    pair.reserve(LENGTH + N + 1, ROWS)
    prompt = torch.tensor(random_prompt(LENGTH, pair.target.vocabulary)).to(pair.target.device)
    for row in range(ROWS):
        for model in pair.runners:
            model.prefill(prompt, row)
    graph, eager = Engine(GRAPH, record=record), Engine(EAGER)
    equal, largest = 0, 0.0
    for state in states(pair, count):
        by_engine = []
        for engine in (eager, graph):
            placed = engine.place(state)
            drafts = engine(draft)(draft_token, pair.draft, placed, Sampling())
            drafted = [part.clone() for part in drafts[:2]]
            p = engine(target_forward)(pair.target, placed, drafts.x, Sampling()).p.clone()
            by_engine.append((*drafted, p))
        graph(poison)(state.uniforms)
        (x, *probabilities), (other, *replayed) = by_engine
        equal += torch.equal(x, other)  # unless rounding has decided a draw
        if torch.equal(x, other):
            pairs = zip(probabilities, replayed, strict=True)
            largest = max(largest, *(float((one - two).abs().max()) for one, two in pairs))
    return 1.0 if equal < 0.99 * count else largest


def test_replays_of_a_stand_in_equal_eager_passes():
    assert largest_difference(tiny_pair("llama"), 8, record) == 0


@pytest.mark.gpu
def test_a_thousand_replays_equal_eager_passes():
    pair = load_pair(get_pair("mini"), Loading(device="cuda", dtype="float32"))
    assert largest_difference(pair, 1_000) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(
    "check_input_liveness" not in signature(torch.cuda.graph.__init__).parameters,
    reason="needs PyTorch 2.13",
)
def test_no_graph_reads_memory_that_was_freed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", partial(torch.cuda.graph, check_input_liveness=True))
    pair = load_pair(get_pair("mini"), Loading(device="cuda", dtype="float32"))
    assert largest_difference(pair, 20) < 1e-4
