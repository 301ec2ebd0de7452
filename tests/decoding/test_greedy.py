"""In float32 and at temperature 0 the target decides every token, whoever drafts."""

from functools import cache

import pytest

from specbench.decoding.records import RoundRecord
from specbench.methods.rules import sd

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from .helpers import GREEDY, generate, run, with_eos

LIMIT = 16
# Shorter and longer than Gemma's window of 8.
PROMPTS = [random_prompt(length) for length in (1, 2, 5, 9, 14, 23)]
DRAFT_LENGTHS = (0, 1, 2, 3, 5, 8)


@cache
def reference(family: str, index: int) -> list[int]:
    return generate(tiny_pair(family), PROMPTS[index], LIMIT)


def end_token(tokens: list[int]) -> int:
    """The token that first occurs last: an end that lies well inside the output."""
    return max(set(tokens), key=tokens.index)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_their_ends_are_those_of_generate(family: str) -> None:
    for index, prompt in enumerate(PROMPTS):
        expected = reference(family, index)
        end = end_token(expected)
        pair, ending = tiny_pair(family), with_eos(tiny_pair(family), end)
        assert generate(ending, prompt, LIMIT) == expected[: expected.index(end) + 1]
        for n in DRAFT_LENGTHS:
            limit = LIMIT - index  # the limit cuts blocks at different places
            settings = {"sampling": GREEDY, "draft_length": n, "max_new_tokens": limit}
            output = run(pair, prompt, sd, **settings)
            assert (output.token_ids, output.stopped_by) == (expected[:limit], "length")
            ended = run(ending, prompt, sd, **(settings | {"max_new_tokens": LIMIT}))
            assert (ended.token_ids, ended.stopped_by) == (expected[: expected.index(end)], "eos")


def ends_inside(last: RoundRecord, n: int) -> bool:
    return last.emitted == last.accepted == last.proposed < n


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cases_above_end_inside_accepted_blocks(family: str) -> None:
    pair = tiny_pair(family)
    cut = ended = 0
    for index, prompt in enumerate(PROMPTS):
        ending = with_eos(pair, end_token(reference(family, index)))
        cut += ends_inside(run(pair, prompt, sd, sampling=GREEDY).rounds[-1], 5)
        ended += ends_inside(run(ending, prompt, sd, sampling=GREEDY).rounds[-1], 5)
    assert cut and ended


@pytest.mark.parametrize("family", FAMILIES)
def test_the_draft_is_neither_always_right_nor_always_wrong(family: str) -> None:
    outputs = [run(tiny_pair(family), prompt, sd, sampling=GREEDY) for prompt in PROMPTS]
    counts = {record.accepted for output in outputs for record in output.rounds}
    assert {0, 1, 5} <= counts
