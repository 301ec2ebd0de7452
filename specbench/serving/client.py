"""JSON over HTTP with servers that are not trusted.

A request has one deadline, an answer a maximum size, and both end at once on Ctrl-C. Redirects are
not followed, since the other host would get the key. An answer is one JSON value, or a stream of
them as server-sent events, each with the time at which it arrived. Connections stay open between
requests. Proxies and certificates are those of the environment.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import time
import weakref
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx2

from specbench.errors import UsageError, hide, require
from specbench.serving import network
from specbench.serving.values import breaks_off, error_words, failure_of, parsed, quoted

KEY_VARIABLE = "SPECBENCH_API_KEY"
MAX_BODY = 2**22  # bytes of an answer
MAX_STREAM = 2**26  # bytes of a stream
PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # encodings of a body, and zlib's word for each
KEY_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
LOG = "look into the server's log"
ADVICE: dict[int, str] = {
    **dict.fromkeys(KEY_REFUSED, f"put the server's key into {KEY_VARIABLE}"),
    HTTPStatus.NOT_FOUND: "correct the address, or name one of the server's models",
    HTTPStatus.REQUEST_TIMEOUT: "raise --timeout, or send fewer requests at once",
    HTTPStatus.SERVICE_UNAVAILABLE: f"wait until it is ready, or {LOG}",
    HTTPStatus.TOO_MANY_REQUESTS: "send fewer requests at once, or run the same command later",
}
API = "give the address of a server with OpenAI's completions API, such as http://localhost:8080/v1"
CHUNKS = "let the server, and any proxy before it, stream OpenAI's chunks unchanged"
TRIES = 3  # of a request that the server could not take
PAUSE = 0.5  # seconds before the second try, doubled before the third
IDLE = 1.0  # seconds that a connection is kept; a request on one that the server closes is lost
DONE = b"[DONE]"
LAST = 0.2  # seconds in which a connection must end behind it, to be used again
_LINE_END = re.compile(rb"\r\n|\r|\n")
_FIELD = re.compile(rb"(?:data|event|id|retry)?:")  # begins a line of events
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

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
    waited: float = 0.0  # seconds between tries, because the server asked for them
    is_done: bool = False  # whether the end is marked, which needs no finish_reason then


class _FailedError(UsageError):
    """A server answers with an error, at once or in the middle of a text."""

    def __init__(
        self, message: str, status: int, *, passes: bool = False, wait: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.passes = passes or network.may_pass(status)  # whether another try may have an answer
        self.wait = wait  # seconds after which the server wants to be asked again


@dataclass(frozen=True)
class Client:
    """Sends requests, several at once. No message contains the key."""

    timeout: float = 60.0  # seconds of a request, from connecting to the answer's last byte
    requests: int = 1  # at once
    api_key: str | None = field(
        default_factory=lambda: os.environ.get(KEY_VARIABLE) or None, repr=False
    )
    advice: Mapping[int, str] = field(default_factory=dict)  # what to do, by status of an answer
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # of every request

    def __post_init__(self) -> None:
        """Check the key and the headers, and keep them out of messages and files."""
        for name, value in self.headers.items():
            require(
                bool(_HEADER.fullmatch(name)) and value.isascii() and value.isprintable(),
                f"--header {quoted(name)} must have a name and a value of visible ASCII characters",
            )
            hide(value)
            if name.lower().endswith("authorization"):
                hide(value.rpartition(" ")[2])  # of "Bearer KEY"
        if self.api_key is not None:
            require(
                self.api_key.isascii() and self.api_key.isprintable() and " " not in self.api_key,
                f"{KEY_VARIABLE} must consist of visible ASCII characters: "
                "give the key without spaces and line ends",
            )
            hide(self.api_key)

    def reach(self, url: str) -> None:
        """Refuse an address that nothing answers, that redirects, is busy or wants another key."""

        async def read(url: str, body: Any) -> None:
            response, content = await self._exchange(url)
            refused = (*KEY_REFUSED, HTTPStatus.SERVICE_UNAVAILABLE)
            if response.has_redirect_location or response.status_code in refused:
                self._refuse(url, response, content)

        self._all(url, [None], read)

    def get(self, url: str) -> Any:
        """Return the JSON at an address, or None if there is none."""
        with suppress(ValueError, RecursionError):
            return parsed(self.get_content(url))
        return None

    def get_content(self, url: str, connections: int = 1) -> bytes:
        """Return what is at an address, empty if nothing is; several ``connections`` stay open."""

        async def read(url: str, body: Any) -> bytes:
            with suppress(UsageError, *network.UNREACHABLE):
                response, content = await self._exchange(url)
                return content if response.status_code == HTTPStatus.OK else b""
            return b""

        content: bytes = self._all(url, [None] * connections, read, connections)[0]
        return content

    def post(self, url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the JSON that a server answers to each body."""

        async def read(url: str, body: Any) -> Any:
            answer = await self._streamed(url, body)
            require(not answer.error, answer.error)
            return answer.events[0].value if answer.events else None

        return self._all(url, bodies, read)

    def stream(
        self, url: str, bodies: Sequence[Mapping[str, Any]], requests: int
    ) -> list[Streamed]:
        """Return what a server streams for each body, with ``requests`` of them in flight.

        A server that cannot be reached, has an error of its own or too many requests, or breaks off
        a text, is asked again after a pause, ``TRIES`` times in all. If it names the seconds after
        which it wants to be asked (``Retry-After``), a request waits as long, up to ``timeout`` in
        all. A request that fails does not affect the others.
        """
        return self._all(url, bodies, self._streamed, requests)

    @cached_property
    def _runner(self) -> asyncio.Runner:
        runner = asyncio.Runner()
        weakref.finalize(self, runner.close)
        return runner

    @cached_property
    def _http(self) -> httpx2.AsyncClient:
        # A packed stream waits for its packer.
        headers = {"Accept-Encoding": "identity"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return httpx2.AsyncClient(
            headers=[*{**httpx2.Headers(headers), **httpx2.Headers(self.headers)}.items()],
            timeout=None,
            verify=_ssl_context(),
            limits=httpx2.Limits(keepalive_expiry=IDLE),
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
        except network.UNREACHABLE as error:
            raise UsageError(network.unreachable(url, error)) from error

    async def _exchange(self, url: str) -> tuple[httpx2.Response, bytes]:
        """Return the answer to a GET, and its body.

        It is sent once more if its connection breaks, since a healthy server may close one, and
        when a server that is busy wants to be asked again.
        """
        broken, waited = False, 0.0
        while True:
            try:
                async with asyncio.timeout(self.timeout), self._http.stream("GET", url) as response:
                    content = await _content(url, response)
            except TimeoutError as error:
                raise UsageError(self._late(url)) from error
            except httpx2.TransportError:
                if broken:
                    raise
                broken = True
                continue
            passes = network.may_pass(response.status_code)
            wait = network.seconds_to_wait(response.headers) if passes else None
            waited += max(wait or 0.0, PAUSE)
            if wait is None or waited > self.timeout:
                return response, content
            await asyncio.sleep(max(wait, PAUSE))

    async def _streamed(self, url: str, body: Any) -> Streamed:
        """Send a request, again if the server could not answer it, and read the stream."""
        tries, retries, waited = 0, 0, 0.0
        while True:
            began = time.perf_counter()
            try:
                async with (
                    asyncio.timeout(self.timeout),
                    self._http.stream("POST", url, json=body) as response,
                ):
                    events, ended = await self._events(url, response, began)
                seconds = (ended or time.perf_counter()) - began
                done = ended is not None
                return Streamed(began, seconds, events, retries, waited=waited, is_done=done)
            except TimeoutError:
                return Streamed(began, self.timeout, [], retries, self._late(url))
            except _FailedError as failed:
                error = failed
            except UsageError as wrong:
                return Streamed(began, time.perf_counter() - began, [], retries, str(wrong))
            except network.UNREACHABLE as reason:
                error = _FailedError(network.unreachable(url, reason), 0, passes=True)
            seconds = time.perf_counter() - began
            tries += error.wait is None
            pause = PAUSE * 2.0 ** (tries - 1) if error.wait is None else max(error.wait, PAUSE)
            waited += 0 if error.wait is None else pause
            if not error.passes or tries == TRIES or waited > self.timeout:
                return Streamed(began, seconds, [], retries, str(error), error.status)
            retries += 1
            await asyncio.sleep(pause)

    async def _events(
        self, url: str, response: httpx2.Response, began: float
    ) -> tuple[list[Event], float | None]:
        """Return the values of an answer, and when ``[DONE]`` ended them.

        They are server-sent events, JSON alone, or JSON in each line: the first line decides, since
        servers call a stream by many names.
        """
        if response.status_code != HTTPStatus.OK:
            self._refuse(url, response, await _content(url, response))
        events: list[Event] = []
        pending: list[bytes] = []  # lines of a value that is not complete, of so many bytes
        size, form, ended = 0, b"", None
        is_named = "event-stream" in response.headers.get("content-type", "").lower()

        def complete(*, must: bool = True) -> None:
            """Read the pending lines, which ``must`` be a value."""
            data = b"\n".join(pending)
            try:
                value = parsed(data)
            except (ValueError, RecursionError) as error:
                if not must:
                    return
                verb, advice = ("streams", CHUNKS) if form == b":" else ("answers", API)
                raise UsageError(
                    f"{url} {verb} no JSON but '{quoted(data)}' ({quoted(str(error))}): {advice}"
                ) from error
            pending.clear()
            if failure := failure_of(value):  # it may pass within a text, or if its status does
                passes = bool(events) or not failure.status
                raise _FailedError(
                    f"{url} {failure.words}: {LOG}",
                    0 if passes else failure.status,
                    passes=passes or network.may_pass(failure.status),
                )
            events.append(Event(time.perf_counter() - began, value))

        lines = _lines(url, response)
        async for line in lines:
            if not form and line.strip():
                is_json = line.lstrip()[:1] in (b"{", b"[")
                form = b":" if _FIELD.match(line) or (is_named and not is_json) else b"{"
            name, _, data = line.partition(b":") if form == b":" else (b"data", b"", line)
            if data.strip() == DONE:
                ended = time.perf_counter()
                break
            if name == b"data" and data.strip():
                # One line is a value, as nearly always, or begins one.
                size = size + len(data) if pending else len(data)
                pending.append(data.removeprefix(b" "))
                fault = f"{url} streams a value of over {MAX_BODY >> 20} MiB: {API}"
                require(size <= MAX_BODY, fault)
                if len(pending) == 1:
                    complete(must=False)
            elif pending and form == b":" and not line:
                complete()
        if pending or (not events and ended is None):
            complete()
        if ended is None and breaks_off(value for _, value in events):
            problem = f"{url} breaks off its answer, which has no finish_reason"
            raise _FailedError(f"{problem}: {LOG}", 0, passes=True)
        with suppress(TimeoutError, httpx2.TransportError):
            async with asyncio.timeout(LAST):
                async for _ in lines:
                    pass
        return events, ended

    def _late(self, url: str) -> str:
        advice = {**ADVICE, **self.advice}[HTTPStatus.REQUEST_TIMEOUT]
        return f"{url} did not answer within {self.timeout:g} seconds: {advice}"

    def _refuse(self, url: str, response: httpx2.Response, content: bytes) -> None:
        if response.has_redirect_location:
            location = quoted(response.headers["location"])
            raise UsageError(
                f"{url} redirects to {location}, which is not followed: give the final address"
            )
        if (code := response.status_code) != HTTPStatus.OK:
            advice = {**ADVICE, **self.advice}.get(code, LOG)
            wait = network.seconds_to_wait(response.headers) if network.may_pass(code) else None
            words = error_words(content)
            if wait is not None and wait > self.timeout:
                words += f"; it asks to wait for {wait:.0f} seconds"
            raise _FailedError(f"{url} answers {code} ({words}): {advice}", code, wait=wait)


_ssl_context = cache(httpx2.create_ssl_context)  # reading them takes longer than a request


async def _content(url: str, response: httpx2.Response) -> bytes:
    return b"".join([part async for part in _parts(url, response, MAX_BODY)])


async def _lines(url: str, response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, each as soon as its end arrives."""
    line, is_cut, mark = b"", False, codecs.BOM_UTF8
    async for part in _parts(url, response, MAX_STREAM):
        text = line + (part.removeprefix(b"\n") if is_cut else part)
        is_cut = part.endswith(b"\r")  # its line feed may come later
        *lines, line = _LINE_END.split(text)
        require(len(line) <= MAX_BODY, f"{url} streams a line of over {MAX_BODY >> 20} MiB: {API}")
        for whole in lines:
            yield whole.removeprefix(mark)
            mark = b""
    yield line.removeprefix(mark)


async def _parts(url: str, response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """Yield the bytes of an answer as they arrive, unpacked; refuse more than ``most``."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    require(
        encoding in ("identity", "", *PACKED),
        f"{url} compresses its answer ({quoted(encoding)}), which it was asked not to: switch "
        "compression off in the server",
    )
    unpacker = zlib.decompressobj(PACKED[encoding]) if encoding in PACKED else None
    size = 0
    async for part in response.aiter_raw():
        try:
            unpacked = unpacker.decompress(part, most + 1) if unpacker else part
            while unpacker and unpacker.unused_data and len(unpacked) <= most:  # the next member
                part, unpacker = unpacker.unused_data, zlib.decompressobj(PACKED[encoding])
                unpacked += unpacker.decompress(part, most + 1)
        except zlib.error as error:
            raise UsageError(
                f"{url} answers what is no {encoding}, '{quoted(part)}': switch compression off in "
                "the server"
            ) from error
        size += len(unpacked)
        require(size <= most, f"{url} answers more than {most >> 20} MiB: {API}")
        if unpacked:
            yield unpacked
