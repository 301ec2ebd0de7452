"""Verification rules: pure functions from (p, q, x, parameters) to acceptance and residual.

Names that need torch are imported on first use, so that listing the methods stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specbench.methods.method import Method, Parameter
from specbench.methods.own import rule
from specbench.methods.registry import METHODS, get_method

if TYPE_CHECKING:
    from specbench.methods.verdict import (
        Positions,
        Rule,
        Verdict,
        maximal_coupling,
        normalise,
        pick,
    )

__all__ = [
    "METHODS",
    "Method",
    "Parameter",
    "Positions",
    "Rule",
    "Verdict",
    "get_method",
    "maximal_coupling",
    "normalise",
    "pick",
    "rule",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("specbench.methods.verdict"), name)
