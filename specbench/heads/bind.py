"""Binding a method to a pair: the rule with its parameters and head, or the draft control."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specbench.config import LOWEST_TEMPERATURE
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.heads.files import load_head
from specbench.heads.head import Head
from specbench.heads.registry import HeadFile
from specbench.methods import Rule, get_method
from specbench.methods.control import DraftControl
from specbench.methods.laws import Law
from specbench.methods.method import BOTH_MODELS
from specbench.methods.own import try_rule


class BoundMethod(NamedTuple):
    """A method with its parameters and head, ready to decode with a pair."""

    method: str
    rule: Rule | None  # with bound parameters; None without a draft
    control: DraftControl | None = None  # None always drafts N tokens
    parameters: Mapping[str, Any] = {}  # of the law, without the head; a control has none
    head: Head | None = None
    law: Law | None = None  # None if the user's own rule has none
    joint: bool = False  # whether the rule judges the drafts of a round jointly
    both_temperature: float = 1.0  # factor on the run's temperature, for both models
    both_min_p: float = 0.0  # least min-p of both models

    def sampling(self, run: Sampling) -> Sampling:
        """Return how both models are sampled: as the run's settings say, or sharper."""
        if run.greedy or (self.both_temperature == 1 and not self.both_min_p):
            return run
        temperature = max(run.temperature * self.both_temperature, LOWEST_TEMPERATURE)
        min_p = max(self.both_min_p, run.min_p or 0)
        return run.updated(temperature=temperature, min_p=min_p or None)


def bind(
    method: str,
    parameters: Mapping[str, Any],
    pair: LoadedPair,
    heads: dict[Path, Head] | None = None,
) -> BoundMethod:
    """Bind a method's parameters; the result's ``rule`` decodes with the pair.

    Args:
        method: A name that ``get_method`` knows.
        parameters: By name, as ``Method.resolve`` returns them; ``head`` is a ``HeadFile`` or a
            ``Head``.
        pair: The models.
        heads: A cache of loaded heads across calls.

    Raises:
        UsageError: There is no such method, the head cannot be read or belongs to other models, or
            a rule of the user's own fails on random positions.
    """
    definition = get_method(method)
    rule, law = definition.rule, definition.law
    values = {name: value for name, value in parameters.items() if name != "head"}
    if definition.control is not None:
        return BoundMethod(method, rule, definition.control(**values), law=law)
    head = parameters.get("head")
    if isinstance(head, HeadFile):
        heads = {} if heads is None else heads
        if head.path not in heads:
            heads[head.path] = load_head(head.path, pair)
        head = heads[head.path]
    shared = {name: values.pop(name) for name in BOTH_MODELS if name in values}
    if rule is not None:
        rule = partial(rule, **values, **({} if head is None else {"head": head.weigh}))
        if definition.digest is not None:
            target, draft = pair.target, pair.draft
            sizes = (target.vocabulary, target.hidden_size, draft.hidden_size)
            try_rule(definition, rule, sizes, target.device, target.dtype)
    return BoundMethod(method, rule, None, values, head, law, definition.joint, **shared)
