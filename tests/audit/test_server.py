"""Servers that do not answer as they should: one sentence with what to do."""

import json
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from specbench.audit.server import Server
from specbench.errors import UsageError

from .toy import Handler, serving, speculate, toy


def answering(reply: Callable[[Handler], None]) -> type[BaseHTTPRequestHandler]:
    return type("Answering", (Handler,), {"do_POST": reply})


def asked(url: str, **options: float) -> str:
    """Return the error of a server."""
    with pytest.raises(UsageError) as error:
        Server(url, **options).complete([8, 0], 1.0, 2, 5, seed=0)  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (lambda h: h.reply(200, b"<html>hi"), "answers no JSON but '<html>hi': give the --url"),
        (lambda h: h.reply(200, {"ok": 1}), '{"ok": 1} without choices, text and finish_reason'),
        (lambda h: h.reply(200, [1]), "without choices"),
        (lambda h: h.reply(404, {"error": "no"}), 'answers 404 ({"error": "no"}): correct --url'),
        (lambda h: h.reply(400, {"e": "type"}), "add --text-prompts if the server takes no token"),
        (lambda h: h.reply(500, {}), "answers 500 ({}): look into the server's log"),
        (lambda h: h.connection.close(), "no server answers at http"),
        (lambda h: time.sleep(0.5), "did not answer within 0.1 seconds: raise --timeout"),
    ],
)
def test_wrong_answers_are_named(reply: Callable[[Handler], None], told: str) -> None:
    with serving(handler=answering(reply)) as url:
        error = asked(url, timeout=0.1)
    assert told in error
    assert f"{url}/v1/completions" in error


def test_a_server_that_is_down_and_no_server_at_all() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "start it, or correct --url" in asked(f"http://127.0.0.1:{port}/v1/")
    assert "start it, or correct --url" in asked("http://no such host")
    for wrong in ("localhost:8080", "file:///etc/passwd", "nonsense"):
        assert "--url must begin with http:// or https://" in asked(wrong)


def test_a_wrong_model_is_refused_and_the_right_one_is_not() -> None:
    with serving() as url:
        with pytest.raises(UsageError, match=r"404 .*no model other.*give --model one of"):
            Server(url, "other").complete([8, 0], 1.0, 1, 5, seed=0)
        assert Server(url, "toy").complete([8, 0], 1.0, 1, 5, seed=0)


def test_prompts_are_sent_as_tokens_or_as_text() -> None:
    prompts = []

    def note(self: Handler) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts.append(asked["prompt"])
        self.reply(200, {"choices": [{"text": "", "finish_reason": "stop", "token_ids": [3]}]})

    with serving(handler=answering(note)) as url:
        for tokenizer in (None, toy().tokenizer):
            (found,) = Server(url, tokenizer=tokenizer).complete([8, 0, 3], 1.0, 1, 5, seed=0)
    assert prompts == [[8, 0, 3], " ad"]
    assert found.tokens == [3] and found.ended


def test_texts_have_the_seeds_that_follow_the_first() -> None:
    with serving() as url:
        found = Server(url, at_once=3).complete([8, 0], 1.0, 8, 5, seed=7)
    texts = [speculate([8, 0], 1.0, 5, seed) for seed in range(7, 15)]
    spelled = [toy().tokenizer.decode(text, skip_special_tokens=True) for text in texts]
    assert [completion.text for completion in found] == spelled
