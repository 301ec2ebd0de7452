"""How the parts of a decoding round are carried out: as written, compiled, or as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from specbench.config import AUTO, COMPILE, EAGER, GRAPH
from specbench.engine.graphs import CaptureError, Graphs
from specbench.errors import EngineError, UsageError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])
# Every method, draft length, batch size and cache size has code of its own.
MOST_SHAPES = 256


class Engine:
    """Carries out functions of tensors, each made ready once where that is asked for.

    Code or a graph is made when new shapes are first met, which takes seconds; PyTorch keeps code
    on disk. ``name``, of ``specbench.config.ENGINES`` but not ``auto``, is how it works now.
    ``fall_back`` is told why, where a graph cannot be captured and the engine goes on eagerly from
    there; None raises instead.

    Raises:
        UsageError: Code is to be made, and there is no compiler.
    """

    def __init__(self, name: str = EAGER, fall_back: Callable[[str], object] | None = None) -> None:
        self.name = name
        self._fall_back = fall_back
        if name == COMPILE:
            _require_compiler()
        self._made: dict[Callable[..., Any], Any] = {}
        self._graphs = Graphs()

    @property
    def static(self) -> bool:
        """True where shapes must not change from round to round: models look at whole caches."""
        return self.name != EAGER

    def __call__(self, function: F) -> F:
        """Return a function to be called in the place of another."""
        if self.name == EAGER:
            return function
        if function not in self._made:
            self._made[function] = self._make(function)
        made: F = self._made[function]
        return made

    def place(self, values: T) -> T:
        """Return a named tuple whose tensors lie where all functions may read them."""
        return self._graphs.place(values) if self.name == GRAPH else values

    def _make(self, function: F) -> Callable[..., Any]:
        if self.name == COMPILE:
            config = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
            return torch.compile(function, dynamic=False, fullgraph=True)

        def replayed(*args: Any) -> Any:
            try:
                return self._graphs.run(function, args)
            except CaptureError as error:
                if self._fall_back is None:
                    raise EngineError(
                        f"{error}: choose --engine {EAGER}, or let it go on so with "
                        "--engine-fallback"
                    ) from error
                self._fall_back(f"{error}: going on with --engine {EAGER}")
                self.name = EAGER
                self._graphs = Graphs()  # and the memory of the old ones is free
                return function(*args)

        return replayed


def choose_engine(name: str, device: torch.device, spread: bool = False) -> str:
    """Return the engine that a name means on a device, or with layers spread over several.

    Raises:
        UsageError: It does not work there.
    """
    possible = device.type == "cuda" and not spread
    if name == AUTO:
        return GRAPH if possible else EAGER
    if name == GRAPH and not possible:
        where = "layers spread over devices" if spread else f"the device {device}"
        raise UsageError(
            f"--engine {GRAPH} needs one CUDA device, and here is {where}: choose {EAGER} or "
            f"{COMPILE}"
        )
    return name


def _require_compiler() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError) as error:
        raise UsageError(
            f"--engine {COMPILE} needs a C++ compiler and finds none: install g++ or clang, name "
            f"one in CXX, or choose --engine {EAGER}"
        ) from error
