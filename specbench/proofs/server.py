"""Decoders under audit, and one of them: a server with OpenAI's completions API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from specbench.client import API, Client, described, quoted
from specbench.errors import UsageError, require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Servers filter tokens by default; names that a server does not know are ignored.
UNFILTERED = {"top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1}
# vLLM returns tokens by the first option, llama.cpp by the others in a part of its answer.
WITH_TOKENS = {"return_token_ids": True, "return_tokens": True, "verbose": True}
VERBOSE = "__verbose"
OPTIONS = UNFILTERED | WITH_TOKENS
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


class Decoder(Protocol):
    """What an audit needs of a decoder."""

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt ``count`` times with other random numbers, by ``limit`` tokens at most.

        Temperature 0 is greedy. All tokens of the vocabulary may be sampled.
        """


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

    def __post_init__(self) -> None:
        """Check the address."""
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        require(
            bool(valid) and self.url.isprintable(),
            f"--url must begin with http:// or https:// and a host, not '{quoted(self.url)}': "
            "give an address such as http://localhost:8080/v1",
        )
        require(
            not ({"@", "?", "#"} & {*self.url}),
            "--url must not contain a user, a password, a query or a fragment: "
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

    def reach(self) -> None:
        """Refuse a server that does not run or wants another key, before anything is loaded."""
        self.client.reach(f"{self.base}/models")

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt, one request per text; see ``Decoder.complete``."""
        body = OPTIONS | {
            "prompt": list(prompt) if self.tokenizer is None else _text(self.tokenizer, prompt),
            "temperature": temperature,
            "max_tokens": limit,
        }
        if self.model is not None:
            body["model"] = self.model
        bodies = [{**body, "seed": number} for number in range(seed, seed + count)]
        return [
            self._completion(answer, limit) for answer in self.client.post(self.endpoint, bodies)
        ]

    def _completion(self, answer: Any, limit: int) -> Completion:
        """Return the text in an answer, which may contain anything."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            choice = {}
        text, tokens = choice.get("text"), choice.get("token_ids")
        if not isinstance(text, str) or "finish_reason" not in choice:
            raise UsageError(
                f"{self.endpoint} answers {described(answer)} without choices, text and "
                f"finish_reason: {API}"
            )
        if tokens is None and isinstance(verbose := answer.get(VERBOSE), dict):
            tokens = verbose.get("tokens") or None
        # True is an int in Python.
        if tokens is not None and not (
            isinstance(tokens, list) and all(type(token) is int and token >= 0 for token in tokens)
        ):
            raise UsageError(
                f"{self.endpoint} answers the token_ids {described(tokens)}, which are none: {API}"
            )
        if tokens is not None and len(tokens) > limit:
            raise UsageError(
                f"{self.endpoint} answers {len(tokens):,} token_ids where at most {limit} were "
                f"asked for: {API}"
            )
        return Completion(text, tokens, choice["finish_reason"] == "stop")


def _text(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """Return a prompt as text without its first special token, which servers add themselves."""
    tokens = list(prompt)
    if tokens and tokens[0] == tokenizer.bos_token_id:
        tokens = tokens[1:]
    return str(tokenizer.decode(tokens))
