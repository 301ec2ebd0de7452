"""PyTorch and NumPy, imported at their first use: lists and help must not wait for them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        vars(self).update(vars(module))  # this is not called again
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as numpy
    import torch as torch
    from torch import Tensor as Tensor
else:
    numpy, torch, Tensor = _Lazy("numpy"), _Lazy("torch"), Any
