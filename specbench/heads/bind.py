"""Binding a method to a pair: its rule with parameters and head, and its draft control."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specbench.engine.loading import LoadedPair
from specbench.heads.files import load_head
from specbench.heads.head import Head
from specbench.heads.registry import HeadFile
from specbench.methods import Rule, get_method
from specbench.methods.control import DraftControl


def bind(
    method: str,
    parameters: Mapping[str, Any],
    pair: LoadedPair,
    heads: dict[Path, Head] | None = None,
) -> tuple[Rule | None, DraftControl | None]:
    """Return a method's rule with its parameters bound, and the control where it has one.

    A head may be its file, which is loaded, or itself; calls may share ``heads``. The rule is None
    where nothing is drafted; the control is None where N is drafted always.

    Raises:
        UsageError: The head cannot be read or belongs to other models.
    """
    known = get_method(method)
    heads = {} if heads is None else heads
    values = {name: _weigher(value, pair, heads) for name, value in parameters.items()}
    rule = known.load()
    if known.control is not None:
        return rule, known.load_control()(**values)
    return (rule and partial(rule, **values)), None


def _weigher(value: Any, pair: LoadedPair, heads: dict[Path, Head]) -> Any:
    if isinstance(value, HeadFile):
        if value.path not in heads:
            heads[value.path] = load_head(value.path, pair)
        return heads[value.path].weigh
    return value.weigh if isinstance(value, Head) else value
