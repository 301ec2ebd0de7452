"""Methods in a few characters, for tables and progress bars."""

from collections.abc import Mapping
from typing import Any

_SIGNS = (("weight", "w="), ("lenience", "l="), ("rule", ""), ("alpha", "α="), ("head", ""))
_OWN_HEADS = ("bundled", "results")  # found by itself: a table need not say so


def method_label(cell: Mapping[str, Any]) -> str:
    """Return a method with its parameters, as in ``static w=0.5``.

    Args:
        cell: ``method`` and the parameter columns of ``samples.csv``; None or NaN is a blank.
    """
    values = [(sign, cell[name]) for name, sign in _SIGNS]
    parts = [
        f"{sign}{value:g}" if isinstance(value, float) else f"{sign}{value}"
        for sign, value in values
        if value is not None and value == value and value not in _OWN_HEADS
    ]
    return " ".join([cell["method"], *parts])
