"""Every rule emits, exactly, the distribution its closed form says."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from specbench.methods import METHODS
from specbench.methods.verdict import Positions, Rule, Verdict, couple

from . import closed_forms
from .cases import HEAD, KINDS, emitted, judge, make_case, positions, rule_of

TOLERANCE = 1e-6


class Row(NamedTuple):
    """A method, its closed form, and the settings at which the two are compared."""

    method: str
    closed_form: Callable[..., closed_forms.Law]
    settings: list[dict[str, Any]]


def cascades(rule: str, *alphas: float) -> list[dict[str, Any]]:
    return [{"rule": rule, "alpha": alpha} for alpha in alphas]


# A new method is one new row.
LAWS = [
    Row("sd", closed_forms.sd, [{}]),
    Row("lossy", closed_forms.lossy, [{"lenience": x} for x in (1e-6, 0.1, 0.5, 0.9, 1.0)]),
    Row(
        "speccascade",
        closed_forms.speccascade,
        [
            *cascades("chow", 0, 0.3, 0.5, 0.8, 1),
            *cascades("diff", -1, -0.3, 0, 0.2, 1),
            *cascades("opt", -1e6, -0.5, 0, 0.5, 2, 1e6),
            *cascades("token-v1", -1, -0.1, 0, 0.2, 1),
            *cascades("token-v2", -1, -0.1, 0, 0.2, 1),
            *cascades("token-v3", -2, -1e-12, 0, 0.5, 0.9, 1),
        ],
    ),
    Row("static", closed_forms.static, [{"weight": x} for x in (0.0, 0.1, 0.5, 0.7, 0.99, 1.0)]),
    Row("diversed", closed_forms.diversed, [{"head": HEAD}]),
]

SETTINGS = [
    pytest.param(row, parameters, id=" ".join([row.method, *map(str, parameters.values())]))
    for row in LAWS
    for parameters in row.settings
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("row", "parameters"), SETTINGS)
def test_emitted_law_is_the_closed_form(row: Row, parameters: dict[str, Any], kind: str) -> None:
    case = make_case(kind)
    forms = [row.closed_form(case.row(k), **parameters) for k in range(len(case.p))]
    at = positions(case)
    verdict = judge(rule_of(row.method), at, **parameters)
    enumerated = (at.q * verdict.accept).sum(-1)

    law = np.stack([pi for pi, _ in forms])
    acceptance = np.array([accepted for _, accepted in forms])
    assert np.abs(emitted(at.q, verdict).numpy() - law).max() < TOLERANCE
    assert np.abs(enumerated.numpy() - acceptance).max() < TOLERANCE
    torch.testing.assert_close(verdict.expected, enumerated[:, None].expand_as(verdict.expected))
    assert verdict.accept.min() >= 0 and verdict.accept.max() <= 1
    assert verdict.residual.min() >= 0
    torch.testing.assert_close(verdict.residual.sum(-1), torch.ones_like(verdict.accept))


def test_every_method_that_drafts_has_a_law() -> None:
    assert {row.method for row in LAWS} == {m.name for m in METHODS.values() if m.rule}


# Negative controls: mistakes the field has made, which the law test above must not miss.


def unprocessed_q(at: Positions, x: torch.Tensor) -> Verdict:
    """The draft is sampled from the processed q but verified against the raw one."""
    return couple(at._replace(q=at.q1), x, at.p)


def residual_p(at: Positions, x: torch.Tensor) -> Verdict:
    """A rejected token is replaced by a draw from p, not from norm((p - q)+)."""
    return couple(at, x, at.p)._replace(residual=at.p)


def undivided(at: Positions, x: torch.Tensor) -> Verdict:
    """A token is accepted with p, not with p / q."""
    return couple(at, x, at.p * at.q, gain=at.p - at.q)


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (unprocessed_q, "temperature 0.6"),
        (unprocessed_q, "temperature 2"),
        (unprocessed_q, "top-k 3"),
        (residual_p, "dense"),
        (residual_p, "zeros in both"),
        (undivided, "dense"),
    ],
)
def test_a_broken_rule_is_caught(broken: Rule, kind: str) -> None:
    at = positions(make_case(kind))
    error = (emitted(at.q, judge(broken, at)) - at.p).abs().amax(-1)
    assert (error > 1000 * TOLERANCE).double().mean() > 0.8


def test_a_greedy_draft_verified_against_a_soft_q_is_caught() -> None:
    at = positions(make_case("dense"))
    drawn_from = torch.zeros_like(at.q).scatter(-1, at.q.argmax(-1, keepdim=True), 1.0)
    verdict = judge(rule_of("sd"), at)
    error = (emitted(drawn_from, verdict) - at.p).abs().amax(-1)
    assert (error > 1000 * TOLERANCE).double().mean() > 0.8
