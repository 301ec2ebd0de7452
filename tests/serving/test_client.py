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
from collections import defaultdict
from functools import partial

import pytest

from specbench.errors import UsageError, mask_tokens
from specbench.serving.client import MAX_BODY, Client, Streamed
from specbench.serving.server import NEUTRAL, OPTIONS, learn_dialect

from ..told import refusals
from .fake import Fake, Handler, serving, threaded
from .replies import STATUS, Reply, answering, http, received, saying

KEY = "sk-visible-nowhere-5150"


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


def test_a_client_that_is_no_longer_used_closes_its_event_loop():
    client = Client()
    with answering(saying(b"{}")) as url:
        client.get(url)
    loop = client._runner.get_loop()
    del client
    assert loop.is_closed()


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


def test_connections_are_open_before_the_clock_starts():
    requests: defaultdict[Handler, list[str]] = defaultdict(list)  # by connection

    class Listening(Handler):
        fake = Fake()

        def parse_request(self):
            is_complete = super().parse_request()
            requests[self].append(self.command)
            return is_complete

    with threaded(Listening) as url:
        client = Client(requests=3)
        client.get_content(f"{url}/v1/models", 3)
        client.stream(f"{url}/v1/completions", [BODY] * 3, 3)
    assert [*requests.values()] == [["GET", "POST"]] * 3


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
        later = 429 if failing == "typical_p" and len(bodies) > 2 else status  # no answer to it
        return Streamed(0.0, 0.0, [], 0, "failed" * failed, later * failed)

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
