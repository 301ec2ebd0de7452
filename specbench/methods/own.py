"""Rules of the user's own: their parameters, and a trial that finds mistakes before a run.

A rule is a function ``(positions, x, *, parameters) -> Verdict`` in a file or in an installed
package (an entry point of the group ``specbench.methods``). Parameters with defaults need nothing
else; the decorator ``rule`` adds bounds, help, grids for sweeps and the exact law.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from specbench.errors import UsageError
from specbench.methods.method import BOTH_MODELS, HEAD, Method, Parameter, rule
from specbench.plugins import Plugin, code_of, declared, described, place, user_code

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specbench.methods.verdict import Positions, Rule, Verdict

log = logging.getLogger(__name__)

GROUP = "specbench.methods"  # of entry points
_KINDS = (int, float, bool, str)
_TOLERANCE = 1e-3


def own_method(plugin: Plugin) -> Method:
    """Return a rule of the user's own as a method; a parameter ``head`` is a trained head.

    Raises:
        UsageError: Its signature is not that of a rule.
    """
    method = declared(plugin.function, Method) or declared(rule()(plugin.function), Method)
    assert method is not None
    return replace(
        method,
        name=plugin.name,
        source=plugin.source,
        rule=plugin.function,
        parameters=tuple(_parameters(plugin, method.parameters)),
        digest=plugin.digest,
    )


def _parameters(plugin: Plugin, described: tuple[Parameter, ...]) -> Iterator[Parameter]:
    signature = inspect.signature(plugin.function)
    plain = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    first = [p for p in plain[:2] if p.kind != p.KEYWORD_ONLY]
    location = place(plugin.name, plugin.function)
    if len(first) < 2 or len(plain) < len(signature.parameters):
        raise UsageError(
            f"{location} must take the positions, the drafted tokens and named parameters, such as "
            f"(at, x, *, keep=2), not {signature}"
        )
    names = [p.name for p in plain[2:]]
    for parameter in described:
        if parameter.name not in names:
            raise UsageError(
                f"{location} has no argument `{parameter.name}`, which @rule describes: add it"
            )
    for name in BOTH_MODELS:
        if name in names:
            raise UsageError(
                f"{location}: `{name}` is a parameter of `cooled`: rename the argument"
            )
    by_name = {parameter.name: parameter for parameter in described}
    for argument in plain[2:]:
        yield _parameter(plugin, argument, by_name.get(argument.name))


def _parameter(
    plugin: Plugin, argument: inspect.Parameter, described: Parameter | None
) -> Parameter:
    """Return a parameter whose kind is that of its annotation, if it has one.

    Raises:
        UsageError: It has no kind, or @rule or a value contradicts the annotation.
    """
    name, location = argument.name, place(plugin.name, plugin.function)
    if described is None and name == HEAD.name:
        return HEAD
    hint = _evaluated(argument.annotation, plugin.function)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    kind: Any = type(choices[0]) if choices else hint
    if hint is argument.empty:
        kind = described.kind if described else type(argument.default)
    if kind not in _KINDS or (described is None and argument.default is argument.empty):
        raise UsageError(
            f"{location} takes `{name}` without a default that is a number or a text: write "
            f"{name}=0.5, or describe it with @rule"
        )
    plain = described or Parameter(name, argument.default, f"of {plugin.name}", kind)
    parameter = replace(plain, kind=kind, choices=choices or plain.choices)
    # A description that states no kind has float.
    if plain.kind not in (kind, float) or (choices and plain.choices not in ((), choices)):
        raise UsageError(
            f"{location}: @rule describes `{name}` as {plain.permitted}, but its annotation means "
            f"{parameter.permitted}: change one of them"
        )
    try:
        for value in (parameter.default, *parameter.grid):
            if parameter.check(value) != value or isinstance(value, bool) != (kind is bool):
                raise UsageError(f"{name} cannot be {value!r}: give {parameter.permitted}")
    except UsageError as error:
        raise UsageError(f"{location}: {error}") from error
    return replace(parameter, default=parameter.check(parameter.default))


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return what an annotation means if it is a text, as with postponed evaluation."""
    if isinstance(annotation, str):
        with suppress(Exception):  # a name that only a type checker knows, for example
            return eval(annotation, inspect.unwrap(function).__globals__)
    return annotation


def try_rule(
    method: Method,
    bound: Rule,
    sizes: tuple[int, int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Call an own rule once on random positions and check what it returns.

    Args:
        method: The rule's method.
        bound: The rule with bound parameters.
        sizes: Vocabulary, and hidden sizes of target and draft.
        device: Of the models.
        dtype: Of the models' hidden states.

    Raises:
        UsageError: It raises, or does not return a valid verdict.
    """
    import torch

    from specbench.methods.verdict import fault_of_form

    assert callable(method.rule)
    vocabulary, location = sizes[0], place(method.name, method.rule)
    values = getattr(bound, "keywords", {}).items()
    label = " ".join((method.name, *(f"{n}={v}" for n, v in values if not callable(v))))
    for positions in (_positions(sizes, device, dtype, greedy) for greedy in (False, True)):
        x = torch.multinomial(positions.q, 1, generator=_seeded(device))[:, 0]
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
    import torch

    tensors = {name: getattr(at, name).to("meta") for name in at._fields[:6]}
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


@cache
def _warn_once(text: str) -> None:  # a rule is tried for every cell
    log.warning(text)


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
    import torch

    from specbench.methods.verdict import Positions

    vocabulary, hidden_p, hidden_q = sizes
    random = _seeded(device)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=device)

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
    return Positions(p, q, p1, q1, h_p, h_q, greedy, n=4)


def _seeded(device: torch.device) -> torch.Generator:
    import torch

    return torch.Generator(device).manual_seed(0)
