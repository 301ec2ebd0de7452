"""JSON over HTTP with servers that are not trusted.

A request has one deadline, an answer a maximum size, and both end at once on Ctrl-C. Redirects are
not followed, since the other host would get the key. Everything that a message quotes of an answer
is short, printable and free of the key.
"""

from __future__ import annotations

import asyncio
import json
import math
import reprlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any

import httpx2

from specbench.errors import UsageError, require
from specbench.masking import hide, mask_tokens
from specbench.words import shown

KEY_VARIABLE = "SPECBENCH_API_KEY"
MAX_BODY = 2**22  # bytes of an answer
MAX_SHOWN = 2**12  # bytes of an answer that a message may quote
KEY_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
ADVICE: dict[int, str] = {
    **dict.fromkeys(KEY_REFUSED, f"give the server's key with --api-key or {KEY_VARIABLE}"),
    HTTPStatus.NOT_FOUND: "correct --url, or give --model one of the server's models",
}
# An address may be malformed in many ways; a port out of range raises a group of errors.
UNREACHABLE = (
    *(httpx2.HTTPError, httpx2.InvalidURL, ExceptionGroup),
    *(OSError, ValueError, ImportError),
)
API = "give the --url of a server with OpenAI's completions API, such as http://localhost:8080/v1"


@dataclass(frozen=True)
class Client:
    """Sends requests, several at once.

    Raises:
        UsageError: The key cannot be sent; the message does not contain it.
    """

    timeout: float = 60.0  # seconds of a request, from connecting to the answer's last byte
    requests: int = 1  # at once
    api_key: str | None = field(default=None, repr=False)
    advice: Mapping[int, str] = field(default_factory=dict)  # what to do, by status of an answer

    def __post_init__(self) -> None:
        """Check the key, and keep it out of messages and files."""
        if self.api_key is not None:
            require(
                self.api_key.isascii() and self.api_key.isprintable() and " " not in self.api_key,
                f"--api-key and {KEY_VARIABLE} must consist of visible ASCII characters: "
                "give the key without spaces and line ends",
            )
            hide(self.api_key)

    def reach(self, url: str) -> None:
        """Refuse an address that nothing answers, that redirects, or that wants another key.

        Raises:
            UsageError: It does; the message says what to do.
        """
        asyncio.run(self._all(url, [None], self._reached))

    def post(self, url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the JSON that a server answers to each body.

        Raises:
            UsageError: It does not answer with JSON; the message says what to do.
        """
        return asyncio.run(self._all(url, bodies, self._value))

    async def _all(self, url: str, bodies: Sequence[Any], read: Callable[..., Any]) -> list[Any]:
        # Compressed answers could be larger than what arrives.
        headers = {"Accept-Encoding": "identity"}
        require(
            "@" not in url.partition("://")[2].partition("/")[0],
            "--url contains a name or a password, which messages and files would show: give the "
            f"address without it, and a key with --api-key or {KEY_VARIABLE}",
        )
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        free = asyncio.Semaphore(self.requests)
        try:
            async with httpx2.AsyncClient(
                headers=headers, timeout=None, verify=_ssl_context()
            ) as http:

                async def one(body: Any) -> Any:
                    async with free:
                        return read(url, *await self._exchange(http, url, body))

                return await asyncio.gather(*map(one, bodies))
        except UNREACHABLE as error:
            reason = quoted(str(error)) or type(error).__name__
            raise UsageError(
                f"no server answers at {url} ({reason}): start it, or correct --url"
            ) from error

    async def _exchange(
        self, http: httpx2.AsyncClient, url: str, body: Any
    ) -> tuple[httpx2.Response, bytes]:
        """Return an answer and its body."""
        method = "GET" if body is None else "POST"
        try:
            async with (
                asyncio.timeout(self.timeout),
                http.stream(method, url, json=body) as response,
            ):
                return response, await _content(url, response)
        except TimeoutError as error:
            raise UsageError(
                f"{url} did not answer within {self.timeout:g} seconds: raise --timeout, or "
                "lower --batch-size"
            ) from error

    def _reached(self, url: str, response: httpx2.Response, content: bytes) -> None:
        if response.has_redirect_location or response.status_code in KEY_REFUSED:
            self._value(url, response, content)

    def _value(self, url: str, response: httpx2.Response, content: bytes) -> Any:
        if response.has_redirect_location:
            location = quoted(response.headers["location"])
            raise UsageError(
                f"{url} redirects to {location}, which is not followed: give the final --url"
            )
        if (code := response.status_code) != HTTPStatus.OK:
            advice = {**ADVICE, **self.advice}.get(code, "look into the server's log")
            raise UsageError(f"{url} answers {code} ({quoted(content)}): {advice}")
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


async def _content(url: str, response: httpx2.Response) -> bytes:
    """Return the body of an answer, up to the maximum size."""
    encoding = response.headers.get("content-encoding", "identity")
    require(
        encoding.lower() == "identity",
        f"{url} compresses its answer ({quoted(encoding)}), which it was asked not to: switch "
        "compression off in the server",
    )
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        require(
            len(content) <= MAX_BODY,
            f"{url} answers more than {MAX_BODY >> 20} MiB: {API}",
        )
    return bytes(content)


def parsed(content: bytes) -> Any:
    """Return the value of JSON in UTF-8 with finite numbers and distinct keys.

    Raises:
        ValueError: It is something else.
        RecursionError: It is nested too deeply.
    """
    value = json.loads(
        content.decode(),
        object_pairs_hook=_distinct,
        parse_float=_finite,
        parse_constant=_finite,
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
