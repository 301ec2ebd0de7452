"""Tables as HTML, and the templates of pages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specbench.analysis.tables.table import Table, notes_once

TEMPLATES = Path(__file__).parents[1] / "report" / "templates"


@cache
def environment() -> Environment:
    """Return the templates, which escape all values."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["notes_once"] = notes_once
    templates.globals["asset"] = lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8"))
    return templates


def to_html(*tables: Table) -> str:
    """Render tables as HTML; a note shared by several of them appears once, below the last."""
    macros: Any = environment().get_template("tables.html").module
    return str(macros.regions(tables, "box"))
