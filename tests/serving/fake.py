"""A small server with OpenAI's API that streams prepared texts, in which faults can be planted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Fault = Callable[["Handler", dict[str, Any]], bool]  # answers a request itself, or returns False


class Fake:
    """What a server answers and was asked; ``report`` is what the last chunk adds, by the words."""

    def __init__(
        self,
        text: Callable[[str], Sequence[str]] = lambda prompt: ["four", " is", " #### 4"],
        per_chunk: int = 2,
        delay: float = 0.0,
        fault: Fault = lambda handler, body: False,
        report: Callable[[int], dict[str, Any]] = lambda words: {},
        model: str = "tiny",  # or several names, separated by commas
    ) -> None:
        self.text, self.per_chunk, self.delay = text, per_chunk, delay
        self.fault, self.report, self.model = fault, report, model
        self.bodies: list[dict[str, Any]] = []
        self.in_flight, self.most_in_flight = 0, 0
        self.lock = Lock()


class Quiet(BaseHTTPRequestHandler):
    """Answers with JSON or bytes, and prints nothing."""

    def reply(self, code: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class Handler(Quiet):
    fake: Fake
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/v1/models":
            rows = [{"id": name, "max_model_len": 512} for name in self.fake.model.split(",")]
            return self.reply(200, {"data": rows})
        if self.path == "/version":
            return self.reply(200, {"version": "1.2.3"})
        return self.reply(404, {"error": "no such page"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake = self.fake
        with fake.lock:
            fake.bodies.append(body)
            fake.in_flight += 1
            fake.most_in_flight = max(fake.most_in_flight, fake.in_flight)
        try:
            if not fake.fault(self, body):
                self.stream(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client gave up
        finally:
            with fake.lock:
                fake.in_flight -= 1

    def stream(self, body: dict[str, Any]) -> None:
        fake, chat = self.fake, "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        words = list(fake.text(str(prompt)))[: body["max_tokens"]]
        self.begin()
        for start in range(0, len(words), fake.per_chunk):
            time.sleep(fake.delay)
            part = words[start : start + fake.per_chunk]
            text = "".join(part)
            ids = [len(word) for word in part]
            choice = {"delta": {"content": text}} if chat else {"text": text, "token_ids": ids}
            self.event({"model": body.get("model", fake.model), "choices": [choice]})
        ended = {"finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}
        if not chat:
            ended["token_ids"] = [0]  # the end token
        self.event({"model": body.get("model", fake.model), "choices": [ended]})
        usage = {"prompt_tokens": len(str(prompt)), "completion_tokens": len(words) + 1}
        self.event({"choices": [], "usage": usage, **fake.report(len(words) + 1)})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def begin(self, kind: str = "text/event-stream") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def serving(fake: Fake) -> AbstractContextManager[str]:
    """Run a server of prepared texts in a thread; the context is its address."""
    return threaded(type("Own", (Handler,), {"fake": fake}))


@contextmanager
def arms(**fakes: Fake) -> Iterator[list[str]]:
    """Run servers; yield the options of a run that has them as its arms, by these names."""
    with ExitStack() as running:
        urls = {name: running.enter_context(serving(fake)) for name, fake in fakes.items()}
        yield [word for name, url in urls.items() for word in ("--server", f"{name}={url}")]


@contextmanager
def threaded(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    # By default five connections may wait, and a further one is tried again after a second.
    kind = type("Server", (ThreadingHTTPServer,), {"request_queue_size": 128})
    server = kind(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def solved(prompt: str) -> list[str]:
    """Return an answer that depends on the prompt alone."""
    numbers = re.findall(r"\d+", prompt) or ["0"]
    return ["so", " it", " is", f" #### {numbers[-1]}"]
