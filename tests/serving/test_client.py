"""Servers that are not trusted: every answer is a value or one located sentence, within bounds."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from specbench.errors import UsageError, mask_tokens
from specbench.serving.client import KEY_VARIABLE, MAX_BODY, Client, Streamed
from specbench.serving.server import NEUTRAL, OPTIONS, learn_dialect

from .fake import Fake, serving
from .sockets import Reply, answering, http, received, saying

KEY = "sk-visible-nowhere-5150"
STATUS = b"HTTP/1.1 200 OK\r\n"


def refused(reply: Reply, client: Client | None = None) -> str:
    """Return the error of one request, which is one located line."""
    with answering(reply) as url, pytest.raises(UsageError) as error:
        (client or Client()).post(url, [{"prompt": "p"}])
    message = str(error.value)
    assert url in message and message.isprintable() and KEY not in message
    return message


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "answers no JSON but ''"),
        (b"<html>", "answers no JSON but '<html>'"),
        (b"\x1b]0;owned\x07\xe2\x80\xae", "'\ufffd]0;owned\ufffd\ufffd'"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b"[" * 100_000, "recursion"),
        (b'{"a": 1, "a": 2}', "a key occurs twice"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b"[1e999]", "1e999 is not a finite number"),
        (b"9" * 5000, "Exceeds the limit"),
    ],
)
def test_what_is_no_json_is_named(body, why):
    assert why in refused(saying(body))


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("http://127.0.0.1:99999/v1", "correct the address"),
        ("http://[::1", "correct the address"),
        ("file:///etc/passwd", "correct the address"),
        ("http://user:word@127.0.0.1:1/v1", "contains a name or a password"),
    ],
)
def test_an_odd_address_is_one_sentence(url, advice):
    with pytest.raises(UsageError, match=advice) as error:
        Client().reach(url)
    assert "word@" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("401 Unauthorized", f"put the server's key into {KEY_VARIABLE}"),
        ("404 Not Found", "correct the address"),
        ("418 Teapot", "brewing"),
        ("500 Broken", "look into the server's log"),
    ],
)
def test_a_refusal_says_what_to_do(status, advice):
    client = Client(api_key=KEY, advice={418: "brewing"})
    error = refused(saying(f"no {KEY} \x1b[2J".encode(), status), client)
    assert f"answers {status[:3]} (no *** \ufffd[2J): " in error and advice in error


def endless(head: bytes, part: bytes, pause: float = 0.0) -> Reply:
    """Send a head, then the same part again and again."""

    def reply(connection: socket.socket, _: bytes) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return reply


def silent(connection: socket.socket, _: bytes) -> None:
    connection.recv(1)


@pytest.mark.parametrize(
    "reply",
    [
        endless(STATUS + b"Content-Length: 1000\r\n\r\n", b" ", 0.01),
        endless(STATUS + b"X-", b"a", 0.01),
        endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.001),
        silent,
    ],
)
def test_the_deadline_holds_for_the_whole_request(reply):
    assert "did not answer within 0.1 seconds: raise --timeout" in refused(reply, Client(0.1))


def test_the_size_of_an_answer_is_bounded():
    chunked = STATUS + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"[" * 0x10000 + b"\r\n"
    assert f"answers more than {MAX_BODY >> 20} MiB" in refused(endless(chunked, chunk))
    assert "no server answers" in refused(endless(STATUS, b"X: " + b"a" * 1000 + b"\r\n"))
    bomb = gzip.compress(b" " * (1 << 24))
    error = refused(saying(bomb, "200 OK", "Content-Encoding: gzip"))
    assert "compresses its answer (gzip)" in error


def test_a_redirect_is_not_followed_and_gets_no_key():
    requests: list[bytes] = []

    def note(connection, request):
        requests.append(request)
        connection.sendall(http(b"{}"))

    with answering(note) as other:
        moved = saying(b"", "307 Temporary Redirect", f"Location: {other}\x1b")
        assert f"redirects to {other}" in refused(moved, Client(api_key=KEY))
    assert not requests


def test_the_key_is_sent_and_never_shown():
    seen: list[bytes] = []

    def note(connection, request):
        seen.append(request)
        connection.sendall(http(json.dumps({"you sent": KEY}).encode()))

    client = Client(api_key=KEY)
    with answering(note) as url:
        assert client.post(url, [{}]) == [{"you sent": KEY}]
    assert f"Bearer {KEY}".encode() in seen[0]
    assert KEY not in repr(client) and mask_tokens(f"a {KEY}") == "a ***"
    for wrong in (f"{KEY}\r\nX: y", f"{KEY} ", "schlüssel"):
        with pytest.raises(UsageError, match="visible ASCII") as error:
            Client(api_key=wrong)
        assert wrong not in str(error.value) and KEY not in str(error.value)


def test_requests_are_sent_at_once_and_answers_keep_their_order():
    def echo(connection, request):
        while request:
            connection.sendall(http(request.partition(b"\r\n\r\n")[2]))
            request = received(connection)

    with answering(echo) as url:
        bodies = [{"number": number} for number in range(20)]
        assert Client(requests=4).post(url, bodies) == bodies


def test_ctrl_c_ends_a_request_at_once():
    program = (
        # A process in the background of a shell without job control ignores Ctrl-C.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from specbench.serving.client import Client; "
        "print('asking', flush=True); Client(60).post(sys.argv[1], [{}])"
    )
    heard: list[bytes] = []

    def wait(connection, request):
        heard.append(request)
        os.kill(process.pid, signal.SIGINT)
        connection.recv(1)

    with answering(wait) as url:
        process = subprocess.Popen(
            [sys.executable, "-c", program, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _, errors = process.communicate(timeout=600)
    assert heard and b"KeyboardInterrupt" in errors
    assert process.returncode in (-signal.SIGINT, 130, 1)


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
@pytest.mark.parametrize("status", [400, 200])
def test_an_option_that_is_refused_is_changed_or_left_out_alone(refuses, changed, unset, status):
    def refuse(handler, body):
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


@pytest.mark.parametrize("further", [[], ["top_k"], ["top_k", "min_p", "seed"]])
@pytest.mark.parametrize("status", [400, 422])
def test_a_server_may_want_another_name_of_the_limit(further, status):
    def ask(body):
        failed = not {"max_tokens", *further}.isdisjoint(body)
        return Streamed(0.0, 0.0, [], 0, "failed" * failed, status * failed)

    dialect, answer = learn_dialect(BODY, ask)
    sent = dialect.of(BODY)
    assert not answer.error and sent["max_completion_tokens"] == 4
    assert {*BODY} - {*sent} == {"max_tokens", *further} == {"max_tokens", *dialect.refused}
    assert dialect.described["options_changed"] == {"max_tokens": "max_completion_tokens"}


@pytest.mark.parametrize(
    ("failing", "status", "refused", "requests"),
    [
        ("typical_p", 400, ("typical_p",), len(OPTIONS) + 3),  # with the last one as it is
        ("top_k", 400, (), 4),  # as the user asked for it, by either name of the limit
        *(("prompt", status, (), 1) for status in (0, 401, 429, 503)),  # busy or away
    ],
)
def test_only_options_are_left_out(failing, status, refused, requests):
    bodies = []

    def ask(body):
        bodies.append(body)
        failed = failing in body
        return Streamed(0.0, 0.0, [], 0, "failed" * failed, status * failed)

    dialect, answer = learn_dialect(BODY, ask, ["top_k"])
    assert dialect.refused == refused and bool(answer.error) == (not refused)
    assert len(bodies) == requests
    assert dialect.unset("vllm") == [] and dialect.unset("llama.cpp") == [*refused]
