"""The closed forms of the check against the rules themselves, token by token."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.check.laws import JOINT, LAWS, Next
from specbench.methods import METHODS, Positions

K, V = 40, 9
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sd", {}),
    ("lossy", {"lenience": 0.5}),
    ("static", {"weight": 0.3}),
    ("static", {"weight": 0.0}),
    *(("speccascade", {"rule": "token-v3", "alpha": alpha}) for alpha in (-1.0, 0.5, 1.0)),
    *(("speccascade", {"rule": rule, "alpha": 0.2}) for rule in ("chow", "diff", "opt")),
    *(("speccascade", {"rule": rule, "alpha": 0.2}) for rule in ("token-v1", "token-v2")),
    *(("mentored", {"budget": budget}) for budget in (0.0, 0.01, 0.1, 3.0)),
    ("typical", {"epsilon": 0.09, "delta": 0.3}),
    *(("cactus", {"divergence": divergence}) for divergence in (0.0, 0.01, 1.0)),
    ("sharpened", {"target_temperature": 0.5, "target_min_p": 0.1}),
    *(("gated", {"gate": gate, "weight": 0.3}) for gate in (0.0, 0.3, 2.0)),
]


def rows(generator: torch.Generator, zeros: bool) -> Tensor:
    mass = torch.rand(K, V, generator=generator, dtype=torch.float64) ** 3
    if zeros:
        holes = torch.rand(K, V, generator=generator) < 0.4
        mass = mass.masked_fill(holes & (mass < mass.amax(-1, keepdim=True)), 0)
    return mass / mass.sum(-1, keepdim=True)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_the_law_is_what_the_rule_emits(name: str, parameters: dict[str, Any], zeros: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    p, q, p1, q1 = (rows(generator, zeros and i < 2) for i in range(4))
    law = LAWS[name](Next(p, q, p1, q1), **parameters)
    rule = METHODS[name].load()
    assert rule is not None
    at = Positions(p, q, p1, q1, p, q, greedy=False)
    kept, replaced = torch.zeros_like(p), torch.zeros_like(p)
    for x in range(V):
        verdict = rule(at, torch.full((K,), x), **parameters)
        kept[:, x] = q[:, x] * verdict.accept
        replaced += (q[:, x] * (1 - verdict.accept))[:, None] * verdict.residual
    torch.testing.assert_close(law.kept, kept, atol=1e-6, rtol=0)
    torch.testing.assert_close(law.replaced, replaced, atol=1e-6, rtol=0)


def test_every_method_that_drafts_has_a_law() -> None:
    drafting = {name for name, method in METHODS.items() if method.rule is not None}
    assert drafting == set(LAWS)
    assert drafting >= JOINT
