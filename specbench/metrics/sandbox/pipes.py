"""Messages over pipes, between two processes of which one trusts nothing that it reads."""

from __future__ import annotations

import select
import time
from os import read, write  # as they are before a program can replace them in their module

MAX_BYTES = 8 << 20
SIZE = 4  # bytes of a length


class Gone(BaseException):
    """The other side has ended, is late or talks nonsense; no test may catch this by accident."""


def send(pipe: int, message: bytes, deadline: float | None = None) -> None:
    """Write a message with its length.

    Args:
        pipe: File descriptor.
        message: At most ``MAX_BYTES``.
        deadline: Time of ``time.monotonic`` when to give up; None waits for ever.

    Raises:
        Gone: The other side does not read.
    """
    rest = memoryview(len(message).to_bytes(SIZE, "big") + message)
    while rest:
        _wait(pipe, select.POLLOUT, deadline)
        try:  # No more than a pipe takes at once where it is ready, so that it cannot block.
            rest = rest[write(pipe, rest[: select.PIPE_BUF]) :]
        except OSError as error:
            raise Gone("nobody reads") from error


def receive(pipe: int, deadline: float | None = None) -> bytes:
    """Read a message; see ``send``.

    Raises:
        Gone: It does not come, or is longer than allowed.
    """
    size = int.from_bytes(_exactly(pipe, SIZE, deadline), "big")
    if size > MAX_BYTES:
        raise Gone("a message that is too long")
    return _exactly(pipe, size, deadline)


def _exactly(pipe: int, size: int, deadline: float | None) -> bytes:
    parts = []
    while size:
        _wait(pipe, select.POLLIN, deadline)
        got = read(pipe, min(size, 1 << 16))
        if not got:
            raise Gone("nobody writes")
        parts.append(got)
        size -= len(got)
    return b"".join(parts)


def _wait(pipe: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise Gone("late")
