"""Engines run the parts of a decoding round: eagerly, compiled, or as CUDA graphs."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from specbench.config import COMPILE, EAGER, GRAPH, LLAMACPP
from specbench.errors import CaptureError, EngineError, UsageError

if TYPE_CHECKING:
    from specbench.engine.graphs import Graphs, Record

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])
# Each combination of method, draft length, batch size and cache size is compiled separately.
MOST_SHAPES = 256
COMPILER = ("_dynamo", "_functorch", "_inductor", "fx")  # folders of PyTorch


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
            _require_compiler()
        self._made: dict[Callable[..., Any], Any] = {}

    @cached_property
    def _graphs(self) -> Graphs:
        from specbench.engine.graphs import Graphs

        return Graphs(self._record)

    @property
    def static(self) -> bool:
        """Whether shapes must not change between rounds, so that models attend to whole caches."""
        return not self._plain

    @property
    def _plain(self) -> bool:
        """Whether functions are called as they are."""
        return self.name in (EAGER, LLAMACPP)

    def __call__(self, function: F) -> F:
        """Return the function to call in place of ``function``."""
        if self._plain:
            return function
        if function not in self._made:
            self._made[function] = self._make(function)
        prepared: F = self._made[function]
        return prepared

    def give_up(self, reason: str, cause: Exception | None = None) -> None:
        """Switch to eager execution with a warning.

        Raises:
            EngineError: The user wants this engine and no other.
        """
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

    def _make(self, function: F) -> Callable[..., Any]:
        compiled = _compiled(function) if self.name == COMPILE else None

        def made(*args: Any) -> Any:
            try:
                return compiled(*args) if compiled else self._graphs.run(function, args)
            except CaptureError as error:
                self.give_up(str(error), error)
                return function(*args)

        return made


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for fixed shapes; it raises ``CaptureError`` if it cannot be."""
    from torch._dynamo.exc import TorchDynamoException

    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
    compiled = torch.compile(function, dynamic=False, fullgraph=True)

    def run(*args: Any) -> Any:
        try:
            result = compiled(*args)
        except Exception as error:
            if isinstance(error, TorchDynamoException) or _fails_to_compile(error):
                raise CaptureError(f"a round cannot be compiled ({_reason(error)})") from error
            raise
        fields = getattr(result, "_fields", None)
        if fields is not None and len(fields) != len(result):  # 2.11 does so with copied drafts
            raise CaptureError(f"PyTorch {torch.__version__} loses results of a compiled round")
        return result

    return run


def _fails_to_compile(error: Exception) -> bool:
    """Return whether an error of any kind comes from PyTorch's compiler, not from the function."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    folders = [Path(torch.__file__).parent / name for name in COMPILER]
    compiles = any(file.match("torch/_dynamo/convert_frame.py") for file in files)
    return compiles or any(files[-1].is_relative_to(folder) for folder in folders)


def _require_compiler() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError) as error:
        raise UsageError(
            f"--engine {COMPILE} needs a C++ compiler: install g++ or clang, name "
            f"one in CXX, or choose --engine {EAGER}"
        ) from error


def _reason(error: Exception) -> str:
    """Return the first line of a compiler's message, with the innermost line of code it names."""
    lines = (line for line in str(error).strip().splitlines() if not line.endswith("raised:"))
    first = next(lines, type(error).__name__).rstrip(". ")
    places = re.findall(r'File "(.+?)", line (\d+)', str(error))
    return f"{Path(places[-1][0]).name}, line {places[-1][1]}: {first}" if places else first
