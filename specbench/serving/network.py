"""Servers that cannot be reached, and those that want to be asked later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx2

from specbench.serving.values import quoted

# An address may be malformed in many ways; a port out of range raises a group of errors.
UNREACHABLE = (
    *(httpx2.HTTPError, httpx2.InvalidURL, ExceptionGroup),
    *(OSError, ValueError, ImportError),
)


def unreachable(url: str, error: BaseException) -> str:
    """Say that no server answers at an address, why, and what to do."""
    reason = quoted(str(error)) or type(error).__name__
    return f"no server answers at {url} ({reason}): start it, or correct the address"


def may_pass(status: int) -> bool:
    """Return whether a status is that of a server which could answer later."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which a server wants to be asked again; None if it does not say.

    ``Retry-After`` has seconds or a date, which is read by the server's own clock.
    """
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        until, now = _date(headers.get("retry-after")), _date(headers.get("date"))
        if until is None:
            return None
        seconds = (until - (now or datetime.now(UTC))).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _date(text: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(text or "").replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
