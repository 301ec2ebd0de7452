"""Streamed answers, in any form and when they break off."""

import gzip
import json
import socket
import time
import zlib
from typing import Any

import pytest

from specbench.serving.client import Client

from .replies import STATUS, Reply, answering, http, saying


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
