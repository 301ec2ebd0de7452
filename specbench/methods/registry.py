"""The methods by name. A bundled rule is declared where it is defined, by the decorator ``rule``.

This module does not import torch, which the rules' modules import at their first use.
"""

from __future__ import annotations

from specbench import plugins
from specbench.errors import UsageError
from specbench.methods.method import Method
from specbench.methods.own import own_method
from specbench.errors import unknown

ORDER = (
    *("strict", "speccascade", "ensembles", "exact", "mentored"),
    *("typical", "sharpening", "serving", "gated"),
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


def get_method(name: str) -> Method:
    """Return the method of that name: one of ``METHODS`` or ``FILE.py:FUNCTION``.

    Raises:
        UsageError: There is no such method; the message suggests the nearest name. Or a rule of
            the user's own cannot be loaded.
    """
    if name in METHODS:
        return METHODS[name]
    plugin = plugins.find(name)
    if plugin is None:
        raise UsageError(unknown("method", name, METHODS))
    return own_method(plugin)
