"""Rules of the user's own: their parameters, and a trial that finds mistakes before a run.

A rule is a function ``(positions, x, *, parameters) -> Verdict`` in a file or in an installed
package (an entry point of the group ``specbench.methods``). Parameters with defaults need nothing
else; ``rule`` adds bounds, help, grids for sweeps and the exact law.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from specbench.errors import UsageError
from specbench.methods.method import BOTH_MODELS, Method, Parameter
from specbench.plugins import Plugin, described, place

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specbench.methods.laws import Law
    from specbench.methods.verdict import Positions, Rule

GROUP = "specbench.methods"  # of entry points
_KINDS = {"int": int, "float": float, "str": str}
_TOLERANCE = 1e-3
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Description:
    parameters: tuple[Parameter, ...]
    summary: str | None
    law: Law | None


def rule(
    *parameters: Parameter, summary: str | None = None, law: Law | None = None
) -> Callable[[F], F]:
    """Describe a rule of your own; the function itself is not changed.

    Args:
        parameters: Default, bounds, help and grid of parameters; all others have the defaults of
            the function.
        summary: One line; by default the first line of the docstring.
        law: The distribution that the rule emits, ``law(at: Next, **parameters) -> Split``, see
            ``specbench.methods.laws``. ``check`` and ``theory`` use it.
    """

    def describe(function: F) -> F:
        function.__dict__["_specbench"] = _Description(parameters, summary, law)
        return function

    return describe


def own_method(plugin: Plugin, head: Parameter) -> Method:
    """Return a rule of the user's own as a method; a parameter ``head`` is a trained head.

    Raises:
        UsageError: Its signature is not that of a rule.
    """
    known = getattr(plugin.function, "_specbench", _Description((), None, None))
    lines = (inspect.getdoc(plugin.function) or "").splitlines()
    return Method(
        plugin.name,
        known.summary or next(iter(lines), ""),
        plugin.source,
        plugin.function,
        tuple(_parameters(plugin, known.parameters, head)),
        law=known.law,
        digest=plugin.digest,
    )


def _parameters(
    plugin: Plugin, known: tuple[Parameter, ...], head: Parameter
) -> Iterator[Parameter]:
    signature = inspect.signature(plugin.function)
    plain = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    first = [p for p in plain[:2] if p.kind != p.KEYWORD_ONLY]
    where = place(plugin.name, plugin.function)
    if len(first) < 2 or len(plain) < len(signature.parameters):
        raise UsageError(
            f"{where} must take the positions, the drafted tokens and named parameters, such as "
            f"(at, x, *, keep=2), not {signature}"
        )
    names = [p.name for p in plain[2:]]
    for parameter in known:
        if parameter.name not in names:
            raise UsageError(
                f"{where} has no argument `{parameter.name}`, which @rule describes: add it"
            )
    for name in BOTH_MODELS:
        if name in names:
            raise UsageError(f"{where}: `{name}` is a parameter of `cooled`: rename the argument")
    for argument in plain[2:]:
        own = [p for p in known if p.name == argument.name]
        yield from own or [_parameter(plugin, argument, head)]


def _parameter(plugin: Plugin, argument: inspect.Parameter, head: Parameter) -> Parameter:
    if argument.name == head.name:
        return head
    annotated = getattr(argument.annotation, "__name__", argument.annotation)
    kind = _KINDS.get(annotated, type(argument.default))
    if argument.default is argument.empty or kind not in _KINDS.values():
        raise UsageError(
            f"{place(plugin.name, plugin.function)} takes `{argument.name}` without a default that "
            f"is a number or a text: write {argument.name}=0.5, or describe it with @rule"
        )
    plain = Parameter(argument.name, None, f"of {plugin.name}", kind)
    return replace(plain, default=plain.check(argument.default))


def try_rule(
    method: Method,
    rule: Rule,
    sizes: tuple[int, int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Call an own rule once on random positions and check what it returns.

    Args:
        method: The rule's method.
        rule: The rule with bound parameters.
        sizes: Vocabulary, and hidden sizes of target and draft.
        device: Of the models.
        dtype: Of the models' hidden states.

    Raises:
        UsageError: It raises, or does not return a valid verdict.
    """
    import torch

    from specbench.methods.verdict import Verdict

    assert callable(method.rule)
    vocabulary, where = sizes[0], place(method.name, method.rule)
    for at in (_positions(sizes, device, dtype, greedy) for greedy in (False, True)):
        x = torch.multinomial(at.q, 1, generator=_seeded(device))[:, 0]
        try:
            with torch.inference_mode():
                found = rule(at, x)
        except Exception as error:
            reason = described(error, inspect.unwrap(method.rule).__code__.co_filename)
            raise UsageError(
                f"{method.name} failed on random positions ({reason}): correct it"
            ) from error
        if not isinstance(found, Verdict):
            kind = type(found).__name__
            raise UsageError(f"{where} must return a Verdict, not {kind}: correct it")
        k = len(x)
        shapes = {"accept": (k,), "residual": (k, vocabulary), "expected": (k,)}
        shapes |= {} if found.weight is None else {"weight": (k,)}
        for name, shape in shapes.items():
            value = getattr(found, name)
            if (wrong := _wrong(name, value, shape, found.accept)) is not None:
                raise UsageError(
                    f"{where}: `{name}` {wrong}, on {k} random positions with a vocabulary "
                    f"of {vocabulary}{' at temperature 0' * at.greedy}: correct it"
                )


def _wrong(name: str, value: Any, shape: tuple[int, ...], accept: Tensor) -> str | None:
    """Describe what is wrong with a field of a verdict, or return None."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"must be a tensor, not {type(value).__name__}"
    if tuple(value.shape) != shape:
        return f"must have the shape {list(shape)}, not {list(value.shape)}"
    # The residual of a token that is always accepted is never used.
    used = value[accept < 1] if name == "residual" else value
    if used.isnan().any():
        return "contains NaN"
    if ((used < 0) | (used > 1 + _TOLERANCE)).any():
        return f"must be between 0 and 1, not {float(used.min()):g} to {float(used.max()):g}"
    if name == "residual" and ((total := used.sum(-1)) - 1).abs().gt(_TOLERANCE).any():
        return f"must sum to 1 in every row, not to {float(total.min()):g}"
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
        p, q = (torch.zeros_like(r).scatter_(-1, r.argmax(-1, True), 1) for r in (p1, q1))
    else:
        p[2, vocabulary // 2 :] = 0
        q[2, : vocabulary // 2] = 0
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    h_p, h_q = normal(4, hidden_p).to(dtype), normal(4, hidden_q).to(dtype)
    return Positions(p, q, p1, q1, h_p, h_q, greedy, n=4)


def _seeded(device: torch.device) -> torch.Generator:
    import torch

    return torch.Generator(device).manual_seed(0)
