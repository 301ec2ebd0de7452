"""Every rule emits, exactly, the distribution its closed form says."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from specbench.methods import METHODS
from specbench.methods.verdict import Positions, Rule, Verdict, couple, normalise

from . import closed_forms
from .cases import HEAD, emitted, judge, kinds_at, make_case, positions, rule_of, stacked

TOLERANCE = 1e-6


class Row(NamedTuple):
    """A method, its closed form, and the settings at which the two are compared."""

    method: str
    closed_form: Callable[..., closed_forms.Law]
    settings: list[dict[str, Any]]


def cascades(rule: str, *alphas: float) -> list[dict[str, Any]]:
    return [{"rule": rule, "alpha": alpha} for alpha in alphas]


def gates(weight: float, *gates: float) -> list[dict[str, Any]]:
    return [{"gate": gate, "weight": weight} for gate in gates or (0.0, 0.05, 0.3, 0.8, 1.0, 1.2)]


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
    Row("block", closed_forms.block, [{}]),
    Row("mentored", closed_forms.mentored, [{"budget": x} for x in (0.0, 1e-3, 0.05, 0.5, 20.0)]),
    Row(
        "typical",
        closed_forms.typical,
        [
            {"epsilon": epsilon, "delta": delta}
            for epsilon, delta in ((0.09, 0.3), (0.3, 0.9), (0.9, 0.99), (0.0, 0.3), (0.3, 0.0))
        ],
    ),
    Row("cactus", closed_forms.cactus, [{"divergence": x} for x in (0.0, 1e-3, 0.1, 1.0, 9.0)]),
    Row(
        "sharpened",
        closed_forms.sharpened,
        [
            {"target_temperature": t, "target_min_p": m}
            for t, m in ((1.0, 0.0), (0.5, 0.0), (0.05, 0.0), (1.0, 0.1), (0.7, 0.3), (1.0, 1.0))
        ],
    ),
    Row("gated", closed_forms.gated, [*gates(0.5), *gates(0.9, 0.0, 0.3)]),
    Row("gated-diversed", closed_forms.gated_diversed, [{"gate": 0.2, "head": HEAD}]),
]

SETTINGS = [
    pytest.param(row, parameters, id=" ".join([row.method, *map(str, parameters.values())]))
    for row in LAWS
    for parameters in row.settings
]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("row", "parameters"), SETTINGS)
def test_emitted_law_is_the_closed_form(row: Row, parameters: dict[str, Any], greedy: bool) -> None:
    case = stacked(greedy)
    forms = [row.closed_form(case.row(k), **parameters) for k in range(len(case.p))]
    at = positions(case)
    verdict = judge(rule_of(row.method), at, **parameters)
    enumerated = (at.q * verdict.accept).sum(-1)

    law = np.stack([pi for pi, _ in forms])
    acceptance = np.array([accepted for _, accepted in forms])
    error = np.abs(emitted(at.q, verdict).numpy() - law).max(-1)
    assert not kinds_at(~(error < TOLERANCE), greedy)
    assert not kinds_at(~(np.abs(enumerated.numpy() - acceptance) < TOLERANCE), greedy)
    torch.testing.assert_close(verdict.expected, enumerated[:, None].expand_as(verdict.expected))
    assert verdict.accept.min() >= 0 and verdict.accept.max() <= 1
    assert verdict.residual.min() >= 0
    torch.testing.assert_close(verdict.residual.sum(-1), torch.ones_like(verdict.accept))


def test_every_method_that_drafts_has_a_law() -> None:
    assert {row.method for row in LAWS} == {
        m.name for m in METHODS.values() if m.rule and not m.control
    }


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


def unraised(at: Positions, x: torch.Tensor) -> Verdict:
    """Mentored decoding that makes room for more of q but not by taking from the other tokens."""
    return rule_of("mentored")(at, x, budget=0.1)._replace(residual=replaced(at))


def unbounded(at: Positions, x: torch.Tensor) -> Verdict:
    """As if the budget held for the divergence the other way round, KL(pi || p)."""
    return rule_of("mentored")(at._replace(p=at.q, q=at.p), x, budget=0.1)


def typical_draw(at: Positions, x: torch.Tensor) -> Verdict:
    """A rejected token is replaced by a draw from p, not by its argmax."""
    return rule_of("typical")(at, x, epsilon=0.3, delta=0.9)._replace(residual=at.p)


def sharpened_bonus(at: Positions, x: torch.Tensor) -> Verdict:
    """``sharpened`` that replaces a rejected token by one of the target as it is."""
    found = rule_of("sharpened")(at, x, target_temperature=0.5, target_min_p=0.0)
    return found._replace(residual=replaced(at))


def cactus_sd(at: Positions, x: torch.Tensor) -> Verdict:
    """The drafted token's probability is raised, and the others' not lowered."""
    return rule_of("cactus")(at, x, divergence=0.1)._replace(residual=replaced(at))


def gated_static(at: Positions, x: torch.Tensor) -> Verdict:
    """The gate is left open."""
    return rule_of("static")(at, x, weight=0.5)


def gated_topped_up(at: Positions, x: torch.Tensor) -> Verdict:
    """The residual is taken from a v that does not sum to 1."""
    kept = rule_of("gated")(at, x, gate=0.3, weight=0.5)
    head = at.p1 >= 0.3 * at.p1.amax(-1, keepdim=True)
    v = torch.where(head, (at.p + at.q) / 2, at.p)
    return kept._replace(residual=normalise((v - at.q).clamp_min(0), at.p))


def replaced(at: Positions) -> torch.Tensor:
    return normalise((at.p - at.q).clamp_min(0), at.p)


@pytest.mark.parametrize(
    ("broken", "method", "parameters"),
    [
        (unraised, "mentored", {"budget": 0.1}),
        (unbounded, "mentored", {"budget": 0.1}),
        (typical_draw, "typical", {"epsilon": 0.3, "delta": 0.9}),
        (cactus_sd, "cactus", {"divergence": 0.1}),
        (sharpened_bonus, "sharpened", {"target_temperature": 0.5, "target_min_p": 0.0}),
        (gated_static, "gated", {"gate": 0.3, "weight": 0.5}),
        (gated_topped_up, "gated", {"gate": 0.3, "weight": 0.5}),
    ],
)
def test_another_rule_s_law_is_not_the_closed_form(
    broken: Rule, method: str, parameters: dict[str, Any]
) -> None:
    case = make_case("dense")
    form = next(row.closed_form for row in LAWS if row.method == method)
    law = np.stack([form(case.row(k), **parameters)[0] for k in range(len(case.p))])
    at = positions(case)
    error = np.abs(emitted(at.q, judge(broken, at)).numpy() - law).max(-1)
    assert (error > 1000 * TOLERANCE).mean() > 0.5


def test_a_greedy_draft_verified_against_a_soft_q_is_caught() -> None:
    at = positions(make_case("dense"))
    drawn_from = torch.zeros_like(at.q).scatter(-1, at.q.argmax(-1, keepdim=True), 1.0)
    verdict = judge(rule_of("sd"), at)
    error = (emitted(drawn_from, verdict) - at.p).abs().amax(-1)
    assert (error > 1000 * TOLERANCE).double().mean() > 0.8
