"""Binding a method to a pair: the rule with its parameters and head, or the draft control."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specbench.engine.loading import LoadedPair
from specbench.heads.files import load_head
from specbench.heads.head import Head
from specbench.heads.registry import HeadFile
from specbench.methods import Rule, get_method
from specbench.methods.control import DraftControl


class BoundMethod(NamedTuple):
    """A method with its parameters and head, ready to decode with a pair."""

    method: str
    rule: Rule | None  # with bound parameters; None without a draft
    control: DraftControl | None = None  # None always drafts N tokens
    parameters: Mapping[str, Any] = {}  # of the law, without the head; a control has none
    head: Head | None = None


def bind(
    method: str,
    parameters: Mapping[str, Any],
    pair: LoadedPair,
    heads: dict[Path, Head] | None = None,
) -> BoundMethod:
    """Bind a method's parameters; the head may be given as a ``HeadFile`` or a ``Head``.

    ``heads`` caches loaded heads across calls.

    Raises:
        UsageError: The head cannot be read or belongs to other models.
    """
    definition = get_method(method)
    rule = definition.load()
    values = {name: value for name, value in parameters.items() if name != "head"}
    if definition.control is not None:
        return BoundMethod(method, rule, definition.load_control()(**values))
    head = parameters.get("head")
    if isinstance(head, HeadFile):
        heads = {} if heads is None else heads
        if head.path not in heads:
            heads[head.path] = load_head(head.path, pair)
        head = heads[head.path]
    if rule is not None:
        rule = partial(rule, **values, **({} if head is None else {"head": head.weigh}))
    return BoundMethod(method, rule, None, values, head)
