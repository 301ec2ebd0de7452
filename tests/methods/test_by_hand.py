"""Values computed by hand, to find mistakes that a rule and its law share."""

from fractions import Fraction
from typing import Any

import pytest
import torch

from specbench.methods.verdict import Positions

from ..told import listed
from .cases import judge, law_of, rule_of, split


def rows(fractions: str) -> torch.Tensor:
    """One row [1, V] of space-separated fractions."""
    return torch.tensor([[float(Fraction(x)) for x in fractions.split()]], dtype=torch.float64)


def half(at: Positions) -> torch.Tensor:
    return at.p.new_full((len(at.p),), 0.5)


P, Q = "1/2 1/3 1/6", "1/6 1/3 1/2"
WORKED, SECOND = (listed(f"methods/{name}.txt") for name in ("by_hand", "by_hand_greedy"))


def compare(method: str, parameters: dict[str, Any], at: Positions, *worked: str) -> None:
    judged = split(at.q, judge(rule_of(method), at, **parameters))
    for parts in (law_of(method, at, **parameters), judged):
        for part, fractions in zip(parts, worked, strict=True):
            torch.testing.assert_close(part, rows(fractions), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("method", "parameters", "p", "q", "accepted", "replaced"), WORKED)
def test_values_worked_by_hand(method, parameters, p, q, accepted, replaced):
    said = rows(p), rows(q)
    at = Positions(*said, *said, *said, greedy=False, top=torch.tensor([2.0]))
    parameters = parameters | ({"head": half} if "head" in parameters else {})
    compare(method, parameters, at, accepted, replaced)


@pytest.mark.parametrize(("method", "parameters", "accepted"), SECOND)
def test_values_worked_by_hand_at_temperature_0(method, parameters, accepted):
    p1, q1 = rows(P), rows("1/4 1/2 1/4")
    top = torch.tensor([2.0])
    at = Positions(rows("1 0 0"), rows("0 1 0"), p1, q1, p1, q1, greedy=True, top=top)
    worked = ("0 1 0", "0 0 0") if accepted else ("0 0 0", "1 0 0")
    compare(method, parameters, at, *worked)


def test_forced_acceptance_of_a_round_worked_by_hand():
    """L = 3.25 is 2 drafts and a quarter of a third, and none that was not made."""
    p, q = (rows(x).repeat(4, 1) for x in (P, Q))
    at = Positions(p, q, p, q, p, q, greedy=False, n=4)
    for drafts, worked in ((4, [1, 1, 1 / 4, 0]), (1, [1, 0, 0, 0])):
        shorter = at._replace(q=at.q * (at.position < drafts)[:, None])
        verdict = rule_of("synthetic")(shorter, torch.zeros(4, dtype=torch.long), length=3.25)
        assert verdict.accept.tolist() == verdict.expected.tolist() == worked
    rates = rule_of("synthetic")(at, torch.zeros(4, dtype=torch.long), acceptance=(0.75, 0.5))
    assert rates.accept.tolist() == rates.expected.tolist() == [0.75, 0.5, 0.5, 0.5]


def test_a_block_of_two_worked_by_hand():
    """The example of the paper: p = (1/3, 2/3) and q = (2/3, 1/3) after whatever text.

    AA: P = 1/2, 1/4; S_1 = (1/6 - 2/3)+ + (1/3 - 1/3)+ = 0, h = 0, 1/4, so A = 1/4, 1/4.
    AB: P = 1/2, 1; S_1 = 0, h = 0, 1, so A = 1, 1.
    BA: P = 1, 1/2; S_1 = 1/3, h = 1, 1/2, so A = 1, 1/2.
    BB: P = 1, 1; A = 1, 1.
    So 4/9 (1/4 + 1/4) + 2/9 (1 + 1) + 2/9 (1 + 1/2) + 1/9 (1 + 1) = 11/9 drafts are kept.
    """
    p, q = (rows(x).expand(8, -1) for x in ("1/3 2/3", "2/3 1/3"))
    at = Positions(p, q, p, q, p, q, greedy=False, n=2)
    x = torch.tensor([0, 0, 0, 1, 1, 0, 1, 1])
    reached = rule_of("block")(at, x).accept.view(4, 2).cumprod(-1)
    worked = torch.tensor([[1 / 4, 1 / 4], [1, 1], [1, 1 / 2], [1, 1]], dtype=torch.float64)
    torch.testing.assert_close(reached, worked)
    assert (rows("4/9 2/9 2/9 1/9") @ reached).sum() == pytest.approx(11 / 9)
