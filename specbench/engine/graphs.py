"""CUDA graphs: a function of tensors is recorded once per kind of argument and then replayed.

A replay launches all of a function's kernels at once, so that a round costs what the device needs
and not what Python needs. It always works on the same memory: arguments are copied to where they
lay when the function was recorded, and what it returns is overwritten by the next replay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from specbench.engine.cache import SlotCache
from specbench.engine.runner import Runner

T = TypeVar("T", bound=tuple[Any, ...])

# Kernels choose their algorithms and libraries their workspaces in the first calls.
WARM_UPS = 3


class CaptureError(Exception):
    """A function cannot be recorded."""


class Recording(NamedTuple):
    """A recorded call."""

    slots: Sequence[Tensor | None]  # where each argument lies; None for what is no tensor
    outputs: Any  # what the function returned, in memory that every replay writes anew
    replay: Callable[[], object]  # carries it out again


Record = Callable[[Callable[[], Any]], tuple[Any, Callable[[], object]]]
"""Records a call without arguments; returns its outputs and what replays it."""


class Capture:
    """Records calls in CUDA graphs.

    Its graphs share their memory, so that what lives only within one is there once for all of them.
    Calling one may thus overwrite what a graph recorded after it returned, and nothing else: what a
    graph returns is never given to a later one.
    """

    def __init__(self) -> None:
        # A pool may be shared only as long as a graph lives in it.
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._side: torch.cuda.Stream | None = None

    def __call__(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        """Record a call.

        Raises:
            CaptureError: Something in it cannot be recorded, or the memory is not enough.
        """
        try:
            return self._recorded(call)
        except RuntimeError as error:
            self._graphs.clear()  # who knows in what state it left their memory
            reason = str(error).partition("\n")[0].rstrip(". ")
            raise CaptureError(f"a round cannot be captured in a CUDA graph ({reason})") from error

    def _recorded(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        # One for all warm-ups: libraries keep a workspace for every stream that they have met.
        side = self._side = self._side or torch.cuda.Stream()
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                call()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in self._graphs), None)
        try:
            with torch.cuda.graph(graph, pool=pool):
                outputs = call()
        finally:
            # Where a capture cannot be ended, PyTorch does not leave the stream it was made on.
            torch.cuda.set_stream(current)
        self._graphs.add(graph)
        return outputs, graph.replay


class Graphs:
    """Functions whose calls are recorded once and then replayed.

    Their arguments are tensors, tuples of tensors, and values that can be hashed. One recording
    serves all calls with tensors of the same shapes and types and otherwise equal values. What one
    function returns may be handed to another: it stays where it is and is not copied. When a
    runner's cache is replaced, all recordings are dropped, and their memory with them.

    A graph that reads what another returned is recorded after it, because only then is there
    something to read. So calls may share memory as those of ``Capture`` do, provided that what a
    chain of calls returns is read or copied before the chain begins again.

    Calls are recorded as CUDA graphs; another ``record`` serves tests without a GPU.
    """

    def __init__(self, record: Record | None = None) -> None:
        self._record = record or Capture()
        self._recordings: dict[tuple[Any, ...], Recording] = {}
        self._placed: dict[tuple[Any, ...], Any] = {}
        self._outputs: set[int] = set()
        # Not held: a runner that grows lets go of its cache before it gets another.
        self._caches: dict[Runner, weakref.ref[SlotCache]] = {}

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Carry a function out; what it returns is valid until it is next carried out.

        It waits for no device, and calling it again with equal arguments does no harm.

        Raises:
            CaptureError: It cannot be recorded.
        """
        leaves = list(_leaves(args))
        self._drop_replaced()
        runners = (leaf for leaf in leaves if isinstance(leaf, Runner))
        self._caches.update((r, weakref.ref(r.cache)) for r in runners if r.cache is not None)
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
        """Copy a named tuple's tensors to where all functions read them without another copy."""
        self._drop_replaced()
        kind = (type(values), *map(self._kind, values))
        if kind not in self._placed:
            leaves = (leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in values)
            self._placed[kind] = type(values)(*leaves)
            self._outputs.update(id(leaf) for leaf in self._placed[kind])
        placed: T = self._placed[kind]
        for slot, leaf in zip(placed, values, strict=True):
            if isinstance(leaf, Tensor):
                slot.copy_(leaf)
        return placed

    def _recorded(
        self, function: Callable[..., Any], args: Sequence[Any], leaves: Sequence[Any]
    ) -> Recording:
        slots = [self._slot(leaf) for leaf in leaves]
        pairs = zip(slots, leaves, strict=True)
        filled = iter([leaf if slot is None else slot for slot, leaf in pairs])
        bound = [_rebuilt(value, filled) for value in args]
        outputs, replay = self._record(lambda: function(*bound))
        self._outputs.update(map(id, _leaves([outputs])))
        return Recording(slots, outputs, replay)

    def _slot(self, leaf: Any) -> Tensor | None:
        if not isinstance(leaf, Tensor):
            return None
        return leaf if id(leaf) in self._outputs else leaf.clone()

    def _kind(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.shape, leaf.dtype, leaf.device, id(leaf) if id(leaf) in self._outputs else None

    def _drop_replaced(self) -> None:
        known = self._caches.items()
        if any(runner.cache is None or cache() is not runner.cache for runner, cache in known):
            self._recordings.clear()
            self._placed.clear()
            self._outputs.clear()
            self._caches.clear()


def _leaves(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(value, tuple):
        return type(value)(*(next(leaves) for _ in value))
    return next(leaves)
