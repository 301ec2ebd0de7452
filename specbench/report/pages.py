"""Pages made of the templates beside this file.

Values are escaped by Jinja; what a script reads is JSON in which no ``<`` is left.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specbench.trace.pieces import visible
from specbench.trace.trace import LEGEND, Trace

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _environment().get_template(template).render(values)


def trace_page(trace: Trace) -> str:
    """Return a page with one trace."""
    return render("trace.html", trace=trace, legend=LEGEND)


def trace_article(trace: Trace, run: str | None = None) -> Markup:
    """Return the part of a page that shows one trace; a run is named where it is given."""
    macro: Any = _environment().get_template("macros.html").module
    return Markup(macro.article(trace, run, "h4"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    environment.globals["asset"] = _asset
    environment.filters["visible"] = visible
    return environment


def _asset(name: str) -> Markup:
    """A style sheet or script of ours, to be written into the page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
