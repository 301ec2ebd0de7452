"""CUDA graphs: a function of tensors is captured once per signature and then replayed.

A replay launches all kernels of a function at once, so a round takes the device's time rather than
Python's. It always uses the same memory: arguments are copied to their addresses at capture, and
the next replay overwrites the outputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from specbench.engine.cache import SlotCache
from specbench.engine.device import require_working
from specbench.errors import CaptureError, first_line

T = TypeVar("T", bound=tuple[Any, ...])

# The first calls select kernel algorithms and allocate library workspaces.
WARM_UPS = 3


class Recording(NamedTuple):
    """A recorded call."""

    slots: Sequence[Tensor | None]  # memory of each argument; None for non-tensors
    outputs: Any  # the function's outputs, in memory that every replay overwrites
    replay: Callable[[], object]  # repeats the call


Record = Callable[[Callable[[], Any]], tuple[Any, Callable[[], object]]]
"""Records a call without arguments; returns its outputs and a function that replays it."""


class Capture:
    """Records calls as CUDA graphs.

    All graphs share one memory pool, so intermediate tensors are allocated once. Replaying a graph
    may overwrite the outputs of graphs captured after it, but nothing else: memory of a graph's
    outputs is never allocated to a later graph.

    Warm-ups and captures run on one stream of this object. cuBLAS keeps a workspace per stream, and
    destroying a graph clears the workspaces of its stream, which other graphs may address.
    """

    def __init__(self) -> None:
        # A pool can be shared only while a graph that uses it is alive.
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        """Record a call.

        Raises:
            CaptureError: An operation cannot be captured, or memory runs out.
            EngineError: The device no longer works.
        """
        try:
            return self._recorded(call)
        except Exception as error:
            # Of others, only Triton's say that a kernel does not run here.
            if not isinstance(error, RuntimeError) and "triton" not in type(error).__module__:
                raise
            require_working(torch.device("cuda"))
            self._graphs.clear()  # the failed capture may have corrupted their memory
            raise CaptureError(
                f"a round cannot be captured in a CUDA graph ({first_line(error)})"
            ) from error

    def _recorded(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        stream = self._stream = self._stream or torch.cuda.Stream()
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                call()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in self._graphs), None)
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                outputs = call()
        finally:
            # If a capture fails to end, PyTorch does not restore the current stream.
            torch.cuda.set_stream(current)
        self._graphs.add(graph)
        return outputs, graph.replay


class Graphs:
    """Functions whose calls are recorded once and then replayed.

    Arguments are tensors, tuples of tensors, and hashable values. A recording serves all calls with
    tensors of the same shapes and dtypes, models with the same ``layers``, and otherwise equal
    values. Outputs of one function may be passed to another without a copy. When a runner's cache
    is replaced, all recordings are dropped and their memory is freed.
    """

    def __init__(self, record: Record | None = None) -> None:
        self._record = record or Capture()
        self._recordings: dict[tuple[Any, ...], Recording] = {}
        self._placed: dict[tuple[Any, ...], Any] = {}
        self._outputs: set[int] = set()
        # Weak references: a growing runner frees its cache before it allocates another.
        self._caches: dict[Any, weakref.ref[SlotCache]] = {}

    def run(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run a function; its outputs are valid until it runs again.

        It never waits for the device and may be called again with equal arguments.
        """
        leaves = list(_leaves(args))
        self._drop_replaced()
        runners = (leaf for leaf in leaves if isinstance(getattr(leaf, "cache", None), SlotCache))
        self._caches.update((r, weakref.ref(r.cache)) for r in runners)
        key = (function, *map(self._kind, leaves))
        if key not in self._recordings:
            self._recordings[key] = self._recorded(function, args, leaves)
        slots, outputs, replay = self._recordings[key]
        for slot, leaf in zip(slots, leaves, strict=True):
            if slot is not None and slot is not leaf:
                slot.copy_(leaf)
        replay()
        return outputs

    def place(self, values: T) -> T:
        """Copy a named tuple's tensors to memory that all functions read without another copy.

        Tensors in such memory stay where they are.
        """
        self._drop_replaced()
        kind = (type(values), *map(self._kind, values))
        if kind not in self._placed:
            pairs = ((leaf, self._slot(leaf)) for leaf in values)
            leaves = (leaf if slot is None else slot for leaf, slot in pairs)
            self._placed[kind] = type(values)(*leaves)
            self._outputs.update(id(leaf) for leaf in self._placed[kind])
        placed: T = self._placed[kind]
        for slot, leaf in zip(placed, values, strict=True):
            if isinstance(leaf, Tensor) and slot is not leaf:
                slot.copy_(leaf)
        return placed

    def clear(self) -> None:
        """Drop all recordings, once no replay is running."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._recordings.clear()
        self._placed.clear()
        self._outputs.clear()
        self._caches.clear()

    def _recorded(
        self, function: Callable[..., Any], args: Sequence[Any], leaves: Sequence[Any]
    ) -> Recording:
        slots = [self._slot(leaf) for leaf in leaves]
        pairs = zip(slots, leaves, strict=True)
        filled = iter([leaf if slot is None else slot for slot, leaf in pairs])
        bound = [
            type(value)(*(next(filled) for _ in value))
            if isinstance(value, tuple)
            else next(filled)
            for value in args
        ]
        outputs, replay = self._record(lambda: function(*bound))
        self._outputs.update(map(id, _leaves([outputs])))
        return Recording(slots, outputs, replay)

    def _slot(self, leaf: Any) -> Tensor | None:
        if not isinstance(leaf, Tensor):
            return None
        return leaf if id(leaf) in self._outputs else leaf.clone()

    def _kind(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf, getattr(leaf, "layers", None)  # which a drafter may have set
        return leaf.shape, leaf.dtype, leaf.device, id(leaf) if id(leaf) in self._outputs else None

    def _drop_replaced(self) -> None:
        caches = self._caches.items()
        if any(runner.cache is None or cache() is not runner.cache for runner, cache in caches):
            self.clear()


def _leaves(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value
