"""The methods by name. A bundled rule is declared where it is defined, by the decorator ``rule``.

This module does not import torch, which the rules' modules import at their first use.
"""

from __future__ import annotations

from importlib import import_module

from specbench import plugins
from specbench.errors import UsageError
from specbench.methods.method import Method, declared
from specbench.methods.own import GROUP, own_method
from specbench.words import unknown

MODULES = (
    *("strict", "speccascade", "ensembles", "control", "block", "mentored"),
    *("typical", "controls", "serving", "gated"),
)
"""The modules of this package that define rules, in the order of tables and figures."""

AUTOREGRESSIVE = "autoregressive"  # no draft; the baseline of speed-ups
#: Methods that only sharpen, as controls for rules that do so implicitly.
CONTROLS = ("sharpened", "cooled")


def _bundled() -> dict[str, Method]:
    summary = "the target alone, one token a step"
    alone = Method(AUTOREGRESSIVE, summary, "-", rule=None, exact=True)
    contents = [vars(import_module(f"{__package__}.{module}")).values() for module in MODULES]
    methods = [alone, *filter(None, (declared(value) for values in contents for value in values))]
    return {method.name: method for method in methods}


METHODS = _bundled()
"""Every method by name, in the order tables and figures show them."""

PAPER = (AUTOREGRESSIVE, "sd", "lossy", "speccascade", "static", "diversed")
"""The methods of the DIVERSED paper, arXiv:2604.07622; the default methods of a run."""


def get_method(name: str) -> Method:
    """Return the method of that name: one of ``METHODS``, ``FILE.py:FUNCTION``, or installed.

    Raises:
        UsageError: There is no such method; the message suggests the nearest name. Or a rule of
            the user's own cannot be loaded.
    """
    if name in METHODS:
        return METHODS[name]
    plugin = plugins.find(name, GROUP)
    if plugin is None:
        raise UsageError(unknown("method", name, [*METHODS, *installed_methods()]))
    return own_method(plugin)


def installed_methods() -> list[str]:
    """Return the names of the methods of installed packages."""
    return [name for name in plugins.installed(GROUP) if name not in METHODS]
