"""Every rule emits exactly the distribution of its closed form."""

from typing import Any

import pytest
import torch

from specbench.methods import METHODS
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

from .cases import emitted, judge, kinds_at, law_of, linear_head, make_case, rule_of, split, stacked

TOLERANCE = 1e-6


def grid(**values: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Several settings together: the i-th value of every parameter; a single value serves all."""
    most = max(map(len, values.values()))
    columns = (value if len(value) == most else value * most for value in values.values())
    return [dict(zip(values, row, strict=True)) for row in zip(*columns, strict=True)]


# The settings at which a rule and its law are compared; a new method adds one row.
ROWS: dict[str, list[dict[str, Any]]] = {
    "sd": [{}],
    "lossy": grid(lenience=(1e-6, 0.1, 0.5, 0.9, 1.0)),
    "speccascade": [
        *grid(rule=("chow",), alpha=(0, 0.3, 0.5, 0.8, 1)),
        *grid(rule=("diff",), alpha=(-1, -0.3, 0, 0.2, 1)),
        *grid(rule=("opt",), alpha=(-1e6, -0.5, 0, 0.5, 2, 1e6)),
        *grid(rule=("token-v1",), alpha=(-1, -0.1, 0, 0.2, 1)),
        *grid(rule=("token-v2",), alpha=(-1, -0.1, 0, 0.2, 1)),
        *grid(rule=("token-v3",), alpha=(-2, -1e-12, 0, 0.5, 0.9, 1)),
    ],
    "static": grid(weight=(0.0, 0.1, 0.5, 0.7, 0.99, 1.0)),
    "diversed": [{"head": linear_head}],
    "block": [{}],  # with one draft
    "mentored": grid(budget=(0.0, 1e-3, 0.05, 0.5, 20.0)),
    "typical": grid(epsilon=(0.09, 0.3, 0.9, 0.0, 0.3), delta=(0.3, 0.9, 0.99, 0.3, 0.0)),
    "cactus": grid(divergence=(0.0, 1e-3, 0.1, 1.0, 9.0)),
    "sharpened": grid(
        target_temperature=(1.0, 0.5, 0.05, 1.0, 0.7, 1.0),
        target_min_p=(0.0, 0.0, 0.0, 0.1, 0.3, 1.0),
    ),
    "gated": [
        *grid(gate=(0.0, 0.05, 0.3, 0.8, 1.0, 1.2), weight=(0.5,)),
        *grid(gate=(0.0, 0.3), weight=(0.9,)),
    ],
    "fuzzy": grid(distance=(0.0, 0.01, 0.1, 0.3, 1.0)),
    "contrastive": grid(contrast=(0.0, 0.5, 2.0), plausible=(0.05, 0.5, 0.1)),
    "cooled": grid(cooled_weight=(0.0, 0.3, 1.0)),
    "match": [{}],
    "threshold": grid(single=(1.0, 0.3, 1.0, 0.5), accumulated=(1.0, 1.0, 0.4, 1e-3)),
    "relaxed": [
        *grid(form=("margin",), keep=(2, 9), margin=(0.1, 0.6), replacement=("argmax", "draw")),
        *grid(form=("ratio",), keep=(9, 1), ratio=(0.3, 0.0), replacement=("draw", "argmax")),
    ],
    "mars": grid(theta=(0.0, 0.5, 0.9, 1.0)),
    "entropy-verify": grid(strength=(0.0, 0.4, 3.0), cap=(1.0, 0.95, 0.5)),
    "ears": grid(tolerance=(0.0, 0.3, 2.0)),
    "synthetic": [*grid(length=(1.0, 1.3, 9.0)), *grid(acceptance=((0.3,), (1.0, 0.5, 0.0)))],
}
JOINT = {"fly"}  # its law is that of whole blocks, see `test_block.py`
SETTINGS = [
    pytest.param(
        method,
        parameters,
        id=" ".join([method, *(getattr(v, "__name__", str(v)) for v in parameters.values())]),
    )
    for method, settings in ROWS.items()
    for parameters in settings
]


@pytest.mark.parametrize(("method", "parameters"), SETTINGS)
def test_emitted_law_is_the_closed_form(method, parameters):
    for greedy in (False, True):
        at = stacked(greedy)
        verdict = judge(rule_of(method), at, **parameters)
        law, enumeration = law_of(method, at, **parameters), split(at.q, verdict)
        for told, enumerated in zip(law, enumeration, strict=True):
            assert not kinds_at(~((enumerated - told).abs().amax(-1) < TOLERANCE), greedy)
        expected = enumeration.accepted.sum(-1, keepdim=True).expand_as(verdict.expected)
        torch.testing.assert_close(verdict.expected, expected)
        assert verdict.accept.min() >= 0 and verdict.accept.max() <= 1
        assert verdict.residual.min() >= 0
        torch.testing.assert_close(verdict.residual.sum(-1), torch.ones_like(verdict.accept))


def test_rules_have_laws_and_choose_the_same_of_equally_likely_tokens():
    for method, parameters in (
        ("static", {"weight": 0.3}),
        ("static", {"weight": 0.5}),
        ("gated", {"gate": 0, "weight": 0.5}),
    ):
        for seed in range(200):
            at = make_case("temperature 0, ties", seed)
            verdict = judge(rule_of(method), at, **parameters)
            law, enumerated = law_of(method, at, **parameters), split(at.q, verdict)
            for part, expected in zip(enumerated, law, strict=True):
                torch.testing.assert_close(part, expected)
    drafting = {m.name for m in METHODS.values() if m.rule}
    assert drafting - JOINT == {m.name for m in METHODS.values() if m.law}
    assert set(ROWS) == {name for name in drafting - JOINT if not METHODS[name].control}


# Negative controls: known mistakes from the literature, which the law test must detect.


def unprocessed_q(at: Positions, x: torch.Tensor) -> Verdict:
    """The draft is sampled from the processed q but verified against the unprocessed one."""
    return maximal_coupling(at._replace(q=at.q1), x, at.p)


def residual_p(at: Positions, x: torch.Tensor) -> Verdict:
    """A rejected token is replaced by a draw from p instead of norm((p - q)+)."""
    return maximal_coupling(at, x, at.p)._replace(residual=at.p)


def undivided(at: Positions, x: torch.Tensor) -> Verdict:
    """A token is accepted with p instead of p / q."""
    return maximal_coupling(at, x, at.p * at.q, gain=at.p - at.q)


def test_a_broken_rule_is_caught():
    for broken, kind in (
        *((unprocessed_q, "temperature 0.6"), (unprocessed_q, "temperature 2")),
        *((unprocessed_q, "top-k 3"), (residual_p, "dense"), (residual_p, "zeros in both")),
        (undivided, "dense"),
    ):
        at = make_case(kind)
        error = (emitted(at.q, judge(broken, at)) - at.p).abs().amax(-1)
        assert (error > 1000 * TOLERANCE).double().mean() > 0.8
    at = make_case("dense")
    drawn_from = torch.zeros_like(at.q).scatter(-1, at.q.argmax(-1, keepdim=True), 1.0)
    error = (emitted(drawn_from, judge(rule_of("sd"), at)) - at.p).abs().amax(-1)
    assert (error > 1000 * TOLERANCE).double().mean() > 0.8
