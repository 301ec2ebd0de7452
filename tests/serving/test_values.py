"""What servers say of failures, and halves of characters, in the forms that occur."""

import json
from typing import Any

import pytest

from specbench.serving.values import Failure, error_words, failure_of, parsed, whole

ERRORS: list[tuple[Any, str]] = [
    ({"error": {"message": "too long", "type": "invalid", "code": "x"}}, "too long"),  # OpenAI
    ({"object": "error", "message": "too long", "code": 400}, "too long"),  # older vLLM
    ({"error": "too long"}, "too long"),  # Ollama, TGI
    ({"message": "too long"}, "too long"),
    ({"detail": "too long"}, "too long"),  # FastAPI
    ({"detail": [{"loc": ["body", "top_k"], "msg": "bad"}, {"msg": "b"}]}, "body.top_k: bad; b"),
    ({"detail": {"error": {"message": "too long"}}}, "too long"),
    ([{"error": {"code": 400, "message": "too long"}}], "too long"),  # Gemini
    ({"errors": [{"message": "a"}, {"message": "b"}]}, "a; b"),
    ({"error": {"message": "", "detail": "too long"}}, "too long"),
]


@pytest.mark.parametrize(("value", "words"), ERRORS)
def test_the_words_of_a_server_are_found_in_every_form(value, words):
    assert error_words(json.dumps(value).encode()) == words
    failure = failure_of(value)
    assert failure is not None and failure.words == f"fails in its answer: {words}"


def test_other_content_is_quoted_and_a_long_text_is_cut():
    assert error_words(b"<html>gone\x1b") == "<html>gone\ufffd"
    assert error_words(b'{"e": 1}') == '{"e": 1}'
    assert error_words(json.dumps({"error": 300 * "a"}).encode()) == 200 * "a" + "..."
    deep = b'{"error": ' * 500 + b'"x"' + b"}" * 500
    assert error_words(deep).startswith('{"error": {"error"')


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"delta": {"content": "a"}}], "error": None},
        {"choices": [], "usage": {"completion_tokens": 3}},
        {"choices": [{"delta": {}, "finish_reason": None}]},
        *({"choices": [{"finish_reason": r}]} for r in ("stop", "eos", "eos_token", "MAX_TOKENS")),
        *({"choices": [{"finish_reason": r}]} for r in ("tool-calls", "content_filter", "length")),
        {"ok": 1},
        "error",
        [1],
        None,
    ],
)
def test_what_is_no_failure(value):
    assert failure_of(value) is None


@pytest.mark.parametrize("reason", ["abort", "error", "timeout", "cancelled", "load", ""])
def test_a_reason_that_is_no_end_is_a_failure(reason):
    by = f"ends an answer by the finish_reason {reason}"
    value: dict[str, Any] = {"choices": [{"delta": {"content": "so"}, "finish_reason": reason}]}
    assert failure_of(value) == Failure(by, 0)
    for further in ({"error_message": "oom"}, {"error": {"message": "oom"}}):
        assert failure_of(value | further) == Failure(f"{by} (oom)", 0)
    value["choices"][0]["error"] = {"message": "oom", "code": 502}  # OpenRouter
    assert failure_of(value) == Failure(f"{by} (oom)", 0)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"error": {"message": "m", "code": 529}}, 529),
        ({"message": "m", "status_code": 500}, 500),
        ({"error": {"message": "m"}, "code": 429}, 429),
        ({"error": {"message": "m", "code": "rate_limit"}}, 200),
        ({"error": {"message": "m", "code": 7}}, 200),
    ],
)
def test_the_status_in_an_error_is_read(value, status):
    failure = failure_of(value)
    assert failure is not None and failure.status == status


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["a\ud83d", "\ude00 b"], "a\U0001f600 b"),
        (["\ud83d", "\ude00\ud83d", "\ude01"], "\U0001f600\U0001f601"),
        (["a\ud83d", "b"], "a\ufffdb"),
        (["\ude00a"], "\ufffda"),
        (["cut \ud83d"], "cut \ufffd"),
        (["\ufeffa", "é"], "\ufeffaé"),
    ],
)
def test_halves_of_a_character_are_joined_or_replaced(parts, text):
    assert whole(parts) == text
    assert whole(parsed(json.dumps(part).encode()) for part in parts) == text
    in_bytes = [f'"{part}"'.encode(errors="surrogatepass") for part in parts]
    assert whole(map(parsed, in_bytes)) == text
