"""Capturing calls in CUDA graphs, with a stand-in for the device that records their order."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import specbench.engine.device
from specbench.config import GRAPH
from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind
from specbench.decoding.modules.module import MODULES
from specbench.engine import graphs, runner
from specbench.engine.cache import CAPACITY_STEP, SlotCache
from specbench.engine.engines import CaptureError, Engine
from specbench.engine.graphs import Capture, Graphs
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import EngineError
from specbench.methods.control import DraftControl

from ..decoding.helpers import module_drafter, run, run_all, said
from ..decoding.test_rows import rules, rules_of
from .test_graphs import REQUESTS, fresh_pair
from .tiny import FAMILIES, random_prompt, tiny_pair


class Stream:
    def wait_stream(self, other: "Stream") -> None:
        pass


class Device:
    """Streams, one of them current, and graphs in memory pools."""

    def __init__(self) -> None:
        self.default = self.current = Stream()
        self.warm: list[Stream] = []  # streams of the warm-up calls
        self.pools: list[Any] = []  # the pool of each capture
        self.streams: list[Stream] = []  # the stream of each capture
        self.capturing = self.broken = False

    def call(self) -> str:
        if not self.capturing:
            self.warm.append(self.current)
        return "output"

    def synchronising_call(self) -> None:
        self.call()
        if self.capturing:
            self.broken = True
            raise RuntimeError("operation not permitted when stream is capturing\nMore.")

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Graph:
    def __init__(self, device: Device) -> None:
        self._device = device

    def capture_begin(self, pool: Any = None, **_: Any) -> None:
        self._pool = pool or object()
        self._device.pools.append(self._pool)
        self._device.streams.append(self._device.current)
        self._device.capturing = True

    def capture_end(self) -> None:
        self._device.capturing = False
        if self._device.broken:
            self._device.broken = False
            raise RuntimeError("operation failed due to a previous error during capture")

    def pool(self) -> Any:
        return self._pool

    def replay(self) -> None:
        pass


@pytest.fixture
def device(monkeypatch) -> Device:
    fake = Device()
    parts: dict[str, Any] = {
        **{"Stream": Stream, "CUDAGraph": partial(Graph, fake), "stream": fake.stream},
        **{"set_stream": fake.set_stream, "current_stream": lambda: fake.current},
        **{"synchronize": lambda: None, "empty_cache": lambda: None},
    }
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    monkeypatch.setattr(specbench.engine.device, "run_kernel", lambda where: None)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
    return fake


def test_errors_of_triton_are_those_of_a_capture_and_others_are_not(device):
    name = {"__module__": "triton.runtime.errors"}
    exhausted = type("OutOfResources", (Exception,), name)("out of resource: shared memory")
    for error, kind in ((exhausted, CaptureError), (ValueError("a mistake"), ValueError)):
        with pytest.raises(kind, match=str(error)):
            Capture()(Mock(side_effect=error))


def test_graphs_share_a_pool_and_a_warm_up_stream_and_a_failed_capture_restores_its_own(device):
    capture = Capture()
    captures = [capture(device.call) for _ in range(3)]
    assert len(captures) == 3 and len(set(device.pools)) == 1
    assert len({*device.warm, *device.streams}) == 1 and device.default not in device.warm
    Capture()(device.call)
    assert device.streams[-1] not in device.streams[:-1]
    with pytest.raises(CaptureError, match=r"\(operation failed due to a previous error"):
        Capture()(device.synchronising_call)
    assert device.current is device.default and Capture()(device.call)[0] == "output"
    assert device.current is device.default


def test_a_capture_that_kills_the_device_ends_the_run(device, monkeypatch):
    dead = Mock(side_effect=RuntimeError("CUDA error: an illegal memory access was encountered"))
    monkeypatch.setattr(specbench.engine.device, "run_kernel", dead)
    with pytest.raises(EngineError, match=r"cuda no longer works after an error \(CUDA error"):
        Capture()(device.synchronising_call)


def test_recordings_are_dropped_after_the_device_is_idle(monkeypatch):
    recordings = Graphs(lambda call: (call(), lambda: None))
    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append(len(recordings._recordings)))
    recordings.run(torch.neg, [torch.ones(1)])
    recordings.run(torch.abs, [torch.ones(1)])
    recordings.clear()
    assert seen == [2] and len(recordings._recordings) == 0


def test_memory_is_shared_only_with_live_graphs_that_did_not_fail(device):
    """PyTorch may free a pool without live graphs."""
    capture = Capture()
    capture(device.call)
    gc.collect()
    captures = [capture(device.call)]
    with pytest.raises(CaptureError):
        capture(device.synchronising_call)
    captures.append(capture(device.call))
    first, second, failed, after = device.pools
    assert first is not second is failed is not after


# Possible effects of graphs that share memory.


class Shared:
    """Records calls that share memory in the worst way that a shared pool allows.

    Intermediate tensors of a call may overlap the outputs of calls recorded after it; those of
    calls recorded earlier are left intact, as in a pool.
    """

    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def __call__(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        number, outputs = len(self.outputs), call()
        self.outputs.append(outputs)

        def replay() -> None:
            for tensor in graphs._leaves(self.outputs[number:]):
                if tensor is not None:
                    tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
            fresh = graphs._leaves([call()])
            for old, new in zip(graphs._leaves([outputs]), fresh, strict=True):
                if old is not None:
                    old.copy_(new)

        return outputs, replay


def cells(
    pair: LoadedPair,
    passes: int,
    control: DraftControl | None = None,
    names: Sequence[str] = ("sd", "static", "mentored", "block"),
    **how: Any,
) -> list[list[Any]]:
    """Texts of several rules and lengths in each pass over them, and then of two batches."""
    chosen = rules(pair)

    def texts(verify: Any, n: int, rows: int) -> list[Any]:
        settings: dict[str, Any] = {"draft_length": n, "max_new_tokens": 5, "batch_size": rows}
        settings |= {"control": control, **how} if n else {}
        return [said(text) for text in run_all(pair, verify, REQUESTS[:3], **settings)]

    plan = [(chosen[name], n, 1) for n in (3, 1) for name in names] + [(None, 0, 1)]
    batches = [(chosen["sd"], 3, 2), (chosen["block"], 3, 2)]
    return [[texts(*cell) for cell in part] for part in (*passes * [plan], batches)]


def assert_texts_are_eager(pair: LoadedPair, record: Shared, **how: Any) -> None:
    """Compare both passes of the graphs with one of the eager engine."""
    pair.reserve(64)
    first, second, batches = cells(replace(pair, engine=Engine(GRAPH, record=record)), 2, **how)
    assert [first, batches] == cells(replace(pair, engine=Engine()), 1, **how)
    assert second == first


@pytest.mark.parametrize(
    ("family", "control"),
    [*((family, None) for family in FAMILIES), ("qwen3", Online(get_policy("adaptive:0.2")))],
)
def test_graphs_in_one_pool_equal_the_eager_engine(family, control):
    record, names = Shared(), rules_of(family).keys() - {"autoregressive"}
    assert_texts_are_eager(tiny_pair(family), record, control=control, names=sorted(names))
    assert len(record.outputs) > 10


@pytest.mark.parametrize("kind", [*DRAFTERS, *MODULES])
def test_graphs_of_other_drafters_equal_the_eager_engine(kind):
    """A module reads what the graph of the target's pass left in the shared memory."""
    pair, record = tiny_pair("llama"), Shared()
    how: dict[str, Any] = {"names": ("sd", "block")}
    how["drafter"] = module_drafter(pair, kind=kind) if kind in MODULES else parse_kind(kind)
    assert_texts_are_eager(pair, record, **how)
    assert len(record.outputs) > 10


# Replaced caches.


def look(model: Runner) -> torch.Tensor:
    at = torch.tensor([[0]])
    return model.forward(at, at)


def test_a_cache_is_freed_before_a_larger_one_is_allocated(monkeypatch):
    pair = fresh_pair()
    pair.engine = Engine(GRAPH, record=Shared())
    alive: weakref.WeakSet[SlotCache] = weakref.WeakSet()
    others: list[int] = []

    class Counted(SlotCache):
        def __init__(self, *args):
            others.append(len(alive))
            super().__init__(*args)
            alive.add(self)

    monkeypatch.setattr(runner, "SlotCache", Counted)
    for length in (20, CAPACITY_STEP, 2 * CAPACITY_STEP):
        run(pair, random_prompt(length), rules(pair)["sd"])
    assert others == [0, 1, 1, 1, 1, 1]  # the other model's


def test_a_new_cache_is_never_mistaken_for_the_old_one():
    subject, recorded, replayed = fresh_pair().target, [], []
    recordings = Graphs(lambda call: (recorded.append(1) or call(), lambda: replayed.append(1)))
    for _ in range(20):  # some will reuse the address of another
        subject.cache = None
        subject.reserve(1, 64)
        for _ in range(2):
            recordings.run(look, [subject])
    assert len(recorded) == 20 and len(recordings._recordings) == 1
    subject.cache = None
    with pytest.raises(IndexError, match="reserve more"):
        recordings.run(look, [subject])
    assert len(replayed) == 40
