"""Neutral sampling in every engine's words, and servers that refuse some of them."""

from collections.abc import Callable
from typing import Any

import pytest

from specbench.serving.client import Client, Streamed
from specbench.serving.server import NEUTRAL, OPTIONS, learn_dialect

from .fake import Fake, Handler, serving

BODY = OPTIONS | {"prompt": "a", "max_tokens": 4, "temperature": 1.0, "seed": 1}
STANDARD = {"prompt", "max_tokens", "temperature", "seed", "top_p"}
STANDARD |= {"presence_penalty", "frequency_penalty"}

Refuses = Callable[[dict[str, Any]], bool]


@pytest.mark.parametrize(
    ("refuses", "changed", "unset"),
    [
        (lambda body: False, {}, []),
        (lambda body: body.get("top_k") == 0, {"top_k": -1}, []),  # SGLang
        (lambda body: bool({*body} - STANDARD), {}, ["top_k", "min_p", "repetition_penalty"]),
        (lambda body: bool({*body} - STANDARD - {*NEUTRAL}), {}, []),  # TensorRT-LLM
        (lambda body: bool({*body} & {"min_p", "seed"}), {}, ["min_p"]),
        (lambda body: body.get("top_p") == 1 or "top_k" in body, {}, ["top_p", "top_k"]),
    ],
)
@pytest.mark.parametrize("status", [400, 422, 200])
def test_an_option_that_is_refused_is_changed_or_left_out_alone(
    refuses: Refuses, changed: dict[str, Any], unset: list[str], status: int
) -> None:
    def refuse(handler: Handler, body: dict[str, Any]) -> bool:
        if refuses(body) and status == 200:  # within a stream
            handler.begin()
            handler.event({"error": {"message": "bad request"}})
            handler.close_connection = True
        elif refuses(body):
            handler.reply(status, {"message": "bad request"})
        return refuses(body)

    with serving(Fake(fault=refuse)) as url:
        client, address = Client(), f"{url}/v1/completions"
        dialect, answer = learn_dialect(BODY, lambda body: client.stream(address, [body], 1)[0])
    assert dialect.unset("vllm") == unset and dialect.forms == changed
    assert not answer.error and not refuses(dialect.of(BODY))
    for name in dialect.refused:  # and nothing else is left out
        assert refuses(dialect.of(BODY) | {name: BODY[name]})


@pytest.mark.parametrize(
    ("failing", "status", "refused", "requests"),
    [
        ("typical_p", 400, ("typical_p",), len(OPTIONS) + 3),  # with the last one as it is
        ("top_k", 400, (), 2),  # as the user asked for it
        *(("prompt", status, (), 1) for status in (0, 401, 429, 503)),  # busy or away
    ],
)
def test_only_options_are_left_out(
    failing: str, status: int, refused: tuple[str, ...], requests: int
) -> None:
    bodies = []

    def ask(body: Any) -> Streamed:
        bodies.append(body)
        failed = failing in body
        return Streamed(0.0, 0.0, [], 0, "failed" * failed, status * failed)

    dialect, answer = learn_dialect(BODY, ask, ["top_k"])
    assert dialect.refused == refused and bool(answer.error) == (not refused)
    assert len(bodies) == requests
    assert dialect.unset("vllm") == [] and dialect.unset("llama.cpp") == [*refused]
