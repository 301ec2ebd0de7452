"""A proxy before a server that plants a fault: it corrupts answers, or cools every tenth request.

python tasks/measure/servers/proxy.py http://127.0.0.1:8000 --cool 10
python tasks/measure/servers/proxy.py http://127.0.0.1:8000 --corrupt 0.03
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

COLD = 0.5  # times the temperature

_DIGIT = re.compile(rb"(\\u[0-9a-fA-F]{4})|\d")  # not within an escape


class Proxy(BaseHTTPRequestHandler):
    server_url: str
    cooled: int  # every how many requests; 0 for none
    corrupted: float  # share of prompts whose answer loses its digits
    requests: Iterator[int]

    def do_GET(self) -> None:
        self.forward(None)

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.cooled and next(self.requests) % self.cooled == 0:
            body["temperature"] *= COLD
        self.forward(body)

    def forward(self, body: dict[str, Any] | None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.server_url + self.path, data, {"Content-Type": "application/json"})
        try:
            with urlopen(request) as answer:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                for line in answer:
                    self.wfile.write(self.corrupt(line) if self.hits(body) else line)
                    self.wfile.flush()
        except HTTPError as error:
            self.send_response(error.code)
            self.end_headers()
            self.wfile.write(error.read())

    def hits(self, body: dict[str, Any] | None) -> bool:
        """Return whether the answer to this prompt is corrupted; the choice depends on it alone."""
        if body is None or not self.corrupted:
            return False
        asked = json.dumps([body.get("prompt"), body.get("messages")]).encode()
        number = int.from_bytes(blake2b(asked, digest_size=4).digest())
        return number < self.corrupted * 2**32

    @staticmethod
    def corrupt(line: bytes) -> bytes:
        """Replace the digits of the texts in an event."""
        return re.sub(
            rb'("(?:text|content)": ?")((?:[^"\\]|\\.)*)',
            lambda match: match[1] + _DIGIT.sub(lambda part: part[1] or b"x", match[2]),
            line,
        )

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def proxied(url: str, *, cooled: int = 0, corrupted: float = 0.0) -> Iterator[str]:
    """Run a proxy in a thread, and yield its address."""
    fields = {"server_url": url, "cooled": cooled, "corrupted": corrupted, "requests": count(1)}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Planted", (Proxy,), fields))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--cool", type=int, default=0, help="every how many requests")
    parser.add_argument("--corrupt", type=float, default=0.0, help="share of prompts")
    options = parser.parse_args()
    with proxied(options.url, cooled=options.cool, corrupted=options.corrupt) as url:
        input(f"{url}\npress Enter to stop\n")


if __name__ == "__main__":
    main()
