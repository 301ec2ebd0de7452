"""The messages: every plain value comes back as it is, and no bytes whatever do harm."""

import math
import os
import random
import threading
import time

import pytest

from specbench.metrics.sandbox import wire
from specbench.metrics.sandbox.pipes import Gone, receive, send
from specbench.metrics.sandbox.wire import decode, encode, nothing_opaque


def unknown(number: int) -> object:
    raise LookupError(number)


def random_value(rng: random.Random, depth: int) -> object:
    leaves = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice((-1, 1)) * rng.getrandbits(rng.randrange(1, 300)),
        lambda: rng.choice((rng.gauss(0, 1e9), 5e-324, math.inf, -0.0)),
        lambda: complex(rng.random(), -rng.random()),
        lambda: "".join(chr(rng.randrange(0x11000)) for _ in range(rng.randrange(6))),
        lambda: rng.randbytes(rng.randrange(6)),
        lambda: rng.choice((int, str, list, ValueError, object)),
    ]
    if not depth or rng.random() < 0.3:
        return rng.choice(leaves)()
    if rng.random() < 0.4:  # members of sets and keys must be hashable
        plain = [rng.choice(leaves)() for _ in range(rng.randrange(4))]
        return rng.choice((set, frozenset, dict.fromkeys))(plain)
    return rng.choice((list, tuple))(random_value(rng, depth - 1) for _ in range(rng.randrange(4)))


def typed(value: object) -> object:
    """The value with all types in it, and the members of sets in one order."""
    match value:
        case list() | tuple():
            return type(value), [typed(item) for item in value]
        case set() | frozenset():
            return type(value), sorted(map(repr, value))
        case dict():
            return [(typed(key), typed(item)) for key, item in value.items()]
    return type(value), repr(value)


def test_values_come_back_with_their_types() -> None:
    for seed in range(200):
        value = random_value(random.Random(seed), 4)
        assert typed(decode(encode(value, nothing_opaque), unknown)) == typed(value), seed


def test_other_types_and_subclasses_cross_as_numbers() -> None:
    class Whole(int):
        pass

    objects = [Whole(3), object(), len, [1].append]
    message = encode(objects, objects.index)
    assert decode(message, objects.__getitem__) == objects
    assert decode(message, str) == ["0", "1", "2", "3"]
    with pytest.raises(TypeError, match="not plain data: Whole"):
        encode(objects, nothing_opaque)


def test_containers_stay_one_and_the_same() -> None:
    row: list[object] = [1]
    value = [row, (row, {2: row})]
    row.append(row)
    copy = decode(encode(value, nothing_opaque), unknown)
    assert copy[0][0] == 1 and copy[0][1] is copy[0] is copy[1][0] is copy[1][1][2]
    # What both sides have already crosses as a number.
    shared, theirs = [row], [[3]]
    message = encode(row, nothing_opaque, shared)
    assert decode(message, unknown, theirs) is theirs[0] and len(message) < 10
    encode([row], nothing_opaque, shared)
    decode(encode([row], nothing_opaque), unknown, theirs)
    assert shared[0] is row and shared[1] == [row] and len(theirs) == 3


def test_depth_and_length_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: list[object] = []
    for _ in range(wire.MAX_DEPTH - 1):
        deep = [deep]
    assert decode(encode(deep, nothing_opaque), unknown) == deep
    with pytest.raises(ValueError, match="too deeply"):
        encode([deep], nothing_opaque)
    forged = b"l\0\0\0\1" * 10_000 + b"N"
    with pytest.raises(Gone):
        decode(forged, unknown)
    monkeypatch.setattr(wire, "MAX_BYTES", 20)
    assert encode("x" * 15, nothing_opaque)
    with pytest.raises(ValueError, match="more than 20 bytes"):
        encode("x" * 16, nothing_opaque)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_and_random_bytes_are_refused_or_are_values(seed: int) -> None:
    rng = random.Random(seed)
    whole = encode([random_value(rng, 4) for _ in range(5)], nothing_opaque)
    refused = 0
    for _ in range(300):
        message = bytearray(whole if rng.random() < 0.8 else rng.randbytes(rng.randrange(60)))
        for _ in range(rng.randrange(1, 4)):
            if message:
                message[rng.randrange(len(message))] = rng.choice(b"NTFltszdcifubyh\0\1\xff")
        if rng.random() < 0.3:
            del message[rng.randrange(len(message) + 1) :]
        try:
            value = decode(bytes(message), unknown)
        except Gone:
            refused += 1
        else:
            encode(value, nothing_opaque)  # a value that could have been sent
    assert refused > 100


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"?",
        b"NN",
        b"i\0\0\0\5\1",
        b"l\xff\xff\xff\xff",
        b"s\0\0\0\1l\0\0\0\0",  # a list in a set
        b"d\0\0\0\1N",
        b"cTT",
        b"f\0\0\0\1x",
        b"u\0\0\0\1\xff",
        b"y\0\0\0\4open",
        b"h\0\0\0\1\0",
    ],
)
def test_no_value(message: bytes) -> None:
    with pytest.raises(Gone):
        decode(message, unknown)


def test_messages_pass_through_a_pipe_whole() -> None:
    reading, writing = os.pipe()
    message = random.Random(0).randbytes(300_000)  # more than a pipe holds
    sender = threading.Thread(target=send, args=(writing, message))
    sender.start()
    assert receive(reading, time.monotonic() + 20) == message
    sender.join()
    os.close(writing)
    with pytest.raises(Gone, match="nobody writes"):
        receive(reading)
    os.close(reading)


def test_a_silent_or_deaf_other_side_is_given_up_in_time() -> None:
    reading, writing = os.pipe()
    start = time.monotonic()
    with pytest.raises(Gone, match="late"):
        receive(reading, start + 0.1)
    with pytest.raises(Gone, match="late"):
        send(writing, bytes(1 << 20), time.monotonic() + 0.1)
    assert 0.2 <= time.monotonic() - start < 10
    os.close(reading)
    with pytest.raises(Gone, match="nobody reads"):
        send(writing, b"x", time.monotonic() + 5)
    os.close(writing)


def test_a_message_that_announces_too_much_is_not_awaited() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\xff\xff\xff\xff")
    with pytest.raises(Gone, match="too long"):
        receive(reading)
    os.close(reading)
    os.close(writing)
