"""Engines run the parts of a decoding round: eagerly, compiled, or as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from specbench.config import COMPILE, EAGER, GRAPH, LLAMACPP
from specbench.errors import CaptureError, EngineError

if TYPE_CHECKING:
    from specbench.engine.graphs import Graphs, Record

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])
PLAIN = (EAGER, LLAMACPP)  # functions are called as they are


class Engine:
    """Runs functions of tensors, eagerly or after compiling or capturing each of them once.

    New shapes are compiled or captured when first met, which takes seconds; PyTorch caches compiled
    code on disk. ``name`` is the engine in use, never ``auto``. If a round cannot be captured or
    compiled, the engine passes the reason to ``fall_back`` and switches to eager; without
    ``fall_back`` it raises. ``record`` takes the place of CUDA graphs.

    Raises:
        UsageError: The engine needs a compiler and there is none.
        EngineError: On a call: the function cannot be captured or compiled, without ``fall_back``.
    """

    def __init__(
        self,
        name: str = EAGER,
        fall_back: Callable[[str], object] | None = None,
        record: Record | None = None,
    ) -> None:
        self.name = name
        self._fall_back, self._record = fall_back, record
        if name == COMPILE:
            from specbench.engine.compiled import require_compiler

            require_compiler()
        self._made: dict[Callable[..., Any], Any] = {}

    @cached_property
    def _graphs(self) -> Graphs:
        from specbench.engine.graphs import Graphs

        return Graphs(self._record)

    @property
    def static(self) -> bool:
        """Whether shapes must not change between rounds, so that models attend to whole caches."""
        return self.name not in PLAIN

    def __call__(self, function: F) -> F:
        """Return the function to call in place of ``function``."""
        if self.name in PLAIN:
            return function
        if function not in self._made:
            compiled: Callable[..., Any] | None = None
            if self.name == COMPILE:
                from specbench.engine.compiled import compile_rounds

                compiled = compile_rounds(function)

            def made(*args: Any) -> Any:
                try:
                    return compiled(*args) if compiled else self._graphs.run(function, args)
                except CaptureError as error:
                    self.give_up(str(error), error)
                    return function(*args)

            self._made[function] = made
        prepared: F = self._made[function]
        return prepared

    def give_up(self, reason: str, cause: Exception | None = None) -> None:
        """Switch to eager execution with a warning, unless the user wants no other engine."""
        if self._fall_back is None:
            raise EngineError(
                f"{reason}: choose --engine {EAGER}, or auto, which then continues with it"
            ) from cause
        self._fall_back(f"{reason}: continuing with --engine {EAGER}")
        self.name = EAGER
        self._graphs.clear()

    def place(self, values: T) -> T:
        """Return a named tuple with its tensors in memory that all functions can read."""
        return self._graphs.place(values) if self.name == GRAPH else values
