"""Pages made from the templates beside this file, which escape all values."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specbench.trace.tokens import visible
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
    environment.globals["asset"] = _asset
    environment.filters["visible"] = visible
    return environment


def _asset(name: str) -> Markup:
    """The style sheet or script, written into the page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
