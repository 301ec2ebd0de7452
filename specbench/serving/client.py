"""JSON over HTTP with servers that are not trusted.

A request has one deadline, an answer a maximum size, and both end at once on Ctrl-C. Redirects are
not followed, since the other host would get the key. Everything that a message quotes of an answer
is short, printable and free of the key. An answer is one JSON value, or a stream of them as
server-sent events, each with the time at which it arrived. Connections stay open between requests.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import reprlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx2

from specbench.errors import UsageError, hide, mask_tokens, require, shown

KEY_VARIABLE = "SPECBENCH_API_KEY"
MAX_BODY = 2**22  # bytes of an answer
MAX_STREAM = 2**26  # bytes of a stream
MAX_SHOWN = 2**12  # bytes of an answer that a message may quote
KEY_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
ADVICE: dict[int, str] = {
    **dict.fromkeys(KEY_REFUSED, f"put the server's key into {KEY_VARIABLE}"),
    HTTPStatus.NOT_FOUND: "correct the address, or name one of the server's models",
}
# An address may be malformed in many ways; a port out of range raises a group of errors.
UNREACHABLE = (
    *(httpx2.HTTPError, httpx2.InvalidURL, ExceptionGroup),
    *(OSError, ValueError, ImportError),
)
API = "give the address of a server with OpenAI's completions API, such as http://localhost:8080/v1"
TRIES = 3  # of a request that the server could not take
PAUSE = 0.5  # seconds before the second try, doubled before the third
IDLE = 1.0  # seconds that a connection is kept; a request on one that the server closes is lost
DONE = b"[DONE]"

Read = Callable[[str, Any], Awaitable[Any]]  # sends a body to an address, reads the answer


class Event(NamedTuple):
    """A value that a stream contains."""

    seconds: float  # since the request was sent
    value: Any


class Streamed(NamedTuple):
    """What a server streams as the answer to one request."""

    began: float  # ``time.perf_counter`` when the request was sent
    seconds: float  # until the answer's last byte
    events: list[Event]
    retries: int  # tries before this one, which failed
    error: str = ""  # why there is no answer; empty if there is one
    status: int = 0  # of an answer that is an error; 0 if there is none


class _StatusError(UsageError):
    """A server answers with the status of an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Client:
    """Sends requests, several at once.

    Raises:
        UsageError: The key cannot be sent; the message does not contain it.
    """

    timeout: float = 60.0  # seconds of a request, from connecting to the answer's last byte
    requests: int = 1  # at once
    api_key: str | None = field(
        default_factory=lambda: os.environ.get(KEY_VARIABLE) or None, repr=False
    )
    advice: Mapping[int, str] = field(default_factory=dict)  # what to do, by status of an answer

    def __post_init__(self) -> None:
        """Check the key, and keep it out of messages and files."""
        if self.api_key is not None:
            require(
                self.api_key.isascii() and self.api_key.isprintable() and " " not in self.api_key,
                f"{KEY_VARIABLE} must consist of visible ASCII characters: "
                "give the key without spaces and line ends",
            )
            hide(self.api_key)

    def reach(self, url: str) -> None:
        """Refuse an address that nothing answers, that redirects, or that wants another key.

        Raises:
            UsageError: It does; the message says what to do.
        """

        async def read(url: str, body: Any) -> None:
            response, content = await self._exchange(url, body)
            if response.has_redirect_location or response.status_code in KEY_REFUSED:
                self._value(url, response, content)

        self._all(url, [None], read)

    def get(self, url: str) -> Any:
        """Return the JSON at an address, or None if there is none."""
        with suppress(ValueError, RecursionError):
            return parsed(self.get_content(url))
        return None

    def get_content(self, url: str) -> bytes:
        """Return what is at an address, nothing if there is none or nothing answers."""

        async def read(url: str, body: Any) -> bytes:
            with suppress(UsageError, *UNREACHABLE):
                response, content = await self._exchange(url, body)
                return content if response.status_code == HTTPStatus.OK else b""
            return b""

        content: bytes = self._all(url, [None], read)[0]
        return content

    def post(self, url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the JSON that a server answers to each body.

        Raises:
            UsageError: It does not answer with JSON; the message says what to do.
        """

        async def read(url: str, body: Any) -> Any:
            return self._value(url, *await self._exchange(url, body))

        return self._all(url, bodies, read)

    def stream(
        self, url: str, bodies: Sequence[Mapping[str, Any]], requests: int
    ) -> list[Streamed]:
        """Return what a server streams for each body, with ``requests`` of them in flight.

        A server that cannot be reached, has an error of its own or too many requests is asked again
        after a pause, ``TRIES`` times in all. A request that fails does not affect the others.
        """
        return self._all(url, bodies, self._streamed, requests)

    @cached_property
    def _runner(self) -> asyncio.Runner:
        return asyncio.Runner()

    @cached_property
    def _http(self) -> httpx2.AsyncClient:
        # Compressed answers could be larger than what arrives.
        headers = {"Accept-Encoding": "identity"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        limits = httpx2.Limits(keepalive_expiry=IDLE)
        return httpx2.AsyncClient(
            headers=headers, timeout=None, verify=_ssl_context(), limits=limits
        )

    def _all(
        self, url: str, bodies: Sequence[Any], read: Read, requests: int | None = None
    ) -> list[Any]:
        """Return what is read for each body, with ``requests`` of them at once."""
        require(
            "@" not in url.partition("://")[2].partition("/")[0],
            "the address contains a name or a password, which messages and files would show: leave "
            f"it out, and put a key into {KEY_VARIABLE}",
        )
        free = asyncio.Semaphore(requests or self.requests)

        async def one(body: Any) -> Any:
            async with free:
                return await read(url, body)

        async def every() -> list[Any]:
            return await asyncio.gather(*map(one, bodies))

        try:
            return self._runner.run(every())
        except UNREACHABLE as error:
            raise UsageError(_unreachable(url, error)) from error

    async def _exchange(
        self, url: str, body: Any, again: bool = False
    ) -> tuple[httpx2.Response, bytes]:
        """Return an answer and its body.

        A GET whose connection breaks is sent once more, since a healthy server may close one.
        """
        method = "GET" if body is None else "POST"
        try:
            async with (
                asyncio.timeout(self.timeout),
                self._http.stream(method, url, json=body) as response,
            ):
                return response, await _content(url, response)
        except TimeoutError as error:
            raise UsageError(self._late(url)) from error
        except httpx2.TransportError:
            if again or body is not None:
                raise
        return await self._exchange(url, body, again=True)

    async def _streamed(self, url: str, body: Any) -> Streamed:
        """Send a request, again if the server could not take it, and read the stream."""
        for retries in range(TRIES):
            began = time.perf_counter()
            try:
                async with (
                    asyncio.timeout(self.timeout),
                    self._http.stream("POST", url, json=body) as response,
                ):
                    events = await self._events(url, response, began)
                return Streamed(began, time.perf_counter() - began, events, retries)
            except TimeoutError:
                return Streamed(began, self.timeout, [], retries, self._late(url))
            except _StatusError as failure:
                error, status = str(failure), failure.status
                if (
                    status < HTTPStatus.INTERNAL_SERVER_ERROR
                    and status != HTTPStatus.TOO_MANY_REQUESTS
                ):
                    break
            except UsageError as failure:
                return Streamed(began, time.perf_counter() - began, [], retries, str(failure))
            except UNREACHABLE as failure:
                error, status = _unreachable(url, failure), 0
            if retries + 1 < TRIES:
                await asyncio.sleep(PAUSE * 2**retries)
        return Streamed(began, time.perf_counter() - began, [], retries, error, status)

    async def _events(self, url: str, response: httpx2.Response, began: float) -> list[Event]:
        """Return the values of a stream; a server that does not stream answers with one.

        Raises:
            UsageError: The answer is something else.
        """
        if response.status_code != HTTPStatus.OK or not response.headers.get(
            "content-type", ""
        ).startswith("text/event-stream"):
            content = await _content(url, response)
            value = self._value(url, response, content)
            return [Event(time.perf_counter() - began, value)]
        events: list[Event] = []
        async for line in _lines(url, response):
            name, _, data = line.partition(b":")
            if name != b"data" or data.strip() == DONE:
                continue  # a comment, another field, or the end
            try:
                events.append(Event(time.perf_counter() - began, parsed(data)))
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    f"{url} streams no JSON but '{quoted(data)}' ({quoted(str(error))}): {API}"
                ) from error
        return events

    def _late(self, url: str) -> str:
        return (
            f"{url} did not answer within {self.timeout:g} seconds: raise --timeout, or send "
            "fewer requests at once"
        )

    def _value(self, url: str, response: httpx2.Response, content: bytes) -> Any:
        if response.has_redirect_location:
            location = quoted(response.headers["location"])
            raise UsageError(
                f"{url} redirects to {location}, which is not followed: give the final address"
            )
        if (code := response.status_code) != HTTPStatus.OK:
            advice = {**ADVICE, **self.advice}.get(code, "look into the server's log")
            raise _StatusError(f"{url} answers {code} ({quoted(content)}): {advice}", code)
        try:
            return parsed(content)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{url} answers no JSON but '{quoted(content)}' ({quoted(str(error))}): {API}"
            ) from error


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the trusted certificates; reading them takes longer than a request."""
    return httpx2.create_ssl_context()


def _unreachable(url: str, error: BaseException) -> str:
    reason = quoted(str(error)) or type(error).__name__
    return f"no server answers at {url} ({reason}): start it, or correct the address"


async def _content(url: str, response: httpx2.Response) -> bytes:
    """Return the body of an answer, up to the maximum size."""
    return b"".join([part async for part in _parts(url, response, MAX_BODY)])


async def _lines(url: str, response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, each as soon as its end arrives."""
    line = b""
    async for part in _parts(url, response, MAX_STREAM):
        *lines, line = (line + part).split(b"\n")
        require(len(line) <= MAX_BODY, f"{url} streams a line of over {MAX_BODY >> 20} MiB: {API}")
        for whole in lines:
            yield whole
    yield line


async def _parts(url: str, response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """Yield the bytes of an answer as they arrive.

    Raises:
        UsageError: They are compressed, or more than ``most``.
    """
    encoding = response.headers.get("content-encoding", "identity")
    require(
        encoding.lower() == "identity",
        f"{url} compresses its answer ({quoted(encoding)}), which it was asked not to: switch "
        "compression off in the server",
    )
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        require(size <= most, f"{url} answers more than {most >> 20} MiB: {API}")
        yield part


def parsed(content: bytes) -> Any:
    """Return the value of JSON in UTF-8 with finite numbers and distinct keys.

    Raises:
        ValueError: It is something else.
        RecursionError: It is nested too deeply.
    """
    value = json.loads(
        content.decode(), object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_finite
    )
    if b"\\ud" in content.lower():  # half of a character, which no file can hold
        json.dumps(value, ensure_ascii=False).encode()
    return value


def quoted(text: str | bytes) -> str:
    """Return the beginning of what a server says, printable and without secrets."""
    printable = text if isinstance(text, str) else text[:MAX_SHOWN].decode(errors="replace")
    return shown(mask_tokens(printable))


def described(value: object) -> str:
    """Return the beginning of a value that a server answers, like ``quoted``."""
    brief = reprlib.Repr()
    brief.maxstring = MAX_SHOWN  # a key is masked before it is cut
    return quoted(brief.repr(value))


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice")
    return values


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{shown(text)} is not a finite number")
    return number
