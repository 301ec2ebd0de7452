"""How engines' reports are brought to one definition, and how requests share the time."""

from typing import Any

import pytest

from specbench.decoding.records import NO_WEIGHT, RoundRecord
from specbench.errors import UsageError
from specbench.serving import delivered
from specbench.serving.answers import Acceptance, Answer, read_answer
from specbench.serving.client import Event, Streamed

from ..told import listed
from ..validation.toy import END, tokenizer

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


def test_rounds_of_vllm_stop_where_the_text_ends():
    for tokens, rounds in (
        (9, (RoundRecord(5, 3, 4), RoundRecord(5, 3, 4))),  # one token of the prompt, then 4 and 4
        (8, (RoundRecord(5, 3, 4), RoundRecord(3, 3, 3))),  # the last round is cut by one token
        (6, (RoundRecord(5, 3, 4), RoundRecord(1, 1, 1))),
        (5, (RoundRecord(5, 3, 4),)),
        (1, ()),
    ):
        acceptance = answer(ended(tokens, **vllm([3, 3], [5, 5]))).acceptance
        assert acceptance is not None and acceptance.by_round == rounds
        assert acceptance.rounds == len(rounds)
        assert acceptance.accepted == sum(r.accepted for r in rounds)


def test_engines_report_under_different_names():
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


def timed(*sums: tuple[int, int, int], tokens: int | None = None) -> Answer:
    """The answer of llama.cpp whose chunks tell these sums: tokens, drafts and accepted drafts."""
    timings = [dict(zip(LLAMACPP, values, strict=True)) for values in sums]
    chunks = [{"choices": [{"text": "x"}], "timings": values} for values in timings]
    return answer(*chunks, ended(tokens or sums[-1][0], timings=chunks[-1]["timings"]))


def test_rounds_of_llamacpp_are_the_growth_of_its_sums():
    one = [(2, 5, 3), (3, 5, 3), (4, 5, 3), (5, 5, 3)]
    acceptance = timed((1, 0, 0), *one, (6, 5, 3), (7, 10, 8), (8, 10, 8), (9, 10, 8)).acceptance
    # The sixth token has no drafts; the text ends in the middle of the last round.
    assert acceptance == Acceptance(2, 8, 6, (RoundRecord(5, 3, 4), RoundRecord(3, 3, 3)))
    merged = timed((1, 0, 0), *one, (7, 10, 3), (8, 10, 3)).acceptance
    assert merged == Acceptance(None, 10, 3)  # the sixth token had no chunk of its own
    single = timed((1, 0, 0), (2, 5, 3), (5, 5, 3)).acceptance
    assert single == Acceptance(1, 5, 3, (RoundRecord(5, 3, 4),))
    far = 2**31 - 1  # sums that jump far have no rounds
    jumping = timed((1, 0, 0), (far - 1, 0, 0), (far, 5, 3), tokens=8)
    assert jumping.acceptance == Acceptance(None, 5, 3)
    with pytest.raises(UsageError, match="no counts of drafts"):
        timed((1, 0, 0), (2, 3, 5))


def test_refusals_are_noticed_by_how_they_begin_and_an_empty_name_of_the_model_is_none():
    def refuses(text, reason="stop"):
        return answer({"choices": [{"text": text, "finish_reason": reason}]}).refused

    assert refuses(" I\u2019m sorry, but no.") and refuses("I cannot help")
    assert refuses("", "content_filter") and not refuses("")
    assert not refuses("I can help") and not refuses("The rule says: I cannot")
    assert chatted({"content": None, "refusal": "I can't help"}).refused  # OpenAI's part
    first, last = {"text": "a"}, {"text": "", "finish_reason": "stop"}
    named = (("", first), ("m", first), ("", last))
    values = [{"model": name, "choices": [choice]} for name, choice in named]
    assert answer(*values).model == "m" and answer(values[2]).model is None


def test_reasons_of_engines_are_brought_to_one_word():
    for reason, ended in (
        *((reason, "eos") for reason in ("stop", "eos", "eos_token", "end_turn")),
        *((reason, "stop") for reason in ("stop_sequence", "stop-string")),
        *((reason, "length") for reason in ("length", "MAX_TOKENS", "model_length")),
        *((reason, "content_filter") for reason in ("content_filter", "SAFETY", "refusal")),
        *((reason, "tool_calls") for reason in ("tool_calls", "tool_use", "function_call")),
        ("repetition", "repetition"),
    ):
        got = answer({"choices": [{"text": "a", "finish_reason": reason}]})
        assert (got.finish_reason, got.stopped_by) == (reason, ended)


def test_tokens_from_a_cache_are_read():
    for told, cached in listed("serving/cached.txt"):
        choice = {"choices": [{"text": "a", "finish_reason": "stop"}]}
        assert answer({**choice, **told}).cached_tokens == cached


@pytest.mark.parametrize("chat", [True, False])
def test_halves_of_a_character_in_two_chunks_are_one(chat):
    parts = ("so \ud83d", "\ude00 and \ud83d", "x")
    choices = [{"delta": {"content": part}} if chat else {"text": part} for part in parts]
    last = {"finish_reason": "stop", **({} if chat else {"text": ""})}
    got = answer(*({"choices": [choice]} for choice in (*choices, last)), chat=chat)
    assert got.text == "so \U0001f600 and \ufffdx"
    assert got.delivered_bytes == len(got.text.encode())


def test_impossible_reports_and_sums_are_refused():
    for accepted in ([9], [-1], [1.5], [1, 2]):
        with pytest.raises(UsageError, match="no counts of drafts"):
            answer(ended(8, **vllm(accepted, [5])))
    timings = {"timings": {"draft_n": 1, "draft_n_accepted": 100, "predicted_n": 8}}
    details = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 1, "spec_num_correct_drafts": 9}
    for report in (timings, {"sglext": {"spec_tokens_details": details}}):
        with pytest.raises(UsageError, match="more accepted drafts than drafts"):
            answer(ended(8, **report))
    with pytest.raises(UsageError, match="answers 8 token_ids, reports 8 completion_tokens and"):
        answer(ended(8), limit=7)
    few = {**ended(8), "usage": {"completion_tokens": 5}}
    assert answer(few).output_tokens == 8 and answer(few).contradictions == (delivered.UNEQUAL,)


def test_tokens_are_counted_by_ids_without_the_end_and_timed_by_their_chunks():
    role = {"choices": [{"text": "", "token_ids": []}]}
    first = {"choices": [{"text": "", "token_ids": [1, 2]}]}  # its text comes later
    last = {"choices": [{"text": "abc", "token_ids": [3, 4, 0], "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    got = answer(role, first, last, usage)
    assert got.token_ids == [1, 2, 3, 4]  # without the end token
    assert got.output_tokens == 5 and got.prompt_tokens == 3
    assert got.first_token == pytest.approx(0.2)
    assert got.inter_token_seconds == pytest.approx(0.1 / 3)
    choice = {"text": "", "token_ids": [0], "finish_reason": "stop"}
    assert answer({"choices": [choice], "usage": {"completion_tokens": 1}}).token_ids == []
    choice = {"text": "a", "token_ids": [5, 6], "finish_reason": "stop", "stop_reason": "\n"}
    got = answer({"choices": [choice], "usage": {"completion_tokens": 2}})
    assert got.stopped_by == "stop" and got.token_ids == [5, 6]
    verbose = {"__verbose": {"stop_type": "word", "tokens": [5]}}
    choice = {"text": "a", "finish_reason": "stop"}
    assert answer({"choices": [choice], **verbose}).stopped_by == "stop"
    for matched, stopped_by in (("\n", "stop"), (0, "eos")):  # of SGLang
        assert answer({"choices": [{**choice, "matched_stop": matched}]}).stopped_by == stopped_by


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_chat_has_messages_and_thoughts_are_no_text(key):
    thought = {"choices": [{"delta": {key: "hm", "content": None}}]}
    text = {"choices": [{"delta": {"content": "yes"}}]}
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    got = answer(thought, text, end, chat=True)
    assert got.text == "yes" and got.first_token == pytest.approx(0.1)
    assert got.token_ids is None and got.output_tokens is None
    later = {"choices": [{"delta": {"content": "no"}, "finish_reason": "stop"}]}
    counted = answer(text, later, {"choices": [], "usage": {"completion_tokens": 5}}, chat=True)
    assert counted.inter_token_seconds == pytest.approx(0.1 / 2)  # 3 of 5 bytes came first
    # Thoughts that are not delivered are no tokens.
    message = {"content": "yes"}
    value: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}]}
    details = {"completion_tokens_details": {"reasoning_tokens": 48}}
    value["usage"] = {"completion_tokens": 50, **details}
    got = answer(value, chat=True)
    assert (got.output_tokens, got.contradictions) == (2, (delivered.HIDDEN,))
    message[key] = "hm " * 48
    got = answer(value, chat=True)
    assert (got.output_tokens, got.contradictions, got.delivered_bytes) == (50, (), 3 + 3 * 48)


def test_shares_add_up_to_the_time_in_which_requests_are_in_flight():
    shares = delivered.shares_of([(0.0, 1.0, 4.0), (0.0, 2.0, 4.0), (10.0, 11.0, 12.0)])
    assert shares == [(0.5, 1.5), (1.0, 1.0), (1.0, 1.0)] and sum(map(sum, shares)) == 4 + 2


A, B, C, ABC, SPACE = 0, 1, 2, 6, 8  # of the toy's tokens
ABCS = "abc " * 15  # of 30 tokens


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_tokens_that_the_text_does_not_have_are_not_counted(has_tokenizer):
    for ids, text, usage, exact, unknown in (
        # Behind a stop string, with and without usage; some return no token of the string.
        ([A, ABC, B, SPACE], "aabcb", 4, (4,), (4,)),
        ([A, ABC, B], "aabcb", None, (3,), (3,)),
        ([A, ABC, B, SPACE, C, C], "aabcb", 6, (4, delivered.BEHIND), (6,)),
        ([A, ABC, B, SPACE, SPACE], "aabcb", None, (4, delivered.BEHIND), (5,)),
        ([A, ABC, B, SPACE], "aabcb", 7, (4, delivered.UNEQUAL), (4, delivered.UNEQUAL)),
        ([A, ABC, B, SPACE], "aabcb", 2, (4, delivered.UNEQUAL), (4, delivered.UNEQUAL)),
        (
            *([A, SPACE, B, B], "a bb", 4, (2, delivered.BEHIND, delivered.UNSTOPPED)),
            (4, delivered.UNSTOPPED),
        ),
        *(([*other, C], "abc", 4, (1, delivered.UNLIKE), (4,)) for other in ([C, C, C], [B, A, B])),
        ([SPACE, A, B], "ab", 3, (3,), (3,)),  # the text was stripped
        ([SPACE], "", 1, (1,), (1,)),
        ([A, B, END], "ab</s>", 3, (3,), (3,)),  # the end token was shown
        ([SPACE, A, B], "", 3, (1, delivered.BEHIND), (3,)),
        ([], ABCS.replace(" ", "a"), 33, (33,), (33,)),
        ([], ABCS.replace(" ", "a"), 51, (30, delivered.UNDELIVERED), (51,)),
        ([], "abc", 60, (1, delivered.UNDELIVERED), (None, delivered.UNDELIVERED)),
        ([], "abc", 120, (1, delivered.UNDELIVERED), (None, delivered.UNDELIVERED)),
    ):
        choice = {"text": text, "token_ids": ids, "finish_reason": "stop", "stop_reason": " "}
        value = {"choices": [choice], "usage": {"completion_tokens": usage}}
        streamed = Streamed(0.0, 1.0, [Event(0.1, value)], 0)
        got = read_answer(streamed, tokenizer=tokenizer() if has_tokenizer else None, stop=[" "])
        assert (got.output_tokens, *got.contradictions) == (exact if has_tokenizer else unknown)
        if got.token_ids:
            assert got.token_ids == ids[: got.output_tokens]


@pytest.mark.parametrize(
    ("first", "between", "chunks", "held"),
    [
        *((0.3, seconds, 20, True) for seconds in (0.0, 1e-5, 1e-4)),
        *((0.3, 0.0, 1, True), (0.3, 1e-5, 2, True)),
        *((0.3, 2e-3, 20, False), (1e-3, 1e-4, 20, False), (0.02, 0.0, 2, False)),
    ],
)
def test_chunks_that_a_proxy_holds_back_have_no_times(first, between, chunks, held):
    content = {"choices": [{"delta": {"content": 20 // chunks * "a"}}]}
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 20}}
    times = [first + between * number for number in range(chunks)]
    events = [*(Event(seconds, content) for seconds in times), Event(times[-1], end)]
    got = read_answer(Streamed(0.0, 1.0, events, 0), chat=True)
    assert got.contradictions == ((delivered.AT_ONCE,) if held else ())
    assert got.first_token == (None if held else first)
    assert held <= (got.inter_token_seconds is None)


def row(accepted: int, proposed: int = 2, **changes: Any) -> list[Any]:
    values = {
        **{"counts": [3 + accepted, accepted, proposed], "new": [7, 8, 9], "checks": [0, 1, 0, 0]},
        **{"drafted": [7, 8], "agreed": [1, 0], "accept": [1, 0.5], "expected": [0.9, 0.4]},
        **{"weights": [NO_WEIGHT, NO_WEIGHT], "zero_p": [0, 0, 1]},
    }
    return [number for part in (values | changes).values() for number in part]


def test_rounds_stop_where_the_text_ends_and_what_is_none_is_refused():
    whole = RoundRecord(2, 2, 3, None, (True, False), (0.9, 0.4), zero_p=1)
    rejected = row(1)
    corrected = RoundRecord(2, 1, 2, 8, (True,), (0.9, 0.4))
    assert delivered.read_rounds([row(2), rejected], 6) == (whole, corrected)
    cut = RoundRecord(1, 1, 1, None, (True,), (0.9,))
    assert delivered.read_rounds([row(2), rejected, row(2)], 5) == (whole, cut)
    assert delivered.read_rounds([row(2)], 1) == ()
    for rounds in (
        *(None, {"rounds": []}, [[]], [row(1)[:-1]], [[True, *row(1)[1:]]], [["1", *row(1)[1:]]]),
        *([row(1, drafted=[7, 2**40])], [row(1, drafted=[7, -1])], [row(1, drafted=[7, 500])]),
        *([row(2, 1)], [row(1, 3)], [row(-1)], [row(1, expected=[0.9, 1.5])]),
        *([row(1, weights=[0.5, -3])], [row(1, checks=[-1, 1, 0, 0])]),
    ):
        with pytest.raises(UsageError, match="the server tells"):
            delivered.read_rounds(rounds, 9, vocabulary=500)


def chatted(*deltas: dict[str, Any], **last: Any) -> Answer:
    """The answer of a stream of deltas, one every 0.1 s, with what its last value has beside."""
    values = [{"choices": [{"delta": delta, "finish_reason": ""}]} for delta in deltas]
    return answer(*values, {"choices": [{"delta": {}, "finish_reason": "stop"}], **last}, chat=True)


CALL = {"index": 0, "id": "call_1234567890", "type": "function"}


def test_an_answer_has_a_text_thoughts_calls_or_nothing():
    for delta, content, text in listed("serving/contents.txt"):
        got = chatted(delta)
        assert (got.content, got.text) == (content, text)


def test_calls_in_parts_are_a_text_of_their_names_and_arguments():
    parts = [{"name": "find"}, {"arguments": '{"a"'}, {"arguments": ": 1}"}]
    deltas = [{"tool_calls": [{**CALL, "function": part}]} for part in parts]
    deltas.append({"tool_calls": [{**CALL, "index": 1, "function": {"name": "end"}}]})
    got = chatted(*deltas)
    assert got.text == 'find({"a": 1})\nend' and got.delivered_bytes == len(got.text)


def test_counts_below_the_words_of_a_text_are_contradictions():
    for counted, deltas, output in (
        (1, [{"content": "so "}] * 20, None),  # that of the last chunk alone
        (4, [{"content": "so " * 20}], None),
        (3, [{"content": "hm " * 10, "reasoning_content": "hm " * 10}], None),
        *((1, [{"content": "4"}], 1), (12, [{"content": "so " * 20}], 12)),
        *(("20", [{"content": "so "}] * 20, 20), (20.0, [{"content": "so "}] * 20, 20)),
    ):
        got = chatted(*deltas, usage={"completion_tokens": counted})
        assert got.output_tokens == output
        assert got.contradictions == (() if output else (delivered.UNDELIVERED,))
        assert output or got.inter_token_seconds is None
        usage = {"usage": {"completion_tokens": 1}}  # of each chunk alone, without words
        part = {"choices": [{"delta": {"content": "\u4f60\u597d"}}], **usage}
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], **usage}
        assert answer(*[part] * 20, end, chat=True).contradictions == (delivered.UNDELIVERED,)


def test_the_tokens_of_the_first_chunk_are_not_between_tokens():
    for first, later, count, seconds in (
        ({}, 8, 20, 0.9 / 8),  # 12 of 20 tokens by the share of the text
        ({"usage": {"completion_tokens": 10}}, 8, 20, 0.9 / 10),  # while it streams
        ({"timings": {"predicted_n": 13}}, 8, 20, 0.9 / 7),
        ({"usage": {"completion_tokens": 20}}, 8, 20, 0.9 / 8),  # of all, which is no count
        ({}, 18, 20, 1.9 / 19),  # a chunk for each token, and one for the end
    ):
        chunk = {"choices": [{"delta": {"content": "so " * 12}}], **first}
        values = [{"choices": [{"delta": {"content": "so "}}]}] * later
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"completion_tokens": count}}
        got = answer(chunk, *values, end, usage, chat=True)
        assert got.inter_token_seconds == pytest.approx(seconds)
    end["choices"][0]["finish_reason"] = "length"  # which is no token
    cut = answer(chunk, *values, end, usage, chat=True)
    assert cut.inter_token_seconds == pytest.approx(1.8 / 19)


@pytest.mark.parametrize(
    ("thoughts", "counted", "total", "output"),
    [
        ("", 80, 100, 20),  # hidden
        ("Thinking about the numbers.", 80, 100, 20),  # a summary
        ("hm " * 60, 80, 100, 80),
        ("", 20, 100, 20),  # counted beside the text's, as by xAI
        ("hm " * 60, 20, 100, 80),  # and delivered
        (f"<think>{'嗯' * 60}</think>", 80, 100, 80),  # in the text
    ],
)
def test_hidden_thoughts_are_no_tokens_of_the_answer(thoughts, counted, total, output):
    details = {"completion_tokens_details": {"reasoning_tokens": 60}}
    usage = {"prompt_tokens": 20, "completion_tokens": counted, "total_tokens": total, **details}
    part = "content" if thoughts.startswith("<think>") else "reasoning"
    got = chatted({part: thoughts}, {"content": "so " * 20}, usage=usage)
    assert got.output_tokens == output
    assert (delivered.HIDDEN in got.contradictions) == (output == 20)


def test_nulls_are_absent_and_a_marked_end_needs_no_reason():
    nulls = {"draft_n": None, "draft_n_accepted": None, "predicted_n": 2}
    details = {"spec_verify_ct": None, "spec_num_correct_drafts": None}
    got = chatted(
        *({"content": "so", "tool_calls": None} for _ in range(2)),
        timings=nulls,
        sglext={"spec_tokens_details": details},
        metrics={"speculative_decoding": {"num_accepted_draft_tokens": None}},
        usage={"completion_tokens": None, "prompt_tokens": None},
    )
    assert got.acceptance is None and got.text == "soso"
    for reason in (None, "", "null"):
        value = {"choices": [{"delta": {"content": "so"}, "finish_reason": reason}]}
        streamed = Streamed(0.0, 1.0, [Event(0.1, value)], 0, is_done=True)
        ended = read_answer(streamed, chat=True)
        assert (ended.text, ended.stopped_by, ended.finish_reason) == ("so", "eos", None)
        with pytest.raises(UsageError, match="without choices, text and finish_reason"):
            read_answer(streamed._replace(is_done=False), chat=True)
