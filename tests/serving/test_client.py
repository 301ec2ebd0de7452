"""Servers that are not trusted, or busy: a value or one located sentence, within bounds."""

import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any

import pytest

from specbench.errors import UsageError, mask_tokens
from specbench.serving.client import MAX_BODY, Client, Streamed
from specbench.serving.server import NEUTRAL, OPTIONS, learn_dialect

from ..told import refusals
from .fake import Fake, serving

Reply = Callable[[socket.socket, bytes], None]


@contextmanager
def answering(reply: Reply) -> Iterator[str]:
    """Answer every connection by a function of the socket and the request."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            Thread(target=answer, args=[connection], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            reply(connection, received(connection))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/completions"
        listening.shutdown(socket.SHUT_RDWR)


def received(connection: socket.socket) -> bytes:
    request = b""
    while part := connection.recv(1 << 16):
        request += part
        head, _, body = request.partition(b"\r\n\r\n")
        if f"content-length: {len(body)}".encode() in head.lower():
            break
    return request


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def saying(body: bytes, status: str = "200 OK", *headers: str) -> Reply:
    return lambda connection, _: connection.sendall(http(body, status, *headers))


KEY = "sk-visible-nowhere-5150"
STATUS = b"HTTP/1.1 200 OK\r\n"


def refused(reply: Reply, client: Client | None = None) -> str:
    with answering(reply) as url, pytest.raises(UsageError) as error:
        (client or Client()).post(url, [{"prompt": "p"}])
    message = str(error.value)
    assert url in message and message.isprintable() and KEY not in message
    return message.replace(url, "URL")


def test_what_is_wrong_is_told_with_its_place(stored):
    bodies = (b"", b"<html>", b"\x1b]0;owned\x07\xe2\x80\xae", b"\xff\xfe\x00", b'{"a": 1, "a": 2}')
    statuses = ("401 Unauthorized", "404 Not Found", "418 Teapot", "500 Broken")
    client = Client(api_key=KEY, advice={418: "brewing"})
    replies = [
        *(saying(body) for body in (*bodies, b"9" * 5000)),
        *(saying(f"no {KEY} \x1b[2J".encode(), status) for status in statuses),
        saying(b"data: " + b"x" * 100 + b"\n\n", "200 OK", "Content-Type: text/event-stream"),
        saying(b"{}", "200 OK", "Content-Encoding: gzip"),
    ]
    assert "recursion" in refused(saying(b"[" * 100_000))
    urls = "file:///etc/passwd", "http://127.0.0.1:99999/v1", "http://[::1", "http://a:secret@b/v1"
    addresses = refusals(*(partial(Client().reach, url) for url in urls))
    assert "secret" not in addresses
    stored(*(refused(reply, client) for reply in replies), addresses)


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


def test_the_deadline_holds_for_the_whole_request_whose_size_is_bounded():
    for reply in (
        endless(STATUS + b"Content-Length: 1000\r\n\r\n", b" ", 0.01),
        endless(STATUS + b"X-", b"a", 0.01),
        endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.001),
        silent,
    ):
        assert "did not answer within 0.1 seconds: raise --timeout" in refused(reply, Client(0.1))
    chunked = STATUS + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"[" * 0x10000 + b"\r\n"
    assert f"of over {MAX_BODY >> 20} MiB" in refused(endless(chunked, chunk))
    assert "no server answers" in refused(endless(STATUS, b"X: " + b"a" * 1000 + b"\r\n"))
    bomb = gzip.compress(b" " * (1 << 24))
    error = refused(saying(bomb, "200 OK", "Content-Encoding: gzip"))
    assert f"of over {MAX_BODY >> 20} MiB" in error


def test_keys_and_headers_are_sent_never_shown_and_never_redirected():
    requests: list[bytes] = []
    with answering(noting(requests)) as other:
        moved = saying(b"", "307 Temporary Redirect", f"Location: {other}\x1b")
        assert f"redirects to {other}" in refused(moved, Client(api_key=KEY))
    assert not requests
    seen: list[bytes] = []
    client = Client(api_key=KEY)
    with answering(noting(seen, json.dumps({"you sent": KEY}).encode())) as url:
        assert client.post(url, [{}]) == [{"you sent": KEY}]
    assert f"Bearer {KEY}".encode() in seen[0]
    assert KEY not in repr(client) and mask_tokens(f"a {KEY}") == "a ***"
    for wrong in (f"{KEY}\r\nX: y", f"{KEY} ", "schlüssel"):
        with pytest.raises(UsageError, match="visible ASCII") as error:
            Client(api_key=wrong)
        assert wrong not in str(error.value) and KEY not in str(error.value)
    seen: list[bytes] = []
    client = Client(
        headers={"api-key": KEY, "authorization": "Basic abcdefghij"}, api_key="other-key"
    )
    with answering(noting(seen)) as url:
        client.post(url, [{}])
    assert f"api-key: {KEY}".encode() in seen[0] and b"uthorization: Basic abcdefghij" in seen[0]
    assert b"other-key" not in seen[0] and KEY not in repr(client)
    assert mask_tokens("an echo of abcdefghij") == "an echo of ***"
    for name, value in (("a b", "c"), ("", "c"), ("a", "c\r\nX: y"), ("a", "\u00fc")):
        with pytest.raises(UsageError, match="--header"):
            Client(headers={name: value})


def noting(requests: list[bytes], body: bytes = b"{}") -> Reply:
    def reply(connection: socket.socket, request: bytes) -> None:
        requests.append(request)
        connection.sendall(http(body))

    return reply


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
        command, pipe = [sys.executable, "-c", program, url], subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe)
        _, errors = process.communicate(timeout=600)
    assert heard and b"KeyboardInterrupt" in errors
    assert process.returncode in (-signal.SIGINT, 130, 1)


BODY = OPTIONS | {"prompt": "a", "max_tokens": 4, "temperature": 1.0, "seed": 1}
STANDARD = {"prompt", "max_tokens", "temperature", "seed", "top_p"}
STANDARD |= {"presence_penalty", "frequency_penalty"}


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


REAL_SLEEP = asyncio.sleep
DATE = "Fri, 07 Aug 2026 10:00:0{} GMT"


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Busy"])
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        (["Retry-After: 2"], 2),
        ([f"Retry-After: {DATE.format(4)}", f"Date: {DATE.format(1)}"], 3),  # by its own clock
        ([f"Retry-After: {DATE.format(1)}", f"Date: {DATE.format(4)}"], 0.5),  # at once
        (["Retry-After: 0"], 0.5),
        (["Retry-After: 8"], None),  # three of them are longer than the request may take
        (["Retry-After: Fri, 31 Dec 2190 23:59:59 GMT"], None),
        (["Retry-After: Mon, 01 Jan 99999999999999999999 00:00:00 GMT"], None),
        (["Retry-After: soon"], None),  # two tries of its own, as without the header
        (["Retry-After: nan"], None),
        ([], None),
    ],
)
def test_a_server_is_asked_when_it_wants_to_be(monkeypatch, status, headers, wait):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await REAL_SLEEP(0.2 if wait == 2 else 0)

    monkeypatch.setattr("specbench.serving.client.asyncio.sleep", sleep)
    seen: list[bytes] = []

    def limiting(connection, request):  # refuses the first three requests
        seen.append(request)
        refusal = http(b'{"detail": "slow down"}', status, *headers, "Connection: close")
        connection.sendall(refusal if len(seen) <= 3 else http(b'{"ok": 1}'))

    with answering(limiting) as url:
        (answer,) = Client(20.0).stream(url, [{}], 1)
    if wait is None:
        assert "(slow down" in answer.error and not answer.events
        assert sum(slept) <= 20 and len(seen) <= 3
        assert ("it asks to wait for" in answer.error) == ("31 Dec" in str(headers))
    else:
        assert slept == [wait] * 3 == [answer.waited / 3] * 3
        assert (answer.retries, answer.error) == (3, "")
        assert answer.seconds < 0.5  # the last try alone


def breaking(first: Any, *others: Any) -> Reply:
    """Stream a failure at every first try, and then an answer."""
    tries = iter([first, *others, {"choices": [{"text": "a", "finish_reason": "stop"}]}])

    def reply(connection: socket.socket, _: bytes) -> None:
        values = next(tries)
        parts = values if isinstance(values, list) else [values]
        body = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)
        connection.sendall(http(body, "200 OK", "Content-Type: text/event-stream"))

    return reply


TEXT = {"choices": [{"text": "a"}]}
ABORTED = {"choices": [{"text": "", "finish_reason": "abort"}]}


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        ([TEXT, ABORTED], True),
        (ABORTED, True),
        ([TEXT, TEXT, {"choices": [], "usage": {"completion_tokens": 2}}], True),  # no reason
        ([TEXT, {"error": {"message": "engine died"}}], True),
        ({"error": {"message": "overloaded", "code": 529}}, True),
        ({"error": {"message": "bad request"}}, False),
        ({"message": "bad", "code": 400}, False),
    ],
)
def test_a_text_that_breaks_off_is_asked_for_again(monkeypatch, failure, again):
    monkeypatch.setattr("specbench.serving.client.PAUSE", 0.01)
    with answering(breaking(failure, failure)) as url:
        (answer,) = Client().stream(url, [{}], 1)
    assert bool(answer.error) != again and answer.retries == 2 * again
    with answering(breaking(failure, failure, failure)) as url:
        (answer,) = Client().stream(url, [{}], 1)
    assert answer.error and answer.retries == 2 * again
    assert "look into the server's log" in answer.error


PARTS = [{"choices": [{"text": text}]} for text in ("one", " two")]
LAST = {"choices": [{"text": "", "finish_reason": "stop"}]}
EVENTS = [json.dumps(part).encode() for part in (*PARTS, LAST)]


def framed(*events: bytes, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + event + end for event in events)


PACKED = b"".join(gzip.compress(framed(event), mtime=0) for event in EVENTS)


def test_values_are_read_from_any_form_of_a_stream():
    for body, headers in (
        (b"data:\n\n" + framed(*EVENTS), ["text/event-stream"]),  # a heartbeat
        (b"\xef\xbb\xbf" + framed(*EVENTS), ["text/event-stream"]),
        (framed(*EVENTS, end=b"\r\r"), ["text/event-stream"]),
        (framed(*EVENTS, end=b"\n"), ["text/event-stream"]),  # without empty lines
        (b"".join(framed(*e.split(b" ", 1), end=b"\n") + b"\n" for e in EVENTS), ["Text/Event"]),
        *((framed(*EVENTS, b"[DONE]"), [kind]) for kind in ("text/plain", "application/json", "")),
        (b": hello\r\n\r\n" + framed(*EVENTS), ["application/octet-stream"]),
        (b"unknown: 1\n" + framed(*EVENTS), ["TEXT/Event-Stream; charset=utf-8"]),
        (b"\n".join(EVENTS), ["application/x-ndjson"]),
        (b"\r\n".join([*EVENTS, b"[DONE]"]), ["application/jsonl"]),
        (framed(*EVENTS[:2], b"[DONE]"), ["text/event-stream"]),  # without a finish_reason
        (gzip.compress(framed(*EVENTS), mtime=0), ["text/event-stream", "Content-Encoding: gzip"]),
        (PACKED, ["text/event-stream", "Content-Encoding: GZIP"]),
        (zlib.compress(framed(*EVENTS)), ["text/plain", "Content-Encoding: deflate"]),
    ):
        first, *further = headers
        with answering(saying(body, "200 OK", f"Content-Type: {first}", *further)) as url:
            (answer,) = Client().stream(url, [{}], 1)
        assert answer.error == ""
        assert "".join(e.value["choices"][0]["text"] for e in answer.events) == "one two"


def test_a_value_in_several_lines_is_one_and_numbers_that_are_not_finite_are_null():
    value = {"choices": [{"text": "a", "finish_reason": "stop"}], "usage": None}
    lines = json.dumps(value, indent=1).encode().split(b"\n")
    for body in (b"\n".join(lines), framed(*lines, end=b"\n") + b"\n", framed(*lines, end=b"\r")):
        with answering(saying(body)) as url:
            assert Client().post(url, [{}]) == [value]
    null = [f'"a": {value}' for value in ("-Infinity", "NaN", "1e999", "null")]
    for text, value in (*((text, None) for text in null), ('"a": 1, "a": 1', 1)):
        with answering(saying(f"{{{text}}}".encode())) as url:
            assert Client().post(url, [{}]) == [{"a": value}]


def test_done_ends_an_answer_whose_connection_stays_open():
    def open_end(connection, _):
        head = STATUS + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = framed(*EVENTS, b"[DONE]")
        connection.sendall(head + b"%x\r\n" % len(body) + body + b"\r\n")
        time.sleep(3)

    with answering(open_end) as url:
        (answer,) = Client(2.0).stream(url, [{}], 1)
    assert answer.error == "" and len(answer.events) == 3 and answer.seconds < 1
