"""How engines' reports are brought to one definition, and how requests share the time."""

from typing import Any

import pytest

from specbench.client import Event, Streamed
from specbench.decoding.records import RoundRecord
from specbench.errors import UsageError
from specbench.experiment.arms import shares_of
from specbench.servers.answers import Acceptance, Answer, read_answer
from specbench.servers.delivered import (
    AT_ONCE,
    BEHIND,
    HIDDEN,
    UNDELIVERED,
    UNEQUAL,
    UNLIKE,
    UNSTOPPED,
)

from ..proofs.toy import END, tokenizer

LLAMACPP = ("predicted_n", "draft_n", "draft_n_accepted")


def answer(*values: Any, chat: bool = False, limit: int = 100) -> Answer:
    events = [Event(0.1 * (number + 1), value) for number, value in enumerate(values)]
    return read_answer(Streamed(0.0, 1.0, events, 0), chat, limit=limit)


def ended(tokens: int, **extra: Any) -> dict[str, Any]:
    choice = {"text": "x", "token_ids": [7] * tokens, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}, **extra}


def vllm(accepted: list[int], drafted: list[int]) -> dict[str, Any]:
    steps = {"per_step_accepted": accepted, "per_step_drafted": drafted}
    counts = {"num_spec_steps": len(accepted), "num_draft_tokens": sum(drafted)}
    counts["num_accepted_draft_tokens"] = sum(accepted)
    return {"metrics": {"speculative_decoding": {**steps, **counts}}}


@pytest.mark.parametrize(
    ("tokens", "rounds"),
    [
        (9, (RoundRecord(5, 3, 4), RoundRecord(5, 3, 4))),  # one token of the prompt, then 4 and 4
        (8, (RoundRecord(5, 3, 4), RoundRecord(3, 3, 3))),  # the last round is cut by one token
        (6, (RoundRecord(5, 3, 4), RoundRecord(1, 1, 1))),
        (5, (RoundRecord(5, 3, 4),)),
        (1, ()),
    ],
)
def test_rounds_of_vllm_stop_where_the_text_ends(
    tokens: int, rounds: tuple[RoundRecord, ...]
) -> None:
    acceptance = answer(ended(tokens, **vllm([3, 3], [5, 5]))).acceptance
    assert acceptance is not None and acceptance.by_round == rounds
    assert acceptance.rounds == len(rounds)
    assert acceptance.accepted == sum(r.accepted for r in rounds)


def test_engines_report_under_different_names() -> None:
    summary = vllm([3, 3], [5, 5])
    del summary["metrics"]["speculative_decoding"]["per_step_accepted"]
    assert answer(ended(8, **summary)).acceptance == Acceptance(2, 10, 6)
    timings = {"timings": {"draft_n": 10, "draft_n_accepted": 6, "predicted_n": 8}}
    assert answer(ended(8, **timings)).acceptance == Acceptance(None, 10, 6)
    details = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 10, "spec_num_correct_drafts": 6}
    sglang = {"sglext": {"spec_tokens_details": details}}
    assert answer(ended(8, **sglang)).acceptance == Acceptance(2, 10, 6)
    older = {"spec_verify_ct": 2, "spec_draft_token_num": 10, "spec_accept_token_num": 6}
    value = ended(8)
    value["choices"][0]["meta_info"] = older
    assert answer(value).acceptance == Acceptance(2, 10, 6)
    assert answer(ended(8)).acceptance is None


def timed(*sums: tuple[int, int, int]) -> Answer:
    """The answer of llama.cpp whose chunks tell these sums: tokens, drafts and accepted drafts."""
    chunks = [
        {"choices": [{"text": "x"}], "timings": dict(zip(LLAMACPP, values, strict=True))}
        for values in sums
    ]
    return answer(*chunks, ended(sums[-1][0], **{"timings": chunks[-1]["timings"]}))


def test_rounds_of_llamacpp_are_the_growth_of_its_sums() -> None:
    one = [(2, 5, 3), (3, 5, 3), (4, 5, 3), (5, 5, 3)]
    acceptance = timed((1, 0, 0), *one, (6, 5, 3), (7, 10, 8), (8, 10, 8), (9, 10, 8)).acceptance
    # The sixth token has no drafts; the text ends in the middle of the last round.
    assert acceptance == Acceptance(2, 8, 6, (RoundRecord(5, 3, 4), RoundRecord(3, 3, 3)))
    merged = timed((1, 0, 0), *one, (7, 10, 3), (8, 10, 3)).acceptance
    assert merged == Acceptance(None, 10, 3)  # the sixth token had no chunk of its own
    assert timed((1, 0, 0), (2, 5, 3), (5, 5, 3)).acceptance == Acceptance(
        1, 5, 3, (RoundRecord(5, 3, 4),)
    )
    with pytest.raises(UsageError, match="no counts of drafts"):
        timed((1, 0, 0), (2, 3, 5))


def test_refusals_are_noticed_by_how_they_begin() -> None:
    def refuses(text: str, reason: str = "stop") -> bool:
        return answer({"choices": [{"text": text, "finish_reason": reason}]}).refused

    assert (
        refuses(" I\u2019m sorry, but no.")
        and refuses("I cannot help")
        and refuses("", "content_filter")
    )
    assert not refuses("I can help") and not refuses("The rule says: I cannot") and not refuses("")


@pytest.mark.parametrize("wrong", [([9], [5]), ([-1], [5]), ([1.5], [5]), ([1, 2], [5])])
def test_impossible_reports_are_refused(wrong: tuple[list[Any], list[Any]]) -> None:
    with pytest.raises(UsageError, match="no counts of drafts"):
        answer(ended(8, **vllm(*wrong)))


def test_impossible_sums_are_refused() -> None:
    timings = {"timings": {"draft_n": 1, "draft_n_accepted": 100, "predicted_n": 8}}
    details = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 1, "spec_num_correct_drafts": 9}
    for report in (timings, {"sglext": {"spec_tokens_details": details}}):
        with pytest.raises(UsageError, match="more accepted drafts than drafts"):
            answer(ended(8, **report))
    with pytest.raises(
        UsageError, match="answers 8 token_ids, reports 8 completion_tokens and was"
    ):
        answer(ended(8), limit=7)
    few = {**ended(8), "usage": {"completion_tokens": 5}}
    assert answer(few).output_tokens == 8 and answer(few).contradictions == (UNEQUAL,)


def test_sums_that_jump_far_have_no_rounds() -> None:
    far = 2**31 - 1
    jumps = [(1, 0, 0), (far - 1, 0, 0), (far, 5, 3)]
    chunks = [
        {"choices": [{"text": "x"}], "timings": dict(zip(LLAMACPP, sums, strict=True))}
        for sums in jumps
    ]
    acceptance = answer(*chunks, ended(8, timings=chunks[-1]["timings"])).acceptance
    assert acceptance == Acceptance(None, 5, 3)


def test_tokens_are_counted_by_ids_and_timed_by_the_chunks_that_hold_them() -> None:
    role = {"choices": [{"text": "", "token_ids": []}]}
    first = {"choices": [{"text": "", "token_ids": [1, 2]}]}  # its text comes later
    last = {"choices": [{"text": "abc", "token_ids": [3, 4, 0], "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    got = answer(role, first, last, usage)
    assert got.token_ids == [1, 2, 3, 4]  # without the end token
    assert got.output_tokens == 5 and got.prompt_tokens == 3
    assert got.first_token == pytest.approx(0.2)
    assert got.inter_token_seconds == pytest.approx(0.1 / 3)


def test_an_empty_text_has_no_tokens_but_its_server_returns_them() -> None:
    choice = {"text": "", "token_ids": [0], "finish_reason": "stop"}
    assert answer({"choices": [choice], "usage": {"completion_tokens": 1}}).token_ids == []


def test_a_stop_string_is_not_the_end_token() -> None:
    choice = {"text": "a", "token_ids": [5, 6], "finish_reason": "stop", "stop_reason": "\n"}
    got = answer({"choices": [choice], "usage": {"completion_tokens": 2}})
    assert got.stopped_by == "stop" and got.token_ids == [5, 6]
    verbose = {"__verbose": {"stop_type": "word", "tokens": [5]}}
    choice = {"text": "a", "finish_reason": "stop"}
    assert answer({"choices": [choice], **verbose}).stopped_by == "stop"


def test_chat_has_messages_and_thoughts_are_no_text() -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]}
    text = {"choices": [{"delta": {"content": "yes"}}]}
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    got = answer(thought, text, end, chat=True)
    assert got.text == "yes" and got.first_token == pytest.approx(0.1)
    assert got.token_ids is None and got.output_tokens is None
    later = {"choices": [{"delta": {"content": "no"}, "finish_reason": "stop"}]}
    counted = answer(text, later, {"choices": [], "usage": {"completion_tokens": 5}}, chat=True)
    assert counted.inter_token_seconds == pytest.approx(0.1 / 4)  # one token came first


def test_shares_add_up_to_the_time_in_which_requests_are_in_flight() -> None:
    spans = [(0.0, 1.0, 4.0), (0.0, 2.0, 4.0), (10.0, 11.0, 12.0)]
    shares = shares_of(spans)
    assert shares == [(0.5, 1.5), (1.0, 1.0), (1.0, 1.0)]
    assert sum(map(sum, shares)) == 4 + 2


def completed(ids: list[int], text: str, usage: int | None, **choice: Any) -> dict[str, Any]:
    """A whole answer, with a choice of these ids and this text."""
    told = {} if usage is None else {"usage": {"completion_tokens": usage}}
    whole = {"text": text, "token_ids": ids, "finish_reason": "stop"}
    return {"choices": [{**whole, **choice}], **told}


def counted(value: dict[str, Any], *stop: str, known: bool = True) -> tuple[Any, ...]:
    """Return an answer's ids, their number and the contradictions, with the tokenizer or not."""
    tokens = tokenizer() if known else None
    streamed = Streamed(0.0, 1.0, [Event(0.1, value)], 0)
    got = read_answer(streamed, tokenizer=tokens, stop=stop)
    return got.token_ids, got.output_tokens, got.contradictions


A, B, C, ABC, SPACE = 0, 1, 2, 6, 8  # of the toy's tokens
STOPPED = {"stop_reason": " "}


@pytest.mark.parametrize("usage", [4, 7, None])
def test_tokens_behind_a_stop_string_are_none(usage: int | None) -> None:
    exact = completed([A, ABC, B, SPACE], "aabcb", usage, **STOPPED)
    contradictions = (UNEQUAL,) if usage == 7 else ()
    assert counted(exact, " ") == ([A, ABC, B, SPACE], 4, contradictions)
    for leaked in ([C, C, C], [SPACE], [A]):
        behind = completed([A, ABC, B, SPACE, *leaked], "aabcb", usage, **STOPPED)
        assert counted(behind, " ") == ([A, ABC, B, SPACE], 4, (BEHIND,))
    # Some servers do not return the tokens of the stop string.
    assert counted(completed([A, ABC, B], "aabcb", None, **STOPPED), " ")[1:] == (3, ())


def test_ids_that_do_not_spell_the_text_are_not_counted() -> None:
    assert counted(completed([C, C, C, C], "abc ab", 4, **STOPPED)) == (None, 3, (UNLIKE,))
    assert counted(completed([END, A, A], "bbb", 3)) == (None, 4, (UNLIKE,))  # with the end token


def test_an_end_token_and_spaces_that_a_server_strips_are_no_contradiction() -> None:
    assert counted(completed([A, B, END], "ab", 3)) == ([A, B], 3, ())
    assert counted(completed([SPACE, A, B, SPACE], "ab", 4, **STOPPED))[1:] == (4, ())
    assert counted(completed([A, B, END], "ab</s>", 3)) == ([A, B], 3, ())
    assert counted(completed([], "", 1)) == (None, 1, ())


@pytest.mark.parametrize(
    ("usage", "expected"), [(30, (30, ())), (33, (33, ())), (51, (31, (UNDELIVERED,)))]
)
def test_usage_counts_if_it_fits_the_text(usage: int, expected: tuple[Any, ...]) -> None:
    text = "abc " * 15  # 30 tokens and the end
    assert counted(completed([], text, usage))[1:] == expected
    assert counted(completed([], text, usage), known=False)[1:] == (usage, ())


def test_without_a_tokenizer_ids_decide_and_a_token_has_a_byte() -> None:
    many = [A] * 100
    assert counted(completed(many, "a" * 100, 165, **STOPPED), known=False) == (
        *(many, 100),
        (UNEQUAL,),
    )
    assert counted(completed(many, "a" * 100, 60, **STOPPED), known=False)[1:] == (100, (UNEQUAL,))
    assert counted(completed([], "a" * 10, 60), known=False)[1:] == (None, (UNDELIVERED,))


def test_thoughts_that_are_not_delivered_are_no_tokens() -> None:
    value: dict[str, Any] = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
    value["usage"] = {
        "completion_tokens": 50,
        "completion_tokens_details": {"reasoning_tokens": 48},
    }
    got = answer(value, chat=True)
    assert (got.output_tokens, got.contradictions) == (2, (HIDDEN,))
    value["choices"][0]["message"]["reasoning"] = "hm " * 48
    got = answer(value, chat=True)
    assert (got.output_tokens, got.contradictions) == (50, ())
    assert got.delivered_bytes == 3 + 3 * 48


def test_a_server_that_ignores_stop_strings_is_named() -> None:
    value = completed([A, SPACE, B, B], "a bb", 4)
    assert counted(value, " ") == ([A, SPACE], 2, (BEHIND, UNSTOPPED))
    assert counted(value, " ", known=False) == ([A, SPACE, B, B], 4, (UNSTOPPED,))


@pytest.mark.parametrize("seconds", [0.0, 1e-5, 1e-4])
def test_chunks_that_a_proxy_holds_back_have_no_times(seconds: float) -> None:
    def held(first: float, between: float, chunks: int = 20) -> Answer:
        values = [{"choices": [{"delta": {"content": 20 // chunks * "a"}}]} for _ in range(chunks)]
        events = [Event(first + between * n, value) for n, value in enumerate(values)]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"completion_tokens": max(chunks, 20)}}
        ends = [Event(events[-1].seconds, value) for value in (end, usage)]
        return read_answer(Streamed(0.0, 1.0, [*events, *ends], 0), chat=True)

    for answer in (held(0.3, seconds), held(0.3, 0, chunks=1)):
        assert answer.contradictions == (AT_ONCE,)
        assert answer.first_token is answer.inter_token_seconds is None
    for fast in (held(0.3, 2e-3), held(0.001, 1e-4), held(0.02, 0.001, chunks=2)):
        assert fast.contradictions == () and fast.first_token is not None
