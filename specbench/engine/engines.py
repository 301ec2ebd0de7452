"""How a decoding round is carried out: as it is written, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from specbench.engine.settings import COMPILE, EAGER
from specbench.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
# Every method, draft length, batch size and cache size has code of its own.
MOST_SHAPES = 256


class Engine:
    """Carries out functions of tensors, each compiled once where that is asked for.

    Code is made when new shapes are first met, which takes seconds, and kept on disk by PyTorch.

    Args:
        name: Key of ``specbench.engine.settings.ENGINES``.

    Raises:
        UsageError: Code is to be made, and there is no compiler.

    Attributes:
        static: Shapes must not change from round to round: models look at the whole cache.
    """

    def __init__(self, name: str = EAGER) -> None:
        self.name = name
        self.static = name == COMPILE
        if self.static:
            _require_compiler()
        self._compiled: dict[Callable[..., Any], Any] = {}

    def __call__(self, function: F) -> F:
        """Return a function to be called in the place of another."""
        if not self.static:
            return function
        if function not in self._compiled:
            config = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, MOST_SHAPES)
            self._compiled[function] = torch.compile(function, dynamic=False, fullgraph=True)
        compiled: F = self._compiled[function]
        return compiled


def _require_compiler() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError) as error:
        raise UsageError(
            f"--engine {COMPILE} needs a C++ compiler and finds none: install g++ or clang, name "
            f"one in CXX, or choose --engine {EAGER}"
        ) from error
