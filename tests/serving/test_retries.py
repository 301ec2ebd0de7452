"""Requests that are sent again: when a server wants it, and after texts that break off."""

import asyncio
import json
import socket
from typing import Any

import pytest

from specbench.serving.client import Client

from .sockets import Reply, answering, http

REAL_SLEEP = asyncio.sleep
DATE = "Fri, 07 Aug 2026 10:00:0{} GMT"


def limiting(connection: socket.socket, seen: list[bytes], status: str, *headers: str) -> None:
    """Refuse the first three requests."""
    seen.append(b"")
    if len(seen) > 3:
        connection.sendall(http(b'{"ok": 1}'))
    else:
        connection.sendall(http(b'{"detail": "slow down"}', status, *headers))


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Busy"])
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        (["Retry-After: 2"], 2),
        (["retry-after: 1.5"], 1.5),
        ([f"Retry-After: {DATE.format(4)}", f"Date: {DATE.format(1)}"], 3),  # by its own clock
        ([f"Retry-After: {DATE.format(1)}", f"Date: {DATE.format(4)}"], 0.5),  # at once
        (["Retry-After: 0"], 0.5),
        (["Retry-After: -3"], 0.5),
        (["Retry-After: 8"], None),  # three of them are longer than the request may take
        (["Retry-After: 3600"], None),
        (["Retry-After: Fri, 31 Dec 2190 23:59:59 GMT"], None),
        (["Retry-After: soon"], None),  # two tries of its own, as without the header
        (["Retry-After: nan"], None),
        ([], None),
    ],
)
def test_a_server_is_asked_when_it_wants_to_be(monkeypatch, status, headers, wait):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await REAL_SLEEP(0.2)

    monkeypatch.setattr("specbench.serving.client.asyncio.sleep", sleep)
    seen: list[bytes] = []
    with answering(lambda connection, _: limiting(connection, seen, status, *headers)) as url:
        (answer,) = Client(20.0).stream(url, [{}], 1)
    if wait is None:
        assert "(slow down" in answer.error and not answer.events
        assert sum(slept) <= 20 and len(seen) <= 3
        too_long = "3600" in str(headers) or "31 Dec" in str(headers)
        assert ("it asks to wait for" in answer.error) == too_long
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
