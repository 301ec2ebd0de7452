"""The origin of every token of a sampled text, and the laws of plain passes."""

from math import nan

import pytest
import torch

from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.modules.module import MODULES
from specbench.decoding.records import RoundRecord
from specbench.decoding.sampling import Sampling
from specbench.engine import passes
from specbench.engine.passes import plain_pass
from specbench.validation.texts import (
    ACCEPTED,
    CORRECTED,
    DRAWN,
    NOTHING,
    TARGET,
    VOID,
    Ends,
    processed,
    proposals,
    tokens_of,
)

from ..decoding.helpers import module_drafter
from ..engine.tiny import random_prompt, read, tiny_pair

ROUNDS = [
    RoundRecord(3, 1, 2, 9, (True,), (0.9, 0.8), (0.5, 0.4)),  # one accepted, 9 rejected
    RoundRecord(2, 2, 3, None, (True, True), (0.7, 0.6), (0.3, 0.2)),  # all accepted, a bonus
    RoundRecord(1, 1, 1, None, (False,), (0.5,), (0.1,)),  # cut by the limit
]


def test_the_origin_of_every_token_drafted_or_the_targets_own(make_generation):
    text = make_generation(token_ids=[1, 2, 3, 4, 5, 6], rounds=ROUNDS)
    texts = tokens_of([text, text], [7], Ends(6), lambda text: [DRAWN] * 3)
    assert texts.tokens.tolist() == [[1, 2, 3, 4, 5, 6]] * 2
    assert texts.kind[0].tolist() == [ACCEPTED, CORRECTED, ACCEPTED, ACCEPTED, TARGET, ACCEPTED]
    assert texts.drafted[0].tolist() == [1, 9, 3, 4, 0, 6]
    assert texts.position[0].tolist() == [0, 1, 0, 1, 2, 0]
    assert texts.round[0].tolist() == [0, 0, 1, 1, 1, 2]
    # The second round was shorter than the drafter must make it, and the third was cut.
    assert texts.proposed[0].tolist() == [DRAWN] * 6
    expected = torch.tensor([0.9, 0.8, 0.7, 0.6, nan, 0.5])
    weights = torch.tensor([0.5, 0.4, 0.3, 0.2, nan, 0.1])
    torch.testing.assert_close(texts.expected[0], expected, equal_nan=True)
    torch.testing.assert_close(texts.weight[0], weights, equal_nan=True)
    text = make_generation(token_ids=[4, 5], stopped_by="length", rounds=[RoundRecord(0, 0, 1)] * 2)
    texts = tokens_of([text], [7], Ends(2), lambda text: [])
    assert texts.kind.tolist() == [[TARGET, TARGET]] and texts.expected.isnan().all()


def test_the_end_token_is_part_of_a_text_and_what_a_lookup_must_propose(make_generation):
    ended = make_generation(token_ids=[4], rounds=[RoundRecord(2, 2, 2, None, (), (0.9, 0.8))])
    longer = make_generation(
        token_ids=[4, 4, 4], stopped_by="length", rounds=[RoundRecord(0, 0, 1)] * 3
    )
    texts = tokens_of([ended, longer], [7], Ends(3, token=9), lambda text: [DRAWN] * 2)
    assert texts.tokens.tolist() == [[4, 9, 0], [4, 4, 4]]
    assert texts.kind.tolist() == [[ACCEPTED, ACCEPTED, VOID], [TARGET] * 3]
    assert texts.proposed[0].tolist() == [DRAWN, DRAWN, NOTHING]
    lookup = LookupDrafter()
    assert proposals(lookup, [1, 2, 3, 9, 1, 2, 4, 1, 2], 3, 10) == [4, 1, 2]  # the last one
    assert proposals(lookup, [1, 2, 3, 4, 2, 9, 1, 2], 5, 10) == [3, 4, 2, 9, 1]  # the longest
    assert proposals(lookup, [1, 2, 9, 1], 3, 9) == [2]  # 9 is unknown to the models
    assert proposals(lookup, [1, 2, 3], 3, 10) == []


SAMPLINGS = [
    *(Sampling(), Sampling(temperature=0.7), Sampling(temperature=2.0, top_k=3)),
    *(Sampling(top_p=0.6), Sampling(temperature=0.7, top_k=20, top_p=0.9)),
]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_plain_passes_match_the_engine(family, monkeypatch):
    target = tiny_pair(family).target
    texts = [random_prompt(14), random_prompt(15)[:14]]
    monkeypatch.setattr(passes, "MAX_NUMBERS", 1)  # one text at a time
    said = plain_pass(target, texts, last=5, hidden=True)
    for row, text in enumerate(texts):
        target.reserve(1, 32)
        logits, hidden = read(target, text[:-1])
        torch.testing.assert_close(said.logits[row], logits[-5:], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(said.hidden[row], hidden[-5:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_logits_are_processed_like_the_engines(sampling):
    logits = 3 * torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    ours, theirs = processed(logits, sampling), sampling.distributions(logits)[0]
    torch.testing.assert_close(ours.float(), theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", MODULES)
def test_one_pass_of_a_module_along_a_text_has_the_drafts_of_all_rounds(kind):
    pair = tiny_pair("llama")
    drafter, text = module_drafter(pair, kind), random_prompt(14)
    for depth, along in enumerate(drafter.along(pair, text, 6, depths=3)):
        position = torch.full((1, 6), depth)
        rounds = drafter.plain(pair, [text], position, hidden=False).logits[0]
        torch.testing.assert_close(along[: 6 - depth], rounds[depth:], atol=1e-4, rtol=1e-4)
