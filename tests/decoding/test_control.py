"""Rounds that stop drafting early: lossless, independent of the batch, and shorter."""

from functools import partial
from typing import Any

import pytest
import torch

from specbench.decoding import drafting
from specbench.methods import laws
from specbench.methods.control import DraftControl, warmup_lengths
from specbench.methods.strict import sd

from ..engine.tiny import random_prompt, tiny_pair
from .exact import LOWEST_P, p_value
from .helpers import GREEDY, run, said
from .test_law import CERTAIN, LENGTH, enumeration, lookup_pair, sample
from .test_rows import REQUESTS, side_by_side


def proposals(cost: float, **changes: Any) -> list[int]:
    control = DraftControl(cost)
    found = run(tiny_pair("llama"), random_prompt(9), sd, control=control, **changes)
    return [record.proposed for record in found.rounds[:-1]]


def test_drafting_stops_when_it_does_not_pay_off() -> None:
    assert set(proposals(1e-9, max_new_tokens=60)) == {5}
    assert set(proposals(1e9, max_new_tokens=60)) == {1}
    some = proposals(0.1, max_new_tokens=60)
    assert len(set(some)) > 1 and min(some) >= 1 and max(some) <= 5


def test_the_rule_by_hand() -> None:
    """Confidences .9, .8, .5 at a cost of .2: the third draft is the last."""
    control = DraftControl(0.2)
    state = control.begin(torch.tensor([True]))
    active = []
    for drafted, confidence in enumerate((0.9, 0.8, 0.5), start=1):
        q = torch.tensor([[confidence, 1 - confidence]])
        state = control.after(state, q, drafted)
        active.append(bool(state.active))
    # .81 / .2 > 1.9 / 1.2;  .576 / .2 > 2.62 / 1.4;  .18 / .2 < 2.98 / 1.6
    assert active == [True, True, False]
    assert state.proposed.tolist() == [3]
    assert state.kept.item() == pytest.approx(0.36)
    assert state.tokens.item() == pytest.approx(1 + 0.9 + 0.72 + 0.36)


def test_every_round_length_is_warmed_up() -> None:
    pair = tiny_pair("llama")
    rehearsed = warmup_lengths(DraftControl(0.3), 3, static=True)
    lengths = [
        {
            r.proposed
            for r in run(pair, random_prompt(5), sd, draft_length=3, control=each).rounds[:-1]
        }
        for each in rehearsed
    ]
    assert lengths == [{1}, {2}, {3}]
    assert warmup_lengths(DraftControl(0.3), 3, static=False) == []
    assert warmup_lengths(None, 3, static=True) == []


def test_greedy_tokens_are_those_of_the_target() -> None:
    pair, prompt = tiny_pair("gemma3"), random_prompt(9)
    greedy = partial(run, pair, prompt, sampling=GREEDY, max_new_tokens=40)
    for cost in (0.02, 0.2):
        assert greedy(sd, control=DraftControl(cost)).token_ids == greedy().token_ids


def test_a_text_does_not_depend_on_its_neighbours() -> None:
    pair, control = tiny_pair("llama"), DraftControl(0.15)
    found = side_by_side(pair, sd, 3, control=control)
    alone = [run(pair, list(r.prompt), sd, sample_key=r.key, control=control) for r in REQUESTS]
    assert [said(g) for g in found] == [said(g) for g in alone]
    assert len({r.proposed for g in found for r in g.rounds}) > 2


def test_the_law_is_the_targets() -> None:
    samples = sample(lookup_pair(), sd, control=DraftControl(0.3))
    assert p_value(samples, enumeration().law(laws.sd, 2, LENGTH)) > LOWEST_P
    assert (
        p_value(samples, enumeration().law(partial(laws.static, weight=0.5), 2, LENGTH)) < CERTAIN
    )


def test_a_stop_that_depends_on_the_drafted_token_changes_the_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A negative control: whether a token is judged depends on the token."""
    draft_adaptively = drafting.draft_adaptively

    def choosy(*arguments: Any) -> drafting.Drafts:
        drafts = draft_adaptively(*arguments)
        unlikely = drafts.x[:, 0] != drafts.q[:, 0].argmax(-1)
        return drafts._replace(proposed=drafts.proposed * unlikely)

    monkeypatch.setattr(drafting, "draft_adaptively", choosy)
    samples = sample(lookup_pair(), sd, control=DraftControl(0.3))
    assert p_value(samples, enumeration().law(laws.sd, 2, LENGTH)) < CERTAIN
