"""Servers that do not answer as they should: one sentence with what to do."""

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.serving.client import Client
from specbench.serving.server import ADVICE, Server

from .toy import Handler, serving, speculate


def answering(reply: Callable[[Handler], None]) -> type[BaseHTTPRequestHandler]:
    return type("Answering", (Handler,), {"do_POST": reply})


def asked(url: str, **options: object) -> str:
    with pytest.raises(UsageError) as error:
        client = Client(**options, advice=ADVICE)  # type: ignore[arg-type]
        Server(url, client).complete([8, 0], 1.0, 2, 5, seed=0)
    return str(error.value)


def test_a_server_that_is_down_and_no_server_at_all():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "start it, or correct the address" in asked(f"http://127.0.0.1:{port}/v1/")
    assert "start it, or correct the address" in asked("http://no such host")
    for wrong in ("localhost:8080", "file:///etc/passwd", "nonsense"):
        assert "an address must begin with http:// or https://" in asked(wrong)
    for wrong in ("http://me:secret@host/v1", "http://host/v1?key=secret"):
        assert "put a key into SPECBENCH_API_KEY" in asked(wrong) and "secret" not in asked(wrong)
    with serving(handler=answering(lambda h: h.connection.close())) as url:
        assert f"no server answers at {url}/v1/completions" in asked(url)


CHOICE = {"text": "", "finish_reason": "length"}
IDS = [[-1], [1.0], ["1"], [True], [None], [[1]], {"0": 1}, "12", 3, False, [1, 2, 3, 4, 5, 6]]
WRONG: list[tuple[int, Any]] = [
    *((200, {"choices": [{**CHOICE, "token_ids": tokens}]}) for tokens in IDS),
    *((200, {"choices": [{**CHOICE, "text": text}]}) for text in (None, ["a"])),
    *((200, {"choices": choices}) for choices in ({"0": CHOICE}, [], [None], [{"text": "a"}])),
    *((200, answer) for answer in ({"ok": 1}, [1], "choices", None)),
    # Without token ids.
    *((200, {"choices": [choice]}) for choice in (CHOICE, {"text": "a", "finish_reason": "stop"})),
    (400, {"e": "type"}),
]


def test_wrong_answers_are_named_and_a_wrong_model_is_refused(stored):
    errors = []
    for code, answer in WRONG:
        with serving(handler=answering(lambda h: h.reply(code, answer))) as url:  # noqa: B023
            errors.append(f"{code} {answer}: {asked(url).replace(url, 'URL')}\n")
    stored(*errors)
    with serving() as url:
        with pytest.raises(UsageError, match=r"404 .*no model other.*name one of"):
            Server(url, model="other").complete([8, 0], 1.0, 1, 5, seed=0)
        assert Server(url, model="toy").complete([8, 0], 1.0, 1, 5, seed=0)


@pytest.mark.parametrize(
    ("choice", "answer", "tokens"),
    [
        ({"token_ids": [3]}, {}, [3]),
        ({}, {"__verbose": {"tokens": [3, 4]}}, [3, 4]),
        ({"finish_reason": "stop"}, {"__verbose": {"tokens": []}}, []),
    ],
)
def test_tokens_come_from_vllm_and_from_llamacpp(choice, answer, tokens):
    def reply(handler):
        handler.reply(200, {"choices": [CHOICE | choice], **answer})

    with serving(handler=answering(reply)) as url:
        (completion,) = Server(url).complete([8, 0], 1.0, 1, 5, seed=0)
    assert completion.token_ids == tokens


def test_texts_have_the_seeds_that_follow_the_first():
    with serving() as url:
        completions = Server(url, Client(requests=3)).complete([8, 0], 1.0, 8, 5, seed=7)
    texts = [speculate([8, 0], 1.0, 5, seed) for seed in range(7, 15)]
    assert [completion.token_ids for completion in completions] == texts
