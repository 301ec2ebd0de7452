"""The input of a head, its weight, and how it is bound to a method."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.heads.bind import bind
from specbench.decoding.heads.head import Head
from specbench.decoding.heads.kinds import KINDS, features
from specbench.decoding.heads.registry import HeadFile
from specbench.decoding.sampling import Sampling
from specbench.methods.exact import sd_adaptive
from specbench.methods.verdict import Positions
from specbench.runs.labels import UNTRAINED

SIZES = (6, 4)


def positions(count: int = 5, vocabulary: int = 7, seed: int = 0) -> Positions:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, count, vocabulary, generator=generator).softmax(-1)
    h_p, h_q = (torch.randn(count, size, generator=generator) for size in SIZES)
    return Positions(p, q, p, q, h_p, h_q, greedy=False)


def moved(head: Head) -> Head:
    """The head with random weights in every layer."""
    generator = torch.Generator().manual_seed(1)
    for weights in head.parameters():
        weights.data = torch.randn(weights.shape, generator=generator)
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_head_gives_one_weight_and_its_seed_decides_the_hidden_layer(
    kind: str,
) -> None:
    for weight in (0.5, 0.9):
        head = Head(kind, SIZES, weight)
        torch.testing.assert_close(head.weigh(positions()), torch.full((5,), weight))
    state = torch.random.get_rng_state()
    one, same, other = (Head(kind, SIZES, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    hidden = [name for name in one if name.startswith("hidden")]
    assert bool(hidden) == (kind != "linear")
    assert all(not torch.equal(one[name], other[name]) for name in hidden)


def test_the_linear_weight_is_the_second_share_of_a_softmax_over_draft_and_target() -> None:
    head, at = moved(Head("linear", SIZES)), positions()
    scores = torch.cat([at.h_q, at.h_p], -1) @ head.summary.weight.T + head.summary.bias
    torch.testing.assert_close(head.weigh(at), scores.softmax(-1)[:, 1])


def test_hidden_states_may_have_another_dtype() -> None:
    head, at = moved(Head("linear", SIZES)), positions()
    halves = at._replace(h_p=at.h_p.bfloat16(), h_q=at.h_q.bfloat16())
    assert head.weigh(halves).dtype == torch.float32
    torch.testing.assert_close(head.weigh(halves), head.weigh(at), atol=0.05, rtol=0)


def test_features_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.0, 1.0, 0.0]])
    nothing = torch.zeros(1, 1)
    found = features(Positions(q, p, p, q, nothing, nothing, greedy=True))  # only p1 and q1 matter
    entropy = 1.5 * torch.log(torch.tensor(2.0)).item()
    by_hand = [entropy, 0.0, 0.5, 0.25, 1.0, 0.0, 0.25, 0.0, 0.75, 0.0]
    torch.testing.assert_close(found, torch.tensor([by_hand]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_depends_only_on_its_own_position(kind: str) -> None:
    head, at = moved(Head(kind, SIZES)), positions()
    tampered = Positions(
        *(
            torch.cat((mine[:2], theirs[2:]))
            for mine, theirs in zip(at[:6], positions(seed=9)[:6], strict=True)
        ),
        greedy=False,
    )
    torch.testing.assert_close(head.weigh(tampered)[:2], head.weigh(at)[:2])
    assert not torch.allclose(head.weigh(tampered)[2:], head.weigh(at)[2:])


def test_a_method_is_bound_to_its_parameters(mini: Any) -> None:
    bound = bind("static", {"weight": 0.25}, mini)
    assert isinstance(bound.rule, partial) and bound.rule.keywords == {"weight": 0.25}
    assert bound[2:5] == (None, {"weight": 0.25}, None)
    # A control does not change the law.
    adaptive = ("sd-adaptive", sd_adaptive, Online(get_policy("adaptive:0.25")), {}, None)
    assert bind("sd-adaptive", {"cost": 0.25}, mini)[:5] == adaptive
    assert bind("autoregressive", {}, mini).rule is None


def test_a_cooled_method_changes_how_both_models_are_sampled(mini: Any) -> None:
    run, given = Sampling(temperature=0.8, top_k=9, min_p=0.2), {"cooled_weight": 1.0}
    bound = bind("cooled", given | {"both_temperature": 0.5, "both_min_p": 0.1}, mini)
    assert bound.parameters == given
    assert bound.sampling(run) == Sampling(temperature=0.4, top_k=9, min_p=0.2)
    assert bound.sampling(Sampling()) == Sampling(temperature=0.5, min_p=0.1)
    greedy = Sampling(temperature=0)
    assert bound.sampling(greedy) is greedy
    assert bind("static", {"weight": 1.0}, mini).sampling(run) is run


def test_a_head_is_loaded_once_and_called_as_a_function(mini: Any) -> None:
    heads: dict[Path, Head] = {}
    file = HeadFile(UNTRAINED, Path(UNTRAINED))
    for method in ("diversed", "gated-diversed"):
        bound = bind(method, {"head": file}, mini, heads)
        assert isinstance(bound.rule, partial)
        assert bound.head is heads[Path(UNTRAINED)]
        assert bound.rule.keywords["head"] == bound.head.weigh
    assert len(heads) == 1
