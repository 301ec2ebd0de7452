"""An engine is compared with eager before a run uses it: faults are noticed, rounding is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.config import GRAPH
from specbench.decoding import drafting
from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import GreedyDrafter
from specbench.decoding.loop import DecodeOptions, Request, RowTensors, decode_all
from specbench.decoding.sampling import Sampling
from specbench.engine import attention
from specbench.engine.attention import visible
from specbench.engine.cache import CAPACITY_STEP
from specbench.engine.engines import Engine
from specbench.engine.graphs import Graphs, Record
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.experiment.comparison import ROUNDS, Comparison, compare_with_eager
from specbench.methods.strict import sd

from ..decoding.helpers import module_drafter
from ..engine.test_graphs import record as faithful
from ..engine.tiny import blurred, build, config, pair_of, tiny_pair

EAGLE = "eagle3"
OPTIONS = DecodeOptions(Sampling(), draft_length=3, max_new_tokens=1, batch_size=2)


def leaves(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in outputs if leaf is not None]


def stale(call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
    """Never compute again: every round sees the outputs of the first."""
    return call(), lambda: None


def half_stale(call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
    """Leave the last row as the first call left it."""
    outputs = call()

    def replay() -> None:
        for old, new in zip(leaves(outputs), leaves(call()), strict=True):
            old[:-1].copy_(new[:-1])

    return outputs, replay


def compared(pair: LoadedPair, record: Record = faithful, **changes: Any) -> Comparison:
    pair = replace(pair, engine=Engine(GRAPH, record=record))
    pair.drop_caches()
    rule = sd if changes.get("draft_length", 3) else None
    return compare_with_eager(pair, rule, replace(OPTIONS, **changes))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"sampling": Sampling(temperature=0)}, {"drafter": GreedyDrafter(), "batch_size": 1}),
        *({"drafter": LookupDrafter()}, {"drafter": EAGLE}, {"draft_length": 0}),
    ],
)
def test_a_faithful_engine_is_the_same(family, changes):
    pair = tiny_pair(family)
    if changes.get("drafter") == EAGLE:
        changes = {"drafter": module_drafter(pair)}
    comparison = compared(pair, **changes)
    assert (comparison.difference, comparison.rounds, comparison.engine) == (None, ROUNDS, GRAPH)
    assert comparison.total_variation < 1e-4


@pytest.mark.parametrize("n", [0, 3])
def test_what_is_compared_is_what_runs(n):
    pair = replace(tiny_pair("llama"), engine=Engine(GRAPH, record=faithful))
    pair.drop_caches()
    rule, options = sd if n else None, replace(OPTIONS, draft_length=n)
    compare_with_eager(pair, rule, options)
    recorded = len(pair.engine._graphs._recordings)
    request = Request([1, 2, 3, 4], "text")
    list(decode_all(pair, rule, [request] * options.batch_size, options))
    assert len(pair.engine._graphs._recordings) == recorded > 0


class WrongHead:
    """Stands for the kernels of a GPU, of which the output head is wrong."""

    def __init__(self, runner: Runner) -> None:
        self._head = runner.output

    def takes(self, tokens: torch.Tensor) -> bool:
        return False

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(hidden)
        return 1.1 * logits


def test_a_wrong_kernel_is_noticed(monkeypatch):
    def twin(runner):  # on a GPU, twins have the kernels too
        copy = Runner(runner.model, runner.vocabulary)
        if runner.fused is not None:
            copy.fused = WrongHead(copy)  # type: ignore[assignment]
        return copy

    monkeypatch.setattr(Runner, "twin", twin)
    pair = tiny_pair("llama")
    monkeypatch.setattr(pair.target, "fused", WrongHead(pair.target))  # others share the pair
    assert "distributions differ by" in str(compared(pair).difference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_in_a_half_precision_is_no_difference(dtype):
    target = build(config("llama", initializer_range=0.05), dtype=dtype)
    comparison = compared(pair_of(target, blurred(target, noise=0.01)), batch_size=4)
    assert (comparison.difference, comparison.dtype) == (None, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("record", [stale, half_stale])
@pytest.mark.parametrize(
    "changes", [{}, {"draft_length": 0}, {"sampling": Sampling(temperature=0)}]
)
def test_stale_memory_is_noticed(record, changes):
    assert compared(tiny_pair("llama"), record, **changes).difference is not None


def test_stale_arguments_are_noticed(monkeypatch):
    def first(self, values):
        if isinstance(values, RowTensors):
            return values
        parts = (part.clone() if isinstance(part, torch.Tensor) else part for part in values)
        return self.__dict__.setdefault("s", values._make(parts))

    monkeypatch.setattr(Graphs, "place", first)
    assert compared(tiny_pair("llama")).difference is not None


class Shifted(Runner):
    """Reads at wrong positions in passes over the whole cache, which eager never makes."""

    def read(self, tokens: Any, at: Any, kv_length: int | None = None, last: bool = False) -> Any:
        return super().read(tokens, at + 1 if kv_length is None else at, kv_length, last)


def test_a_wrong_position_is_noticed():
    pair = tiny_pair("llama")
    target, draft = (Shifted(m.model, m.vocabulary) for m in pair.runners)
    for wrong in (replace(pair, target=target), replace(pair, draft=draft)):
        assert "distributions differ by" in str(compared(wrong).difference)


def test_a_wrong_mask_is_noticed(monkeypatch):
    """Every token sees the slot behind it if the whole cache is attended to."""

    def unmasked(at, kv_length, window):
        return visible(at + (kv_length % CAPACITY_STEP == 0), kv_length, window)

    monkeypatch.setattr(attention, "visible", unmasked)
    assert "distributions differ by" in str(compared(tiny_pair("llama")).difference)


def test_a_wrong_draw_is_noticed(monkeypatch):
    monkeypatch.setattr(drafting, "draw", lambda q, u: q.argmax(-1))
    comparison = compared(tiny_pair("llama"))
    assert comparison.difference == "drafts are not drawn from the draft's distributions"
