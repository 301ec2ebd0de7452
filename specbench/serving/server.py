"""A server with OpenAI's API: its address, what it tells of itself, and what it is asked.

``specbench audit`` and ``specbench run --server`` ask it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from specbench.errors import require
from specbench.serving.answers import read_answer
from specbench.serving.client import KEY_VARIABLE, Client, Event, Streamed, quoted
from specbench.serving.options import OPTIONS, Dialect, learn_dialect

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Where engines tell their version: the path, the engine, and the key of the answer.
TELLING = (
    ("/version", "vllm", "version"),
    ("/props", "llama.cpp", "build_info"),
    ("/get_server_info", "sglang", "version"),
)
MOST_MODELS = 20  # of a server's list
_PROMPT = "add --text-prompts if the server takes no token ids, or name its model, as in URL#MODEL"
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
    dialect: Dialect = field(default_factory=Dialect, compare=False)  # see ``learned``

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
            f"put a key into {KEY_VARIABLE}",
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
        body = self._body(prompt, temperature, limit)
        bodies = [self.dialect.of({**body, "seed": number}) for number in range(seed, seed + count)]
        return [
            self._completion(answer, limit) for answer in self.client.post(self.endpoint, bodies)
        ]

    def learned(self, prompt: Sequence[int]) -> Server:
        """Return the server with the options that it takes, by requests for one token."""
        body = {**self._body(prompt, 0.0, 1), "seed": 0}
        dialect, _ = learn_dialect(body, lambda b: self.client.stream(self.endpoint, [b], 1)[0])
        return replace(self, dialect=dialect)

    @property
    def unset(self) -> list[str]:
        """Penalties and filters that the server refuses, so that its own values apply."""
        return self.dialect.unset(self.software().get("software"))

    def _body(self, prompt: Sequence[int], temperature: float, limit: int) -> dict[str, Any]:
        sent = list(prompt) if self.tokenizer is None else _text(self.tokenizer, prompt)
        body = OPTIONS | {"prompt": sent, "temperature": temperature, "max_tokens": limit}
        return body if self.model is None else body | {"model": self.model}

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
