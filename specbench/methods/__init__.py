"""Verification rules: pure functions from (p, q, x, parameters) to acceptance and residual."""

from specbench.methods.method import Method, Parameter, rule
from specbench.methods.registry import METHODS, get_method
from specbench.methods.verdict import (
    Positions,
    Rule,
    Verdict,
    entropy_of,
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
    "entropy_of",
    "get_method",
    "maximal_coupling",
    "normalise",
    "pick",
    "rule",
]
