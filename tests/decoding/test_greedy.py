"""In float32 and at temperature 0 the target decides every token, whatever the draft."""

import pytest

from specbench.decoding.records import RoundRecord
from specbench.methods.strict import sd

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from .helpers import GREEDY, generate, run, with_eos

LIMIT = 16
# Shorter and longer than Gemma's window of 8.
PROMPTS = [random_prompt(length) for length in (1, 2, 9, 23)]
DRAFT_LENGTHS = (0, 1, 3, 5, 8)


def end_token(tokens: list[int]) -> int:
    """The token that first occurs last: an end token well inside the output."""
    return max(set(tokens), key=tokens.index)


def ends_inside(last: RoundRecord, n: int) -> bool:
    return last.emitted == last.accepted == last.proposed < n


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_their_ends_are_those_of_generate(family: str) -> None:
    ends_cut = ends_eos = 0
    accepted: set[int] = set()
    for index, prompt in enumerate(PROMPTS):
        pair = tiny_pair(family)
        expected = generate(pair, prompt, LIMIT)
        end = end_token(expected)
        ending = with_eos(pair, end)
        assert generate(ending, prompt, LIMIT) == expected[: expected.index(end) + 1]
        for n in DRAFT_LENGTHS:
            limit = LIMIT - index  # the limit cuts blocks at different positions
            settings = {"sampling": GREEDY, "draft_length": n, "max_new_tokens": limit}
            output = run(pair, prompt, sd, **settings)
            assert (output.token_ids, output.stopped_by) == (expected[:limit], "length")
            ended = run(ending, prompt, sd, **(settings | {"max_new_tokens": LIMIT}))
            assert (ended.token_ids, ended.stopped_by) == (expected[: expected.index(end)], "eos")
            ends_cut += ends_inside(output.rounds[-1], n)
            ends_eos += ends_inside(ended.rounds[-1], n)
            if n == 5:
                accepted |= {record.accepted for record in output.rounds}
    assert ends_cut and ends_eos and {0, 1, 5} <= accepted, "the cases show too little"
