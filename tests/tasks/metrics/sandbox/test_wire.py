"""Messages: every plain value survives a round trip, and no bytes can do harm."""

import math
import os
import random
import threading
import time

import pytest

from specbench.tasks.metrics.sandbox import wire
from specbench.tasks.metrics.sandbox.wire import Gone, decode, encode, receive, send

# Lists all types in its text; sets have one member each, so that their order is fixed.
VALUE = [
    (None, ..., True, 0, -(1 << 299), 1 << 64, 5e-324, math.inf, -0.0, complex(0, -1.5)),
    ["", "a\0\udc00\U0010ffff", b"", bytes(range(256)), int, ValueError, object, type(None)],
    {1: {2.5}, "b": frozenset({()}), (None,): {frozenset({"x"}): [[], {}, set(), [[[1]]]]}},
    range(1, 9, 2),
    bytearray(b"c"),
]


def test_values_keep_their_types_and_others_cross_as_numbers():
    assert repr(decode(encode(VALUE))) == repr(VALUE)
    assert decode(encode(-(1 << 40_000))) == -(1 << 40_000)

    class Whole(int):
        pass

    objects = [Whole(3), object(), len, [1].append]
    message = encode(objects, objects.index)
    assert decode(message, objects.__getitem__) == objects
    assert decode(message, str) == ["0", "1", "2", "3"]
    with pytest.raises(TypeError):
        encode(objects)
    # Not even under the name of a plain type.
    impostors = [type(name, (), {})() for name in ("list", "Decimal", "NoneType", "an object")]
    assert decode(encode(impostors, impostors.index), str) == ["0", "1", "2", "3"]


def test_containers_keep_their_identity():
    row: list[object] = [1]
    value = [row, (row, {2: row})]
    row.append(row)
    copy = decode(encode(value))
    assert copy[0][0] == 1 and copy[0][1] is copy[0] is copy[1][0] is copy[1][1][2]
    # Containers known to both sides are sent as numbers.
    shared, theirs = [row], [[3]]
    message = encode(row, shared=shared)
    assert decode(message, shared=theirs) is theirs[0] and len(message) < 10
    encode([row], shared=shared)
    decode(encode([row]), shared=theirs)
    assert shared[0] is row and shared[1] == [row] and len(theirs) == 3


def test_depth_and_length_have_bounds(monkeypatch):
    deep: list[object] = []
    for _ in range(wire.MAX_DEPTH - 1):
        deep = [deep]
    assert decode(encode(deep)) == deep
    with pytest.raises(ValueError, match="deeply"):
        encode([deep])
    with pytest.raises(Gone):
        decode(encode([None]).replace(encode(None), b"") * 10_000 + encode(None))
    monkeypatch.setattr(wire, "MAX_BYTES", 20)
    assert encode("x" * 15)
    with pytest.raises(ValueError, match="20 bytes"):
        encode("x" * 16)


def test_damaged_and_random_bytes_are_refused_or_are_values():
    rng, whole, refused = random.Random(0), encode(VALUE), 0
    for _ in range(3000):
        message = bytearray(whole if rng.random() < 0.8 else rng.randbytes(rng.randrange(60)))
        for _ in range(rng.randrange(1, 4)):
            if message:
                message[rng.randrange(len(message))] = rng.choice([*range(40), 255])
        if rng.random() < 0.3:
            del message[rng.randrange(len(message) + 1) :]
        try:
            value = decode(bytes(message))
        except Gone:
            refused += 1
        else:
            encode(value)  # a value that can be sent
    assert refused > 1000


def size(number: int) -> bytes:
    return number.to_bytes(4, "big")


def atom(name: str, payload: bytes) -> bytes:
    return wire._TAGS[name] + size(len(payload)) + payload


def made(name: str, *parts: object) -> bytes:
    """An immutable value with any parts; an object is represented by the number 5."""
    return wire._TAGS[name] + size(len(parts)) + b"".join(encode(p, lambda _: 5) for p in parts)


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"\xff", encode(None) * 2, encode("cut")[:-1], atom("float", b"x")),
        *(atom("str", b"\xff"), atom("type", b"open"), atom("a known container", size(0))),
        *(wire._TAGS["list"] + size(0) + size(2**32 - 1), made("set") + size(1) + encode([])),
        *(made("dict") + size(1) + encode(None), made("list", 5) + size(0)),
        *(made("defaultdict", 5) + size(0), made("deque", "x") + size(0)),
        *(made("deque", object()) + size(0), made("range", *range(9)), made("range", object())),
        *(made("Decimal", "no number"), made("date", "2020-13-01"), made("date", object())),
        *(made("Fraction", 1, 0), made("Fraction", object(), 1), made("complex", "x")),
        *(made("an exception"), made("an exception", int, 5), made("an exception", 5)),
        *(made("an exception", object()), made("dict_items", 5), made("frozenset", [])),
    ],
)
def test_invalid_messages_are_refused(message):
    class One(int):
        pass

    with pytest.raises(Gone):
        decode(message, lambda number: {5: One(1)}[number])


def test_messages_pass_through_a_pipe_unchanged():
    assert decode(made("range", 5)) == range(5)
    assert len(decode(made("deque", None) + size(0))) == 0
    assert decode(made("tuple", object()), str) == ("5",)
    assert decode(made("an exception", ValueError, 5)).args == (5,)
    reading, writing = os.pipe()
    message = random.Random(0).randbytes(300_000)  # more than a pipe holds
    sender = threading.Thread(target=send, args=(writing, message))
    sender.start()
    assert receive(reading, time.monotonic() + 600) == message
    sender.join()
    os.write(writing, b"\xff\xff\xff\xff")  # announces too much
    with pytest.raises(Gone, match="long"):
        receive(reading)
    os.close(writing)
    with pytest.raises(Gone, match="nobody"):
        receive(reading)
    os.close(reading)


def test_an_unresponsive_other_side_times_out():
    reading, writing = os.pipe()
    start = time.monotonic()
    with pytest.raises(Gone, match="late"):
        receive(reading, start + 0.1)
    with pytest.raises(Gone, match="late"):
        send(writing, bytes(1 << 20), time.monotonic() + 0.1)
    assert time.monotonic() - start >= 0.2
    os.close(reading)
    with pytest.raises(Gone, match="nobody"):
        send(writing, b"x", time.monotonic() + 600)
    os.close(writing)
