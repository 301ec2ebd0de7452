"""Rounds that stop drafting early: lossless, independent of the batch, and shorter."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from specbench.decoding.drafters import policies
from specbench.decoding.drafters.policies import Online, get_policy
from specbench.errors import UsageError
from specbench.methods import laws
from specbench.methods.control import warmup_lengths
from specbench.methods.exact import block
from specbench.methods.serving import fly
from specbench.methods.strict import sd
from specbench.plugins import declared

from ..engine.tiny import random_prompt, tiny_pair
from .exact import LOWEST_P, p_value
from .helpers import run, said
from .test_law import CERTAIN, LENGTH, N, enumeration, lookup_pair, sample
from .test_rows import REQUESTS, side_by_side


def adaptive(cost: float) -> Online:
    return Online(get_policy(f"adaptive:{cost}"))


def proposals(cost: float, **changes: Any) -> list[int]:
    control = adaptive(cost)
    generation = run(tiny_pair("llama"), random_prompt(9), sd, control=control, **changes)
    return [record.proposed for record in generation.rounds[:-1]]


def test_drafting_stops_when_it_does_not_pay_off_by_hand():
    assert set(proposals(1e-9, max_new_tokens=60)) == {5}
    assert set(proposals(1e9, max_new_tokens=60)) == {1}
    some = proposals(0.1, max_new_tokens=60)
    assert len(set(some)) > 1 and min(some) >= 1 and max(some) <= 5
    # Confidences .9, .8, .5 at a cost of .2: the third draft is the last.
    control = adaptive(0.2)
    state = control.begin(torch.tensor([True]))
    active = []
    for drafted, confidence in enumerate((0.9, 0.8, 0.5), start=1):
        q = torch.tensor([[confidence, 1 - confidence]])
        state = control.after(state, torch.tensor([0]), q, q, drafted)
        active.append(bool(state.active))
    # .81 / .2 > 1.9 / 1.2;  .576 / .2 > 2.62 / 1.4;  .18 / .2 < 2.98 / 1.6
    assert active == [True, True, False] and state.proposed.tolist() == [3]


def test_every_round_length_is_warmed_up():
    def lengths(control):
        text = run(tiny_pair("llama"), random_prompt(5), sd, draft_length=3, control=control)
        return {record.proposed for record in text.rounds[:-1]}

    rehearsed = warmup_lengths(adaptive(0.3), 3, static=True)
    assert [lengths(control) for control in rehearsed] == [{1}, {2}, {3}]
    assert warmup_lengths(adaptive(0.3), 3, static=False) == []
    assert warmup_lengths(None, 3, static=True) == []


def test_a_text_does_not_depend_on_its_neighbours_and_has_the_targets_law():
    pair, control = deepcopy(tiny_pair("llama")), adaptive(0.15)
    pair.draft.context = 40  # beyond which it drafts nothing
    for rule in (partial(fly, window=6, entropy=0.0), sd):  # a window of fly depends on N
        together = side_by_side(pair, rule, 3, control=control)
        alone = [run(pair, list(r.prompt), rule, r.key, control=control) for r in REQUESTS]
        assert [said(g) for g in together] == [said(g) for g in alone]
    assert len({r.proposed for g in together for r in g.rounds}) > 2
    samples, models = sample(lookup_pair(), sd, control=adaptive(0.3)), enumeration()
    assert p_value(samples, models.law(laws.sd, 2, LENGTH)) > LOWEST_P
    assert p_value(samples, models.law(partial(laws.static, weight=0.5), 2, LENGTH)) < CERTAIN


@pytest.mark.parametrize(("rule", "policy"), [(sd, "confidence:0.4"), (block, "svip:1.2")])
def test_a_policy_that_runs_online_keeps_the_law(rule, policy):
    control = Online(get_policy(policy))
    samples = sample(lookup_pair(), rule, control=control)
    assert p_value(samples, enumeration().law(laws.sd, N, LENGTH)) > LOWEST_P


@pytest.mark.parametrize(
    "policy", ["confidence:0.4", "p-min:0.5", "svip:1.1", "adaedl:0.45", "adaptive:0.2"]
)
def test_a_policy_drafts_online_as_it_is_priced(policy):
    """The number of drafts at each start of a round is the one along the text."""
    chosen = get_policy(policy)
    q = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(5) / 2, (40, 6)))
    x = torch.multinomial(q.flatten(0, 1), 1).view(40, 6)
    drawn = q.gather(-1, x[..., None])[..., 0].numpy()
    top, entropy = q.amax(-1).numpy(), torch.special.entr(q).sum(-1).numpy()
    columns = [column[:, None] for column in (drawn, top, entropy)]
    most, length = np.full((40, 1), 6), np.ones(40, int)
    priced = chosen(policies.Drafting(*columns, np.ones((40, 1, 7)), most, length))[:, 0]
    control = Online(chosen)
    state = control.begin(torch.ones(40, dtype=torch.bool))
    for i in range(6):
        state = control.after(state, x[:, i], q[:, i], q[:, i], i + 1)
    assert state.proposed.tolist() == priced.tolist() and len({*priced}) > 2


def test_a_policy_that_drops_unlikely_tokens_is_refused():
    def dropping(rounds, threshold=0.4):
        return policies.leading(rounds.q >= threshold)

    with pytest.raises(UsageError, match="looks at the tokens that it drops"):
        Online(declared(policies.policy(predictable=False)(dropping), policies.Policy))
