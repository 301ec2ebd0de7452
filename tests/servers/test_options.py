"""Neutral sampling in every engine's words, and servers that refuse some of them."""

from collections.abc import Callable
from typing import Any

import pytest

from specbench.client import Client, Streamed
from specbench.servers.options import LLAMACPP_NEUTRAL, NEUTRAL, WITH_TOKENS, learn_dialect

from .fake import Fake, Handler, serving

BODY = {"prompt": "a", "max_tokens": 4, "temperature": 1.0, "seed": 1}
BODY |= NEUTRAL | LLAMACPP_NEUTRAL | WITH_TOKENS
STANDARD = {"prompt", "max_tokens", "temperature", "seed", "top_p"}
STANDARD |= {"presence_penalty", "frequency_penalty"}

Problem = Callable[[dict[str, Any]], str]


def sglang(body: dict[str, Any]) -> str:
    return "top_k must be -1 (disable) or at least 1" if body.get("top_k") == 0 else ""


def openai(body: dict[str, Any]) -> str:
    """Names one argument at a time."""
    return next((f"Unrecognized argument: {name}" for name in body if name not in STANDARD), "")


def tensorrt(body: dict[str, Any]) -> str:
    taken = STANDARD | NEUTRAL.keys()
    return "Extra inputs are not permitted" if body.keys() - taken else ""


def no_penalty(body: dict[str, Any]) -> str:
    return "bad request" if "repetition_penalty" in body or "min_p" in body else ""


def not_off(body: dict[str, Any]) -> str:
    """Text Generation Inference takes no top_p of 1; this server takes no top_k at all."""
    return "top_p must be below 1" if body.get("top_p") == 1 or "top_k" in body else ""


@pytest.mark.parametrize(
    ("problem", "changed", "unset"),
    [
        (lambda body: "", {}, []),
        (sglang, {"top_k": -1}, []),
        (openai, {}, ["top_k", "min_p", "repetition_penalty"]),
        (tensorrt, {}, []),
        (no_penalty, {}, ["min_p", "repetition_penalty"]),
        (not_off, {}, ["top_p", "top_k"]),
    ],
)
@pytest.mark.parametrize("status", [400, 422, 200])
def test_an_option_that_is_refused_is_changed_or_left_out_alone(
    problem: Problem, changed: dict[str, Any], unset: list[str], status: int
) -> None:
    def refuse(handler: Handler, body: dict[str, Any]) -> bool:
        if not (message := problem(body)):
            return False
        if status == 200:  # within a stream
            handler.begin()
            handler.event({"error": {"message": message}})
            handler.close_connection = True
        else:
            handler.reply(status, {"message": message})
        return True

    fake = Fake(fault=refuse)
    with serving(fake) as url:
        client = Client()
        dialect, answer = learn_dialect(
            BODY, lambda body: client.stream(f"{url}/v1/completions", [body], 1)[0]
        )
    assert dialect.unset(None) == unset and dialect.forms == changed
    assert not answer.error and not problem(dialect.of(BODY))
    for name in dialect.refused:  # and nothing else is left out
        assert problem(dialect.of(BODY) | {name: BODY[name]})
    assert len(fake.bodies) == 1 if dialect == ({}, ()) else len(fake.bodies) > 2


def test_what_the_user_asked_for_is_never_left_out() -> None:
    def ask(body: Any) -> Streamed:
        status = 400 if "top_k" in body else 0
        return Streamed(0.0, 0.0, [], 0, "refused" if status else "", status)

    dialect, answer = learn_dialect(BODY | {"top_k": 20}, ask, {"top_k": 20})
    assert answer.error and not dialect.refused


@pytest.mark.parametrize("status", [0, 401, 429, 503])
def test_a_server_that_is_busy_or_away_refuses_no_option(status: int) -> None:
    asked = []

    def ask(body: Any) -> Streamed:
        asked.append(body)
        return Streamed(0.0, 0.0, [], 0, "busy", status)

    dialect, answer = learn_dialect(BODY, ask)
    assert answer.error and not dialect.refused and len(asked) == 1


def test_words_of_llamacpp_matter_for_llamacpp_alone() -> None:
    def ask(body: Any) -> Streamed:
        status = 400 if "typical_p" in body else 0
        return Streamed(0.0, 0.0, [], 0, "refused" if status else "", status)

    dialect, _ = learn_dialect(BODY, ask)
    assert dialect.refused == ("typical_p",) and dialect.described
    assert dialect.unset("vllm") == [] and dialect.unset("llama.cpp") == ["typical_p"]
