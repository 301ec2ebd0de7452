"""Pages rendered from the templates in this folder; all values are escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specbench.analysis.trace.tokens import visible
from specbench.analysis.trace.trace import LEGEND, Trace
from specbench.errors import printable

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Render a template; no text of a run may change the direction of the page's."""
    return printable(_environment().get_template(template).render(values))


def trace_page(trace: Trace) -> str:
    """Render a page with one trace."""
    return render("trace.html", trace=trace, legend=LEGEND)


def trace_article(trace: Trace, run: str | None = None) -> Markup:
    """Render one trace as part of a page, with the name of its run if given."""
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
    """Return a style sheet or script for embedding."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
