"""Binding a method to a pair: the rule with its parameters and head, or the draft control.

A rule of the user's own is tried once, which finds mistakes before a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.config import LOWEST_TEMPERATURE
from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.heads.head import Head, load_head
from specbench.decoding.heads.registry import HeadFile
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.methods import Positions, Rule, Verdict, get_method
from specbench.methods.control import DraftControl
from specbench.methods.laws import Law
from specbench.methods.method import BOTH_MODELS, COMPUTED, Method, Rates
from specbench.methods.verdict import fault_of_form
from specbench.plugins import code_of, described, place, user_code

log = logging.getLogger(__name__)
_TOLERANCE = 1e-3


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

    The parameters are as ``Method.resolve`` returns them; ``head`` is a ``HeadFile`` or a ``Head``.
    ``heads`` is a cache of loaded heads across calls.
    """
    definition = get_method(method)
    rule, law = definition.rule, definition.law
    if COMPUTED in parameters:  # the other parameters are those of the method that is computed
        names = {parameter.name for parameter in definition.parameters}
        further = {n: v for n, v in parameters.items() if n not in {*names, COMPUTED}}
        computed = bind(parameters[COMPUTED], further, pair, heads)
        bound = bind(method, {n: v for n, v in parameters.items() if n in names}, pair)
        assert bound.rule is not None
        rule = partial(bound.rule, of=computed.rule)
        return computed._replace(method=method, rule=rule, law=None)
    values: dict[str, Any] = {
        name: value.by_position if isinstance(value, Rates) else value
        for name, value in parameters.items()
        if name != "head"
    }
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
    if rule is not None:
        rule = partial(rule, **values, **({} if head is None else {"head": head.weigh}))
        if definition.digest is not None:
            target, draft = pair.target, pair.draft
            sizes = (target.vocabulary, target.hidden_size, draft.hidden_size)
            try_rule(definition, rule, sizes, target.device, target.dtype)
    options = {"head": head, "law": law, "joint": definition.joint, **shared}
    return BoundMethod(method, rule, parameters=values, **options)


def try_rule(
    method: Method,
    bound: Rule,
    sizes: tuple[int, int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Call an own rule, with bound parameters, once on random positions and check what it returns.

    ``sizes`` are those of the vocabulary, and of the hidden states of target and draft.
    """
    assert callable(method.rule)
    vocabulary, location = sizes[0], place(method.name, method.rule)
    values = getattr(bound, "keywords", {}).items()
    label = " ".join((method.name, *(f"{n}={v}" for n, v in values if not callable(v))))
    for positions in (_positions(sizes, device, dtype, greedy) for greedy in (False, True)):
        generator = torch.Generator(device).manual_seed(0)
        x = torch.multinomial(positions.q, 1, generator=generator)[:, 0]
        inputs = {**positions._asdict(), "x": x}
        before = {name: v.clone() for name, v in inputs.items() if isinstance(v, torch.Tensor)}
        with user_code(method.rule, f"{label} on random positions"), torch.inference_mode():
            verdict = bound(positions, x)
        changed = (f"writes to `{n}`" for n, v in before.items() if not torch.equal(v, inputs[n]))
        fault = next(changed, None) or fault_of_form(verdict, len(x), vocabulary)
        if (fault := fault or _fault_of_numbers(verdict)) is not None:
            raise UsageError(
                f"{location}: {fault}, on {len(x)} random positions with a vocabulary of "
                f"{vocabulary}{' at temperature 0' * positions.greedy}: correct it"
            )
        _note_waiting(location, method.rule, bound, positions, x)


def _note_waiting(
    location: str, function: Callable[..., Any], bound: Rule, at: Positions, x: Tensor
) -> None:
    """Warn of a rule that needs the value of a tensor, which a GPU must be waited for.

    On the device ``meta`` tensors have no values, so such a rule raises an error there.
    """
    values = at._asdict().items()
    tensors: Any = {n: v.to("meta") for n, v in values if isinstance(v, torch.Tensor)}
    head = {"head": lambda at: at.p[:, 0]} if "head" in getattr(bound, "keywords", {}) else {}
    try:
        with torch.inference_mode():
            bound(at._replace(**tensors), x.to("meta"), **head)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _warn_once(
            f"{location} needs the value of a tensor "
            f"({described(error, code_of(function).co_filename)}): a GPU is waited for in every "
            "round, and engines cannot compile or capture it; use torch.where instead of a branch"
        )


_warn_once = cache(log.warning)  # a rule is tried for every cell


def _fault_of_numbers(verdict: Verdict) -> str | None:
    """Describe a number of a verdict that is no probability, or return None."""
    for name, value in verdict._asdict().items():
        if value is None:
            continue
        # The residual of a token that is always accepted is never used.
        used = value[verdict.accept < 1] if name == "residual" else value
        if used.isnan().any():
            return f"`{name}` contains NaN"
        if ((used < 0) | (used > 1 + _TOLERANCE)).any():
            least, greatest = float(used.min()), float(used.max())
            return f"`{name}` must be between 0 and 1, not {least:g} to {greatest:g}"
        if name == "residual" and ((total := used.sum(-1)) - 1).abs().gt(_TOLERANCE).any():
            return f"`{name}` must sum to 1 in every row, not to {float(total.min()):g}"
    return None


def _positions(
    sizes: tuple[int, int, int], device: torch.device, dtype: torch.dtype, greedy: bool
) -> Positions:
    """Return random positions: any p and q, the same twice, and disjoint ones."""
    vocabulary, hidden_p, hidden_q = sizes
    generator = torch.Generator(device).manual_seed(0)
    normal = partial(torch.randn, generator=generator, device=device)
    p1, q1 = (2 * normal(4, vocabulary)).softmax(-1), (2 * normal(4, vocabulary)).softmax(-1)
    q1[1] = p1[1]
    p, q = p1.clone(), q1.clone()
    if greedy:
        p = torch.zeros_like(p1).scatter_(-1, p1.argmax(-1, True), 1)
        q = torch.zeros_like(q1).scatter_(-1, q1.argmax(-1, True), 1)
    else:
        p[2, vocabulary // 2 :] = 0
        q[2, : vocabulary // 2] = 0
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    h_p, h_q = normal(4, hidden_p).to(dtype), normal(4, hidden_q).to(dtype)
    return Positions(p, q, p1, q1, h_p, h_q, greedy, n=4, top=normal(4))
