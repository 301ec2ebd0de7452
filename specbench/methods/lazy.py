"""PyTorch, imported at its first use: listing the methods must not wait for it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _LazyTorch(ModuleType):
    def __getattr__(self, name: str) -> Any:
        module = import_module("torch")
        vars(self).update(vars(module))  # this is not called again
        return getattr(module, name)


if TYPE_CHECKING:
    import torch as torch
else:
    torch = _LazyTorch("torch")
