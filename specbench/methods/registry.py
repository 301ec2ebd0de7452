"""The methods by name, and their parameters in the columns of tables.

A bundled rule is declared where it is defined, by the decorator ``rule``. Parameters of the oldest
methods have columns of their own; all others share the column ``settings``, as in ``margin=0.3
keep=10``. This module does not import torch, which the rules' modules import at their first use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specbench import plugins
from specbench.errors import UsageError, require, unknown
from specbench.methods.method import Method
from specbench.methods.own import own_method

ORDER = (
    *("strict", "speccascade", "ensembles", "exact", "mentored"),
    *("typical", "sharpening", "serving", "gated", "divergence"),
)
"""The modules whose rules come first in tables and figures, in this order."""

AUTOREGRESSIVE = "autoregressive"  # no draft; the baseline of speed-ups
#: Methods that only sharpen, as controls for rules that do so implicitly.
CONTROLS = ("sharpened", "cooled")
_ALONE = Method(AUTOREGRESSIVE, "the target alone, one token a step", "-", rule=None, exact=True)
METHODS = {
    method.name: method for method in [_ALONE, *plugins.bundled("specbench.methods", Method, ORDER)]
}
"""Every method by name, in the order tables and figures show them."""

PAPER = (AUTOREGRESSIVE, "sd", "lossy", "speccascade", "static", "diversed")
"""The methods of the DIVERSED paper, arXiv:2604.07622; the default methods of a run."""
PARAMETERS = (
    *("weight", "lenience", "rule", "alpha"),
    *("budget", "epsilon", "delta", "divergence", "target_temperature", "target_min_p"),
    *("gate", "cost", "head"),
)
"""The parameters with a column of their own in tables."""
SETTINGS = "settings"
PARAMETER_COLUMNS = (*PARAMETERS, SETTINGS)
METHOD_COLUMNS = ("method", *PARAMETER_COLUMNS)


def get_method(name: str) -> Method:
    """Return the method of that name: one of ``METHODS`` or ``FILE.py:FUNCTION``."""
    if name in METHODS:
        return METHODS[name]
    plugin = plugins.find(name)
    if plugin is None:
        raise UsageError(unknown("method", name, METHODS))
    return own_method(plugin)


def to_columns(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each of ``PARAMETER_COLUMNS``, None for a blank."""
    columns: dict[str, Any] = {name: parameters.get(name) for name in PARAMETERS}
    further = {name: value for name, value in parameters.items() if name not in columns}
    for name, value in further.items():
        plain = not isinstance(value, str) or not set(value) & set(" =")
        require(plain, f"{name} cannot be '{value}': leave out spaces and equals signs")
    texts = [f"{name}={_text(value)}" for name, value in further.items() if value is not None]
    return columns | {SETTINGS: " ".join(texts) or None}


def from_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a row of a table by name, without blanks (None or NaN)."""
    parameters = {name: row[name] for name in PARAMETER_COLUMNS if row[name] == row[name]}
    settings = parameters.pop(SETTINGS, None) or ""
    pairs = (part.partition("=")[::2] for part in settings.split())
    further = {name: _value(text) for name, text in pairs}
    return {name: value for name, value in parameters.items() if value is not None} | further


def _text(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(text: str) -> Any:
    """Return the number that is written so, or else the text itself."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) and _text(number) == text else text
