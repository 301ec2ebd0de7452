"""Special cases in which methods coincide, and the front between rejection and bias."""

from typing import Any

import pytest
import torch

from specbench.methods.verdict import Positions, Verdict

from ..told import listed
from .cases import emitted, judge, make_case, rule_of, stacked


def tv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).abs().sum(-1) / 2


def assert_same(at: Positions, one: Verdict, other: Verdict) -> None:
    torch.testing.assert_close(one.accept, other.accept)
    torch.testing.assert_close(one.expected, other.expected)
    torch.testing.assert_close(emitted(at.q, one), emitted(at.q, other))


def tied() -> Positions:
    """Temperature 0 with ties for the argmax of p1 and of q1; the models pick different tokens."""
    p1 = torch.tensor([[0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [0.1, 0.45, 0.45]])
    q1 = torch.tensor([[0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [0.3, 0.35, 0.35]])
    p = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    q = torch.tensor([[0, 1.0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    return Positions(p, q, p1, q1, p1, q1, greedy=True)


STACKS = {"sampled": stacked(greedy=False), "greedy": stacked(greedy=True), "tied": tied()}


def ones(at: Positions) -> torch.Tensor:
    return at.p.new_ones(len(at.p))


STRICT = [("diversed", {"head": ones}), *listed("methods/strict.txt")]
OF_P_ALONE: list[tuple[str, dict[str, Any]]] = [
    *(("mentored", {"budget": 0.5}), ("typical", {"epsilon": 0.09, "delta": 0.3})),
    *(("typical", {"epsilon": 0.0, "delta": 0.0}), ("cactus", {"divergence": 1.0})),
]
LENIENT = listed("methods/lenient.txt")


@pytest.mark.parametrize("stack", STACKS)
def test_the_strict_end_is_sd_the_lenient_end_accepts_all_and_an_open_gate_is_static(stack):
    """At temperature 0, this holds for any rule that reads only the processed p."""
    at = STACKS[stack]
    strict = judge(rule_of("sd"), at)
    for method, parameters in [*STRICT, *(OF_P_ALONE if at.greedy else [])]:
        assert_same(at, judge(rule_of(method), at, **parameters), strict)
    for method, parameters in LENIENT:
        verdict = judge(rule_of(method), at, **parameters)
        assert (verdict.accept[at.q > 0] == 1).all()
        torch.testing.assert_close(emitted(at.q, verdict), at.q)
    for weight in (0.0, 0.3, 1.0):
        fixed = judge(rule_of("static"), at, weight=weight)
        learned = judge(
            rule_of("diversed"), at, head=lambda at, w=weight: at.p.new_full((len(at.p),), w)
        )
        for other in (learned, judge(rule_of("gated"), at, gate=0.0, weight=weight)):
            assert_same(at, other, fixed)
            torch.testing.assert_close(other.weight, torch.full_like(fixed.accept, weight))
        torch.testing.assert_close(fixed.weight, torch.full_like(fixed.accept, weight))


def front_gap(at: Positions, verdict: Verdict) -> torch.Tensor:
    """Rejection + bias - TV(p, q) [K]: zero on the Pareto front, positive above it."""
    return 1 - verdict.expected[:, 0] + tv(emitted(at.q, verdict), at.p) - tv(at.p, at.q)


ON_FRONT: list[tuple[str, dict[str, Any]]] = [
    *(("static", {"weight": w}) for w in (0.0, 0.3, 0.8, 1.0)),
    *(("lossy", {"lenience": x}) for x in (0.1, 0.5, 1.0)),
    *(("mentored", {"budget": x}) for x in (0.0, 0.01, 0.3, 9.0)),
    *(("cactus", {"divergence": x}) for x in (0.01, 0.3, 9.0)),
    *(("gated", {"gate": x, "weight": 0.3}) for x in (0.05, 0.3, 1.0)),
]


def test_rejection_plus_bias_equals_the_distance_on_the_front_and_exceeds_it_elsewhere():
    at = STACKS["sampled"]
    for method, parameters in ON_FRONT:
        gap = front_gap(at, judge(rule_of(method), at, **parameters))
        torch.testing.assert_close(gap, torch.zeros_like(gap), rtol=0, atol=1e-7)
    dense = make_case("dense")
    for method, parameters in (
        ("speccascade", {"rule": "token-v3", "alpha": 0.5}),
        ("typical", {"epsilon": 0.09, "delta": 0.3}),
    ):
        gap = front_gap(dense, judge(rule_of(method), dense, **parameters))
        assert (gap > -1e-9).all() and (gap > 1e-3).any()


def divergence(p: torch.Tensor, pi: torch.Tensor) -> torch.Tensor:
    return torch.xlogy(p, p / pi).where(p > 0, 0).sum(-1)


@pytest.mark.parametrize("kind", ["dense", "zeros in p", "temperature 0.6", "temperature 2"])
def test_mentored_uses_its_budget_and_no_more(kind):
    at = make_case(kind)
    all_of_it = divergence(at.p, emitted(at.q, judge(rule_of("mentored"), at, budget=1e9)))
    for budget in (0.01, 0.1, 0.4):
        spent = divergence(at.p, emitted(at.q, judge(rule_of("mentored"), at, budget=budget)))
        torch.testing.assert_close(spent, all_of_it.clamp_max(budget), rtol=0, atol=1e-5)
        assert (spent < budget + 1e-9).all() and (all_of_it > budget).any()
