"""Compiled rules answer as eager ones do, in one graph without a break."""

import shutil
from functools import partial
from typing import Any

import pytest
import torch

from .cases import make_case, positions, rule_of

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("block", {}),
        ("mentored", {"budget": 0.05}),
        ("typical", {"epsilon": 0.09, "delta": 0.3}),
        ("cactus", {"divergence": 0.1}),
        ("sharpened", {"target_temperature": 0.6, "target_min_p": 0.05}),
        ("gated", {"gate": 0.2, "weight": 0.7}),
    ],
)
def test_a_compiled_rule_answers_as_the_eager_one(method: str, parameters: dict[str, Any]) -> None:
    at = positions(make_case("dense"), torch.float32)._replace(n=4)
    x = at.q.argmax(-1)
    rule = partial(rule_of(method), **parameters)
    compiled = torch.compile(rule, dynamic=False, fullgraph=True)
    torch.testing.assert_close(compiled(at, x), rule(at, x), rtol=1e-5, atol=1e-6)
