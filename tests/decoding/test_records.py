"""What a sample's record says: counts stop where the output stops."""

from functools import partial

import pytest

from specbench.decoding.round import Verify
from specbench.errors import RunError
from specbench.methods.rules import diversed, lossy, sd, static
from specbench.methods.speccascade import speccascade

from ..engine.tiny import FAMILIES, build, config, pair_of, random_prompt, tiny_pair
from .helpers import GREEDY, constantly, own_draft, run, with_eos

PROMPT = random_prompt(6)
RULES: dict[str, Verify | None] = {
    "autoregressive": None,
    "sd": sd,
    "lossy": partial(lossy, lenience=0.5),
    "speccascade": partial(speccascade, rule="token-v3", alpha=0.5),
    "static": partial(static, weight=0.3),
    "diversed": partial(diversed, head=lambda at: at.p.new_full((len(at.p),), 0.3)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("limit", [1, 4, 16])
def test_counts_agree_with_each_other(family: str, method: str, limit: int) -> None:
    pair, n = tiny_pair(family), 4
    output = run(pair, PROMPT, RULES[method], draft_length=n, max_new_tokens=limit)
    assert output.prompt_tokens == len(PROMPT)
    assert output.output_tokens == sum(record.emitted for record in output.rounds) == limit
    assert output.text == pair.tokenizer.decode(output.token_ids)
    for record in output.rounds:
        assert 0 <= record.accepted <= record.proposed <= n
        assert record.emitted in (record.accepted, record.accepted + 1)
        assert len(record.expected) == min(record.accepted + 1, record.proposed)
        assert all(0 <= chance <= 1 + 1e-6 for chance in record.expected)
        weighted = method in ("static", "diversed")
        assert record.weights == pytest.approx([0.3] * len(record.expected) * weighted)
    for record in output.rounds[:-1]:
        assert record.emitted == record.accepted + 1
        assert record.proposed == (0 if method == "autoregressive" else n)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", ["greedy", "sampled"])
def test_a_target_that_drafts_for_itself_is_never_refused(family: str, temperature: str) -> None:
    pair = own_draft(tiny_pair(family))
    settings = {"sampling": GREEDY} if temperature == "greedy" else {}
    output = run(pair, PROMPT, sd, max_new_tokens=60, **settings)
    assert [record.accepted for record in output.rounds] == [5] * 10
    assert [record.emitted for record in output.rounds] == [6] * 10
    assert all(chance == pytest.approx(1, abs=1e-4) for r in output.rounds for chance in r.expected)


@pytest.mark.parametrize("position", range(6))
def test_an_end_token_inside_an_accepted_block_ends_all_counts(position: int) -> None:
    pair = own_draft(tiny_pair("llama"))
    block = run(pair, PROMPT, sd, max_new_tokens=6).token_ids
    assert len(set(block)) == 6, "each token of this block must be able to be the first end token"
    output = run(with_eos(pair, block[position]), PROMPT, sd, max_new_tokens=6)
    (record,) = output.rounds
    assert output.stopped_by == "eos"
    assert output.token_ids == block[:position]
    assert output.text == pair.tokenizer.decode(block[:position])
    assert output.output_tokens == record.emitted == position + 1
    assert record.accepted == record.proposed == min(position + 1, 5)
    assert len(record.expected) == record.proposed


def test_a_bonus_token_that_ends_the_output_leaves_the_block_whole() -> None:
    pair = own_draft(tiny_pair("llama"))
    output = run(pair, PROMPT, sd, max_new_tokens=6)
    (record,) = output.rounds
    assert (record.proposed, record.accepted, record.emitted) == (5, 5, 6)


def test_the_end_and_the_limit_at_once_count_as_the_end() -> None:
    pair = own_draft(tiny_pair("llama"))
    block = run(pair, PROMPT, sd, max_new_tokens=3).token_ids
    assert run(with_eos(pair, block[2]), PROMPT, sd, max_new_tokens=3).stopped_by == "eos"


def test_a_rule_that_refuses_everything_still_ends() -> None:
    output = run(tiny_pair("llama"), PROMPT, constantly(0))
    assert output.stopped_by == "length"
    assert [r.emitted for r in output.rounds] == [1] * 16
    assert {(r.proposed, r.accepted) for r in output.rounds} == {(5, 0)}


def test_refusing_everything_and_replacing_greedily_is_autoregressive() -> None:
    pair = tiny_pair("gemma3")
    refused = run(pair, PROMPT, constantly(0), sampling=GREEDY)
    assert refused.token_ids == run(pair, PROMPT, sampling=GREEDY).token_ids


def test_accepting_everything_emits_the_draft_and_a_bonus_token() -> None:
    pair = tiny_pair("llama")
    output = run(pair, PROMPT, constantly(1), sampling=GREEDY, draft_length=3, max_new_tokens=4)
    drafting = pair_of(pair.draft.model, pair.target.model)
    drafted = run(drafting, PROMPT, sampling=GREEDY, max_new_tokens=3).token_ids
    assert output.token_ids[:3] == drafted
    bonus = run(pair, PROMPT + drafted, sampling=GREEDY, max_new_tokens=1).token_ids
    assert output.token_ids[3:] == bonus


def test_autoregressive_proposes_nothing() -> None:
    output = run(tiny_pair("llama"), PROMPT, None, draft_length=5)
    assert [(r.proposed, r.accepted, r.emitted) for r in output.rounds] == [(0, 0, 1)] * 16
    assert {(r.expected, r.weights) for r in output.rounds} == {((), ())}


@pytest.mark.parametrize("verify", [None, sd], ids=["autoregressive", "sd"])
def test_a_stop_string_ends_the_output_and_is_cut_off(verify: Verify | None) -> None:
    pair = own_draft(tiny_pair("llama"))
    whole = run(pair, PROMPT, verify).text
    stop = whole[6:9]  # three tokens, and not at the end of a block
    output = run(pair, PROMPT, verify, stop=["not there", stop])
    assert output.stopped_by == "stop"
    assert output.text == whole[:6]
    assert output.output_tokens == sum(r.emitted for r in output.rounds) == 9
    assert run(pair, PROMPT, verify, stop=["not there"]).text == whole


@pytest.mark.parametrize("verify", [None, sd], ids=["autoregressive", "sd"])
def test_timings_are_positive(verify: Verify | None) -> None:
    output = run(tiny_pair("llama"), PROMPT, verify)
    assert output.prefill_seconds > 0 and output.decode_seconds > 0


@pytest.mark.parametrize("verify", [None, sd], ids=["autoregressive", "sd"])
def test_requests_of_any_length_follow_each_other(verify: Verify | None) -> None:
    """The second request outgrows the cache; the third is shorter than what the cache holds."""
    shared = tiny_pair("gemma3")
    for length, limit in ((1, 8), (250, 12), (3, 8), (255, 1)):
        fresh = pair_of(shared.target.model, shared.draft.model)
        prompt = random_prompt(length)
        together = run(shared, prompt, verify, max_new_tokens=limit)
        alone = run(fresh, prompt, verify, max_new_tokens=limit)
        assert together.token_ids == alone.token_ids
        assert together.rounds == alone.rounds


def test_a_request_beyond_the_context_is_refused():
    pair = pair_of(build(config("llama", max_position_embeddings=64)), build(config("llama")))
    with pytest.raises(RunError, match="60 tokens and 5 new ones exceed the context of 64"):
        run(pair, [1] * 60, sd, max_new_tokens=5)
