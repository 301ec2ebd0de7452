"""Templates of task files: ``{column}`` stands for a row's value, other braces for themselves.

``{translation.de}`` is an entry of a nested column, and ``{{word}}`` writes ``{word}``. A list in a
text becomes lines.
"""

from __future__ import annotations

import json
import re

from specbench.errors import UsageError
from specbench.tasks.rows import Row, require_utf8, value_of
from specbench.words import listed

_NAME = r"([^\W\d]\w*(?:\.\w+)*)"
_PLACE = re.compile(r"\{\{" + _NAME + r"\}\}|\{" + _NAME + r"\}")


def columns_of(template: str) -> list[str]:
    """Return the columns that a template names, each once."""
    return list(dict.fromkeys(found[2] for found in _PLACE.finditer(template) if found[2]))


def fill(template: str, row: Row) -> str:
    """Put a row's values in their places.

    Raises:
        UsageError: A column is missing, empty (null), or no text.
    """

    def value(place: re.Match[str]) -> str:
        return f"{{{place[1]}}}" if place[1] else "\n".join(_texts(place[2], row))

    return _PLACE.sub(value, template)


def expand(template: str, row: Row) -> list[str]:
    """Fill a template; one that is nothing but a list's column gives the list's entries.

    Raises:
        UsageError: As ``fill``, or a list's column holds another text that looks like a list.
    """
    place = _PLACE.fullmatch(template)
    if place is None or not place[2]:
        return [fill(template, row)]
    texts = _texts(place[2], row)
    if texts and texts[0].lstrip().startswith("["):
        # As a Python statement, a list of tests does nothing and so would always pass.
        raise UsageError(f"{row.where}: `{place[2]}` must be a list of texts; write it as JSON")
    return texts


def _texts(name: str, row: Row) -> list[str]:
    try:
        value = value_of(row.columns, name)
    except KeyError as error:
        raise UsageError(
            f"{row.where}: no `{name}` column; columns found: {listed(row.columns) or 'none'}"
        ) from error
    entries = _list_in(value) if isinstance(value, str) else value
    return [
        _text(entry, name, row) for entry in (entries if isinstance(entries, list) else [value])
    ]


def _list_in(text: str) -> object:
    """Return the list of texts that a CSV file writes as JSON, else the text."""
    try:
        value = json.loads(text) if text.startswith('["') else text
    except (ValueError, RecursionError):
        return text
    whole = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return value if whole else text


def _text(value: object, name: str, row: Row) -> str:
    if value is None:
        raise UsageError(f"{row.where}: `{name}` is empty; fill it in or remove the row")
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise UsageError(f"{row.where}: `{name}` must be text, a number or a list, not {kind}")
    # MBPP's code has the line ends of another system.
    return require_utf8(str(value).replace("\r\n", "\n"), name, row.where)
