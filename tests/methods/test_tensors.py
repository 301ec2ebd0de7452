"""Requirements of the decoding loop: float32, degenerate rows, no waiting for the device."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.methods.ensembles import static
from specbench.methods.verdict import (
    Positions,
    entropy_of,
    likeliest_token,
    maximal_coupling,
    normalise,
)

from .cases import emitted, judge, law_of, make_case, rule_of, stacked, transform
from .test_laws import ROWS

EVERY_RULE = [
    ("lossy", {"lenience": 1e-300}),
    *((method, row) for method, rows in ROWS.items() for row in rows[1::5] or rows),
]


def rounded_to_float32(at: Positions) -> Positions:
    return transform(at, lambda rows: rows.float())


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("method", "parameters"), EVERY_RULE)
def test_float32_agrees_with_float64(method, parameters, greedy):
    rule, double = rule_of(method), stacked(greedy)
    single = rounded_to_float32(double)
    exact, rounded = judge(rule, double, **parameters), judge(rule, single, **parameters)
    assert rounded.accept.dtype == rounded.residual.dtype == torch.float32
    assert rounded.residual.isfinite().all() and rounded.accept.isfinite().all()
    # Mass may move between acceptance and residual in the last digits.
    laws = emitted(double.q, exact), emitted(single.q, rounded).double()
    torch.testing.assert_close(laws[1], laws[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(rounded.expected.double(), exact.expected, rtol=0, atol=1e-6)


def sharp_positions(vocabulary: int = 4096) -> Positions:
    """Nearly equal float32 softmaxes over a wide range: probabilities from 1 down to 0."""
    logits = 40 * torch.randn(8, vocabulary, generator=torch.Generator().manual_seed(0))
    p, q = logits.softmax(-1), (logits + 1e-3 * logits.roll(1, -1)).softmax(-1)
    hidden = torch.zeros(8, 3)
    return Positions(p, q, p, q, hidden, hidden[:, :2], greedy=False, top=logits.amax(-1))


@pytest.mark.parametrize(("method", "parameters"), EVERY_RULE)
def test_a_wide_range_of_probabilities_stays_a_distribution(method, parameters):
    at = sharp_positions()
    for x in (at.q.argmax(-1), at.q.argmin(-1)):
        verdict = rule_of(method)(at, x, **parameters)
        assert ((verdict.accept >= 0) & (verdict.accept <= 1)).all()
        assert (verdict.residual >= 0).all()
        torch.testing.assert_close(verdict.residual.sum(-1), torch.ones(8), rtol=0, atol=1e-5)


def test_static_residual_keeps_its_digits_at_small_weights():
    double = make_case("dense")
    single = rounded_to_float32(double)
    exact = normalise((double.p - double.q).clamp_min(0), double.p)
    x = torch.zeros(len(double.p), dtype=torch.long)
    for weight in (1e-7, 1e-3, 0.5):
        residual = static(single, x, weight=weight).residual.double()
        torch.testing.assert_close(residual, exact, rtol=1e-4, atol=1e-6)
        # Control: computed as v - q in float32, the smallest weight leaves rounding noise.
        v = torch.lerp(single.q, single.p, weight)
        noisy = (maximal_coupling(single, x, v).residual.double() - exact).abs().max()
        assert (noisy > 1e-2) == (weight == 1e-7)


def test_rows_without_mass():
    p = torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]])
    q = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    at = Positions(p, q, p, q, p, q, greedy=False)
    # A token that the draft cannot draw is accepted only where v allows it.
    assert maximal_coupling(at, torch.tensor([0, 1]), p).accept.tolist() == [1.0, 0.0]
    mass = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    rows = normalise(mass, torch.tensor([[0.9, 0.1], [0.5, 0.5]]))
    np.testing.assert_allclose(rows, [[0.9, 0.1], [0.25, 0.75]])  # a row without mass: the fallback
    at = make_case("dense")
    verdict = maximal_coupling(at, at.q.argmax(-1), v=at.q)  # nothing can be rejected
    assert (verdict.accept == 1).all()
    torch.testing.assert_close(verdict.residual, at.p)


@pytest.mark.parametrize("rare", [1e-36, 1e-39, 1e-44])
def test_mentored_keeps_its_law_when_a_token_is_almost_excluded(rare):
    """Two softmaxes at T = 0.1 whose logits differ by 9 are that far apart."""
    for dtype, budget in product((torch.float32, torch.float64), (0.03, 0.5, 2.0)):
        p, q = (torch.tensor([row], dtype=dtype) for row in ([rare, 0.4, 0.6], [0.63, 0.07, 0.3]))
        at = Positions(p, q, p, q, p, q, greedy=False)
        accepted, replaced = law_of("mentored", at, budget=budget)
        verdict = judge(rule_of("mentored"), at, budget=budget)
        np.testing.assert_allclose(emitted(q, verdict), accepted + replaced, rtol=0, atol=1e-6)
        assert float(verdict.expected[0, 0]) == pytest.approx(float(accepted.sum()), abs=1e-6)
        assert accepted.sum() > 1 - 0.63 + 0.01  # the result of excluding the token


class CountOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations on the device; views are free there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


# Mentored decoding sorts, and searches in four rounds.
MOST_OPERATIONS = {"block": 45, "mars": 31, "mentored": 240}


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("method", "parameters"), EVERY_RULE)
def test_a_rule_is_few_operations_and_never_waits_for_the_device(method, parameters, greedy):
    # Meta tensors have no values: copying one to the host, as .item() does, raises.
    at = rounded_to_float32(make_case("dense"))
    at = transform(at, lambda rows: rows.to("meta"))._replace(greedy=greedy, n=6)
    x = torch.zeros(len(at.p), dtype=torch.long, device="meta")
    if "head" in parameters:
        parameters = {**parameters, "head": lambda at: at.h_p[:, 0]}
    with CountOperations() as operations:
        rule_of(method)(at, x, **parameters)
    assert 0 < operations.count <= MOST_OPERATIONS.get(method, 30)


@pytest.mark.parametrize("vocabulary", [1, 3, 128, 129, 1000])
def test_likeliest_is_the_first_largest_and_entropy_that_of_pytorch(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    ties = torch.randint(0, 4, (50, vocabulary), generator=generator).float()
    first = [row.index(max(row)) for row in ties.tolist()]
    assert likeliest_token(ties).tolist() == first
    p = (50 * ties).softmax(-1)  # most tokens have no mass
    torch.testing.assert_close(entropy_of(p), torch.special.entr(p).sum(-1))
    assert not torch.signbit(entropy_of(torch.eye(vocabulary))).any()
