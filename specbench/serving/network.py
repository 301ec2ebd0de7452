"""What stands between a client and a server: proxies, certificates, limits of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

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
    advice = "start it, or correct the address"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        advice = "name the file of its certificate by the variable SSL_CERT_FILE"
    elif isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.ConnectError):
        advice += ", whose scheme may be the other one of http and https"
    elif "WRONG_VERSION_NUMBER" in str(error):
        advice = "give the address with http://, since the server has no TLS"
    if proxy := by_proxy(url):
        advice += ", or put its host into the variable NO_PROXY"
    return f"no server answers at {url}{proxy} ({reason}): {advice}"


def is_here(url: str) -> bool:
    """Return whether an address is one of this machine."""
    try:
        host = urlsplit(url).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        return ip_address(host).is_loopback or ip_address(host).is_unspecified
    except ValueError:
        return False


def by_proxy(url: str) -> str:
    """Return the words that name the proxy before an address, without its password."""
    try:
        parts, proxies = urlsplit(url), getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all", "")
        if not proxy or is_here(url) or proxy_bypass(parts.hostname or ""):
            return ""
    except ValueError:
        return ""
    return f" by the proxy {quoted(proxy.rpartition('//')[2].rpartition('@')[2])}"


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
    except ValueError:
        return None
