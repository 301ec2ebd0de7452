"""At temperature 0 the target decides every token; two engines may differ at ties only."""

from dataclasses import replace

import pytest
import torch

from specbench.decoding.loop import Request
from specbench.decoding.records import RoundRecord
from specbench.engine.prompts import encode
from specbench.methods.strict import sd
from specbench.tasks.task import load_task
from specbench.validation.greedy import TIE

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from ..validation.test_greedy import twins
from .helpers import GREEDY, divergence, generate, require_equal_up_to_ties, run, with_eos

LIMIT = 16
# Shorter and longer than Gemma's window of 8.
PROMPTS = [random_prompt(length) for length in (1, 2, 9, 23)]
DRAFT_LENGTHS = (0, 1, 3, 5, 8)


def ends_inside(last: RoundRecord, n: int) -> bool:
    return last.emitted == last.accepted == last.proposed < n


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_their_ends_are_those_of_generate(family):
    ends_cut = ends_eos = 0
    accepted: set[int] = set()
    for index, prompt in enumerate(PROMPTS):
        pair = tiny_pair(family)
        expected = generate(pair, prompt, LIMIT)
        end = max(set(expected), key=expected.index)  # first occurs last: well inside the output
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


def test_greedy_texts_of_the_bundled_pair_are_those_of_generate(mini):
    pair, ended_inside = mini, 0
    assert pair.target.dtype == torch.float32
    for task in ("mini-math", "mini-headline"):
        (example,) = load_task(task).examples("test", limit=1)
        prompt = encode(pair.tokenizer, example.prompt).ids
        expected = generate(pair, prompt, 128)  # every answer ends earlier
        text = [token for token in expected if token not in pair.eos_ids]
        for n in (0, 5):
            settings = {"sampling": GREEDY, "draft_length": n}
            output = run(pair, prompt, sd, max_new_tokens=128, **settings)
            assert (output.token_ids, output.stopped_by) == (text, "eos")
            assert output.output_tokens == len(expected)
            ended_inside += output.rounds[-1].emitted == output.rounds[-1].accepted < n
        cut = run(pair, prompt, sd, max_new_tokens=13, **settings)
        assert (cut.token_ids, cut.stopped_by) == (expected[:13], "length")
    assert ended_inside  # otherwise no end token occurred within a block


PROMPT = random_prompt(5)


def test_a_tie_is_accepted_and_another_token_is_not(capsys):
    pair, best, other = twins(PROMPT)
    request = Request(PROMPT, "tied")
    text = run(pair, PROMPT, None, sampling=GREEDY)
    assert text.token_ids[0] in (best, other)
    swapped = best + other - text.token_ids[0]
    tied = replace(text, token_ids=[swapped, *text.token_ids[1:]])
    require_equal_up_to_ties(pair, [request], [text], [tied])
    assert "tied: Divergence(position=0, margin=" in capsys.readouterr().out
    plain = tiny_pair("llama")
    right = run(plain, PROMPT, sd, sampling=GREEDY)
    wrong = replace(right, token_ids=[*right.token_ids[:4], 1 + right.token_ids[4]])
    assert divergence(plain, PROMPT, right, wrong).margin > TIE  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="tied differs, and not by a tie"):
        require_equal_up_to_ties(plain, [request], [right], [wrong])


def test_only_a_round_with_other_counts_or_tokens_differs():
    pair = tiny_pair("llama")
    text = run(pair, PROMPT, sd, sampling=GREEDY)
    assert divergence(pair, PROMPT, text, text) is None
    first, *rest = text.rounds
    changed = replace(text, rounds=[replace(first, accepted=first.accepted + 1), *rest])
    difference = divergence(pair, PROMPT, text, changed)
    assert difference is not None and difference.position == 0
