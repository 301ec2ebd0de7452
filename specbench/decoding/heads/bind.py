"""Binding a method to a pair: the rule with its parameters and head, or the draft control."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.config import LOWEST_TEMPERATURE
from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.heads.head import load_head
from specbench.decoding.heads.head import Head
from specbench.decoding.heads.registry import HeadFile
from specbench.decoding.heads.trial import try_rule
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.methods import Positions, Rule, Verdict, get_method, laws, maximal_coupling
from specbench.methods.control import DraftControl
from specbench.methods.laws import Law, Next, Split
from specbench.methods.method import BOTH_MODELS, INSIDE


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
    marks: tuple[str, str] | None = None  # between which the rule applies, and `sd` outside

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
        (value,) = values.values()
        control = Online(get_policy(f"{definition.control}:{value}"))
        return BoundMethod(method, rule, control, law=law)
    head = parameters.get("head")
    if isinstance(head, HeadFile):
        heads = {} if heads is None else heads
        if head.path not in heads:
            heads[head.path] = load_head(head.path, pair)
        head = heads[head.path]
    shared = {name: values.pop(name) for name in BOTH_MODELS if name in values}
    begin, _, end = values.pop(INSIDE, "").partition(",")
    marks = (begin, end) if end else None
    if rule is not None:
        rule = partial(rule, **values, **({} if head is None else {"head": head.weigh}))
        if definition.digest is not None:
            target, draft = pair.target, pair.draft
            sizes = (target.vocabulary, target.hidden_size, draft.hidden_size)
            try_rule(definition, rule, sizes, target.device, target.dtype)
    if marks is not None and rule is not None:
        rule, law = partial(_only_inside, rule), law and partial(_law_only_inside, law)
    return BoundMethod(
        *(method, rule, None, values, head, law, definition.joint), **shared, marks=marks
    )


def _only_inside(rule: Rule, at: Positions, x: Tensor) -> Verdict:
    """Judge by the rule where a text is between its marks, and strictly elsewhere."""
    assert at.inside is not None
    relaxed, strict = rule(at, x), maximal_coupling(at, x, at.p)
    if relaxed.weight is not None:
        strict = strict._replace(weight=torch.ones_like(relaxed.weight))
    return Verdict(*map(partial(_where, at.inside), relaxed, strict))


def _law_only_inside(law: Law, at: Next, **parameters: Any) -> Split:
    assert at.inside is not None
    return Split(*map(partial(_where, at.inside), law(at, **parameters), laws.sd(at)))


def _where(inside: Tensor, relaxed: Tensor | None, strict: Tensor | None) -> Any:
    """Choose row by row; weights are None for rules without them."""
    if relaxed is None or strict is None:
        return None
    return torch.where(inside.view(-1, *[1] * (relaxed.dim() - 1)), relaxed, strict)
