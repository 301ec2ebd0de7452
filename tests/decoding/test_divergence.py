"""Ties are found, and other differences are not excused."""

from dataclasses import replace

import pytest

from specbench.decoding.loop import Request
from specbench.methods.strict import sd
from specbench.validation.greedy import TIE

from ..engine.tiny import random_prompt, tiny_pair
from ..validation.test_greedy import twins
from .divergence import divergence, require_equal_up_to_ties
from .helpers import GREEDY, run

PROMPT = random_prompt(5)


def test_equal_texts_have_no_divergence() -> None:
    pair = tiny_pair("llama")
    text = run(pair, PROMPT, sd, sampling=GREEDY)
    assert divergence(pair, PROMPT, text, text) is None


def test_a_tie_is_accepted_and_another_token_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    pair, best, other = twins(PROMPT)
    request = Request(PROMPT, "tied")
    found = run(pair, PROMPT, None, sampling=GREEDY)
    assert found.token_ids[0] in (best, other)
    swapped = best + other - found.token_ids[0]
    tied = replace(found, token_ids=[swapped, *found.token_ids[1:]])
    require_equal_up_to_ties(pair, [request], [found], [tied])
    assert "tied: Divergence(position=0, margin=" in capsys.readouterr().out
    plain = tiny_pair("llama")
    right = run(plain, PROMPT, sd, sampling=GREEDY)
    wrong = replace(right, token_ids=[*right.token_ids[:4], 1 + right.token_ids[4]])
    assert divergence(plain, PROMPT, right, wrong).margin > TIE  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="tied differs, and not by a tie"):
        require_equal_up_to_ties(plain, [request], [right], [wrong])


def test_a_round_with_other_counts_differs_even_if_its_text_does_not() -> None:
    pair = tiny_pair("llama")
    text = run(pair, PROMPT, sd, sampling=GREEDY)
    first, *rest = text.rounds
    other = replace(first, accepted=first.accepted + 1)
    changed = replace(text, rounds=[other, *rest])
    found = divergence(pair, PROMPT, text, changed)
    assert found is not None and found.position == 0
