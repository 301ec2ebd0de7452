"""A server with OpenAI's API: its address, what it tells of itself, and what it is asked.

``specbench audit`` and ``specbench run --server`` ask it in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from specbench.client import Client, Event, StatusError, Streamed, quoted
from specbench.errors import require
from specbench.servers.answers import read_answer
from specbench.servers.options import (
    LLAMACPP_NEUTRAL,
    NEUTRAL,
    WITH_TOKENS,
    Dialect,
    learn_dialect,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Where engines tell their version: the path, the engine, and the key of the answer.
TELLING = (
    ("/version", "vllm", "version"),
    ("/props", "llama.cpp", "build_info"),
    ("/get_server_info", "sglang", "version"),
)
MOST_MODELS = 20  # of a server's list
_PROMPT = "add --text-prompts if the server takes no token ids, or correct --model"
ADVICE: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: _PROMPT,
    HTTPStatus.UNPROCESSABLE_ENTITY: _PROMPT,
}


class Completion(NamedTuple):
    """A text that a decoder wrote after a prompt, without its end token."""

    text: str
    tokens: list[int] | None  # None if the decoder returns only the text
    ended: bool  # by an end token, not by the limit


@dataclass(frozen=True)
class Server:
    """A server at an address such as ``http://localhost:8080/v1``.

    Raises:
        UsageError: The address is none, or the server does not answer as OpenAI's API does; the
            message says what to do.
    """

    url: str
    client: Client = field(default_factory=lambda: Client(advice=ADVICE))
    model: str | None = None  # the server's name of the model; None leaves it out
    # Sends prompts as text by this tokenizer, else as token ids.
    tokenizer: PreTrainedTokenizerBase | None = None
    _learned: list[Dialect] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the address."""
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        require(
            bool(valid) and self.url.isprintable(),
            f"an address must begin with http:// or https:// and a host, not '{quoted(self.url)}': "
            "give an address such as http://localhost:8080/v1",
        )
        require(
            not ({"@", "?", "#"} & {*self.url}),
            "an address must not contain a user, a password, a query or a fragment: "
            "give a key with --api-key",
        )

    @property
    def base(self) -> str:
        """The address of the API."""
        base = self.url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"

    @property
    def endpoint(self) -> str:
        """The address of completions."""
        return f"{self.base}/completions"

    @property
    def chat_endpoint(self) -> str:
        """The address of chat completions."""
        return f"{self.base}/chat/completions"

    def reach(self) -> None:
        """Refuse a server that does not run or wants another key, before anything is loaded."""
        self.client.reach(f"{self.base}/models")

    def told(self) -> dict[str, Any]:
        """Return what the server tells of itself: software, version, models, length of context.

        Raises:
            UsageError: It has no model, or none of the name that the user gave.
        """
        models = _models(self.client.get(f"{self.base}/models"))
        facts: dict[str, Any] = {"models": [*models], **self.software()}
        model = self.model or next(iter(models), None)
        require(
            model is not None and (model in models or not models),
            f"{self.base}/models has no model {quoted(model or '')} but "
            f"{', '.join(models) or 'none'}: name one of them behind the address, as in "
            f"{quoted(self.url)}#MODEL",
        )
        return {**facts, "model": model, "context": models.get(model or "")}

    def software(self) -> dict[str, str]:
        """Return the engine and its version; empty if the server does not tell them."""
        root = self.base.removesuffix("/v1")
        for path, name, key in TELLING:
            answer = self.client.get(f"{root}{path}")
            if isinstance(answer, dict) and isinstance(version := answer.get(key), str):
                return {"software": name, "version": quoted(version)}
        return {}

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt, one request per text; see ``Decoder.complete``."""
        body = {
            **NEUTRAL | LLAMACPP_NEUTRAL | WITH_TOKENS,
            "prompt": list(prompt) if self.tokenizer is None else _text(self.tokenizer, prompt),
            "temperature": temperature,
            "max_tokens": limit,
        }
        if self.model is not None:
            body["model"] = self.model
        bodies = [{**body, "seed": number} for number in range(seed, seed + count)]
        try:
            answers = self._post(bodies)
        except StatusError:
            if self._learned or not (dialect := self._learn(bodies[0])).described:
                raise
            self._learned.append(dialect)
            answers = self._post(bodies)
        return [self._completion(answer, limit) for answer in answers]

    @property
    def dialect(self) -> Dialect:
        """The options that the server takes, as far as its refusals tell."""
        return self._learned[0] if self._learned else Dialect()

    @property
    def unset(self) -> list[str]:
        """Penalties and filters that the server refuses, so that its own values apply."""
        return self.dialect.unset(self.software().get("software")) if self._learned else []

    def _learn(self, body: Mapping[str, Any]) -> Dialect:
        return learn_dialect(body, lambda b: self.client.stream(self.endpoint, [b], 1)[0])[0]

    def _post(self, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
        return self.client.post(self.endpoint, [self.dialect.of(body) for body in bodies])

    def _completion(self, value: Any, limit: int) -> Completion:
        """Return the text in an answer, which may contain anything."""
        streamed = Streamed(0.0, 0.0, [Event(0.0, value)], 0)
        answer = read_answer(streamed, server=self.endpoint, limit=limit)
        return Completion(answer.text, answer.token_ids, answer.stopped_by in ("eos", "stop"))


def _text(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """Return a prompt as text without its first special token, which servers add themselves."""
    tokens = list(prompt)
    if tokens and tokens[0] == tokenizer.bos_token_id:
        tokens = tokens[1:]
    return str(tokenizer.decode(tokens))


def _models(answer: Any) -> dict[str, int | None]:
    """Return the length of context, if known, by the names of a server's models."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    models: dict[str, int | None] = {}
    for row in rows[:MOST_MODELS] if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            context = row.get("max_model_len")
            models[quoted(row["id"])] = context if type(context) is int else None
    return models
