"""Values computed by hand, to find mistakes that a rule and its law share."""

from fractions import Fraction
from math import log
from typing import Any

import pytest
import torch

from specbench.methods.verdict import Positions

from .cases import judge, law_of, rule_of, split


def rows(fractions: str) -> torch.Tensor:
    """One row [1, V] of space-separated fractions."""
    return torch.tensor([[float(Fraction(x)) for x in fractions.split()]], dtype=torch.float64)


def half(at: Positions) -> torch.Tensor:
    return at.p.new_full((len(at.p),), 0.5)


P, Q = "1/2 1/3 1/6", "1/6 1/3 1/2"
TOP, LOW = "3/4 1/4 0", "1/2 1/4 1/4"  # TV = 1/4
GATED_P, GATED_Q = "1/2 1/4 1/8 1/8", "1/4 1/2 0 1/4"
MARGIN = {"form": "margin", "keep": 9, "replacement": "argmax"}
RATIO = {"form": "ratio", "replacement": "draw"}
# A method with its parameters, p, q, and the mass of each token, kept and replaced.
WORKED: list[tuple[str, dict[str, Any], str, str, str, str]] = [
    # min(p, q); 1 - 2/3 is replaced by (p - q)+ = (1/3, 0, 0).
    ("sd", {}, P, Q, "1/6 1/3 1/6", "1/3 0 0"),
    ("sd-adaptive", {}, P, Q, "1/6 1/3 1/6", "1/3 0 0"),
    ("block", {}, P, Q, "1/6 1/3 1/6", "1/3 0 0"),  # with one draft
    # min(q, 2p), 2p = (1, 2/3, 1/3): 5/6 is kept.
    ("lossy", {"lenience": 0.5}, P, Q, "1/6 1/3 1/3", "1/6 0 0"),
    # v = 1/4 p + 3/4 q = (1/8 + 1/8, 1/3, 1/24 + 3/8) = (1/4, 1/3, 5/12).
    ("static", {"weight": 0.25}, P, Q, "1/6 1/3 5/12", "1/12 0 0"),
    # v = (p + q) / 2 = (1/3, 1/3, 1/3).
    ("diversed", {"head": half}, P, Q, "1/6 1/3 1/3", "1/6 0 0"),
    # max q1 = 1/2 < 1 - 1/4, so pi = p; 1/2 > 1 - 3/5, so pi = q.
    ("speccascade", {"rule": "chow", "alpha": 0.25}, P, Q, "1/6 1/3 1/6", "1/3 0 0"),
    ("speccascade", {"rule": "chow", "alpha": 0.6}, P, Q, Q, "0 0 0"),
    # max q1 = 1/2, max p1 - alpha = 3/4 - 1/5 = 11/20 or 3/4 - 3/10 = 9/20.
    ("speccascade", {"rule": "diff", "alpha": 0.2}, TOP, LOW, "1/2 1/4 0", "1/4 0 0"),
    ("speccascade", {"rule": "diff", "alpha": 0.3}, TOP, LOW, LOW, "0 0 0"),
    # max p1 - alpha TV = 3/4 - 3/4 1/4 = 9/16 > 1/2 = max q1; 3/4 - 3/2 1/4 = 3/8 < 1/2.
    ("speccascade", {"rule": "opt", "alpha": 0.75}, TOP, LOW, "1/2 1/4 0", "1/4 0 0"),
    ("speccascade", {"rule": "opt", "alpha": 1.5}, TOP, LOW, LOW, "0 0 0"),
    # q1 >= 3/4 - 3/10 trusts the second, eta = 1/2: pi = (3/8, 1/2 + 1/8, 0).
    (
        *("speccascade", {"rule": "token-v1", "alpha": 0.3}, TOP),
        *("1/4 1/2 1/4", "1/4 1/2 0", "1/8 1/8 0"),
    ),
    # p1 >= 1/2 - 1/10 trusts the first, eta = 5/6: pi = (1/6 + 5/12, 5/18, 5/36).
    ("speccascade", {"rule": "token-v2", "alpha": 0.1}, P, Q, "1/6 5/18 5/36", "5/12 0 0"),
    # p1 >= 1/2 1/2 trusts the first two, eta = 1/2: pi = (1/6 + 1/4, 1/3 + 1/6, 1/12).
    ("speccascade", {"rule": "token-v3", "alpha": 0.5}, P, Q, "1/6 1/3 1/12", "1/4 1/6 0"),
    # pi = (1/3, 1/3, 1/3) is clip(q, p / (3/2), p / (1/2)), and KL(p || pi) is
    # 1/2 log(3/2) + 1/3 log(1) + 1/6 log(1/2).
    ("mentored", {"budget": log(1.5) / 2 - log(2) / 6}, P, Q, "1/6 1/3 1/3", "1/6 0 0"),
    # pi = (2/3, 1/3) = (p / (3/4), p / (3/2)), KL = 1/2 log(3/4) + 1/2 log(3/2) = 1/2 log(9/8).
    ("mentored", {"budget": log(9 / 8) / 2}, "1/2 1/2", "3/4 1/4", "2/3 1/4", "0 1/12"),
    # H = (1/2 + 2/4 + 3/8 + 3/8) log 2, exp(-H) = 2^(-7/4) = 0.297, half of it is 0.149.
    ("typical", {"epsilon": 0.3, "delta": 0.5}, GATED_P, GATED_Q, "1/4 1/2 0 0", "1/4 0 0 0"),
    ("typical", {"epsilon": 0.1, "delta": 0.5}, GATED_P, GATED_Q, GATED_Q, "0 0 0 0"),
    # g = 1/6 + sqrt(2/10 1/6 5/6) = 1/3 at the last, which lacks 2/3 - 1/3; its residual is
    # p (1 - 1/3) / (1 - 1/6) - q = 4/5 p - q = (2/5 - 1/6, 4/15 - 1/6) = (7/30, 3/30).
    ("cactus", {"divergence": 0.1}, P, "1/6 1/6 2/3", "1/6 1/6 1/3", "7/30 1/10 0"),
    # The second logit is log(2/3) below the first, which is 2: 1.59 > 1.4. The third is rejected.
    ("mars", {"theta": 0.7}, P, Q, "1/6 1/3 0", "1/2 0 0"),
    ("mars", {"theta": 0.9}, P, Q, "1/6 0 0", "5/6 0 0"),
    ("mars", {"theta": 0.9}, "1/3 1/3 1/3", Q, Q, "0 0 0"),  # ties count, even of three
    # H = (1/2 + 2/4 + 3/8 + 3/8) log 2 = 7/4 log 2, so exp(-4/7 H) = 1/2: min(q, 2 p).
    (
        *("entropy-verify", {"strength": 4 / 7, "cap": 0.95}, GATED_P, GATED_Q),
        *("1/4 1/2 0 1/4", "0 0 0 0"),
    ),
    ("entropy-verify", {"strength": 0.0, "cap": 0.8}, P, Q, "1/6 1/3 5/24", "7/24 0 0"),
    # p + 1/2 (1 - 1/2) q = (.., .., 1/6 + 1/8); 1 - 19/24 is replaced.
    ("ears", {"tolerance": 0.5}, P, Q, "1/6 1/3 7/24", "5/24 0 0"),
    # A quarter of the first drafts is kept; the rest is replaced by (p - q)+ = (1, 0, 0)/3.
    ("synthetic", {"length": 1.25}, P, Q, "1/24 1/12 1/8", "3/4 0 0"),
    # p^2 is as (1, 4/9, 1/9), of which 1/9 < 1/5 is dropped: the target is (9/13, 4/13, 0).
    # p q = (1/12, 1/9, 1/12) is kept; 1 - 5/18 goes by p (1 - q).
    ("match", {}, P, Q, "1/12 1/9 1/12", "5/12 2/9 1/12"),
    # Only p = 1/2 is always kept: q a = (1/6, 1/9, 1/12). The second, rejected with 2/9, becomes
    # (3/4, 0, 1/4); the third, rejected with 5/12, becomes (3/5, 2/5, 0).
    ("threshold", {"single": 0.5, "accumulated": 1.0}, *(P, Q, "1/6 1/9 1/12", "5/12 1/6 1/18")),
    # a = min(1, 2 p) = (1, 2/3, 1/3): the second is rejected with 1/9, the third with 1/3.
    ("threshold", {"single": 1.0, "accumulated": 0.5}, *(P, Q, "1/6 2/9 1/6", "17/60 2/15 1/36")),
    # p >= 1/2 - 1/5 keeps the first two; the third becomes the likeliest, or a draw from p.
    ("relaxed", {**MARGIN, "margin": 0.2}, P, Q, "1/6 1/3 0", "1/2 0 0"),
    ("relaxed", {**RATIO, "keep": 9, "ratio": 0.6}, P, Q, "1/6 1/3 0", "1/4 1/6 1/12"),
    # All are close, but only the likeliest is one of the k = 1.
    (
        *("relaxed", {**RATIO, "keep": 1, "ratio": 0.0, "replacement": "argmax"}),
        *(P, Q, "1/6 0 0", "5/6 0 0"),
    ),
    (
        *("sharpened", {"target_temperature": 0.5, "target_min_p": 0.2}),
        *(P, Q, "1/6 4/13 0", "41/78 0 0"),
    ),
    # The plausible set is p1 >= 1/4: v = (3/8, 3/8) there, p elsewhere. The rejected 1/4 is drawn
    # from (p - q)+ = (2, 0, 1)/8.
    # The divergence of P and Q is .087 nats: strict below it, the draft above.
    ("fuzzy", {"distance": 0.08}, *(P, Q, "1/6 1/3 1/6", "1/3 0 0")),
    ("fuzzy", {"distance": 0.1}, *(P, Q, "1/6 1/3 1/2", "0 0 0")),
    # A token that q lacks counts as one of 10^-6: 1/4 against 1/4 * 10^6.
    (
        "contrastive",
        {"contrast": 1.0, "plausible": 0.1},
        *("1/2 1/2 0", "1 0 0", "1/1000001 0 0", "0 1000000/1000001 0"),
    ),
    # With a = 1/2 the first two remain: 1/2 * 3 = 3/2 and 1/3 * 1, so v = (9/11, 2/11, 0).
    ("contrastive", {"contrast": 1.0, "plausible": 0.5}, *(P, Q, "1/6 2/11 0", "43/66 0 0")),
    ("gated", {"gate": 0.5, "weight": 0.5}, GATED_P, GATED_Q, "1/4 3/8 0 1/8", "1/6 0 1/12 0"),
]
# At temperature 0 with p1 = (1/2, 1/3, 1/6), q1 = (1/4, 1/2, 1/4): the draft is always the second.
SECOND: list[tuple[str, dict[str, Any], bool]] = [
    ("sd", {}, False),
    ("lossy", {"lenience": 0.6}, True),  # 1/3 > 3/10
    ("lossy", {"lenience": 0.75}, False),  # 1/3 < 3/8
    ("static", {"weight": 0.5}, True),  # v1 = (3/8, 5/12, 5/24)
    ("static", {"weight": 0.7}, False),  # v1 = (17/40, 23/60, 23/120)
    ("speccascade", {"rule": "token-v3", "alpha": 0.5}, True),  # 1/3 > 1/4
    ("speccascade", {"rule": "token-v3", "alpha": 0.25}, False),  # 1/3 < 3/8
    # As above: p1 >= 1/2 - 1/5 keeps the second, p1 >= 1/2 - 1/10 does not.
    ("relaxed", {"form": "margin", "keep": 9, "margin": 0.2, "replacement": "argmax"}, True),
    ("relaxed", {"form": "margin", "keep": 9, "margin": 0.1, "replacement": "argmax"}, False),
    ("match", {}, False),
    ("threshold", {"single": 0.3, "accumulated": 0.1}, False),  # p is one-hot
    ("mars", {"theta": 0.7}, True),  # as above
    ("mars", {"theta": 0.9}, False),
    ("entropy-verify", {"strength": 1.0, "cap": 0.5}, False),
    ("ears", {"tolerance": 0.5}, False),
    ("synthetic", {"length": 2.0}, True),
    ("synthetic", {"length": 1.0}, False),
    ("gated", {"gate": 0.5, "weight": 0.5}, True),  # the plausible set is p1 >= 1/4, v1 as above
    ("fuzzy", {"distance": 0.03}, False),  # the divergence of p1 and q1 is .034
    ("fuzzy", {"distance": 0.04}, True),
    ("contrastive", {"contrast": 0.5, "plausible": 0.1}, False),
    ("gated", {"gate": 0.8, "weight": 0.0}, False),  # the plausible set is p1 >= 2/5
]


def compare(method: str, parameters: dict[str, Any], at: Positions, *worked: str) -> None:
    judged = split(at.q, judge(rule_of(method), at, **parameters))
    for parts in (law_of(method, at, **parameters), judged):
        for part, fractions in zip(parts, worked, strict=True):
            torch.testing.assert_close(part, rows(fractions), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("method", "parameters", "p", "q", "accepted", "replaced"), WORKED)
def test_values_worked_by_hand(method, parameters, p, q, accepted, replaced):
    said = rows(p), rows(q)
    at = Positions(*said, *said, *said, greedy=False, top=torch.tensor([2.0]))
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
