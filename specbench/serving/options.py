"""Options of requests: neutral sampling in the words of every engine, and what servers refuse.

What a request does not name may have a value of its own at the server: from the model's
``generation_config``, from the server's command line, or from the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from specbench.serving.client import Streamed

#: Penalties and filters that are off, in the words of OpenAI, vLLM, SGLang and TensorRT-LLM; most
#: servers ignore words that they do not know.
NEUTRAL: dict[str, Any] = {
    **{"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    **{"presence_penalty": 0.0, "frequency_penalty": 0.0},
}
#: The same in words of llama.cpp alone.
LLAMACPP_NEUTRAL: dict[str, Any] = {
    **{"repeat_penalty": 1.0, "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0},
    **{"dry_multiplier": 0.0, "dynatemp_range": 0.0, "mirostat": 0, "adaptive_target": -1.0},
}
#: vLLM returns tokens by the first option, llama.cpp by the others in a part of its answer.
WITH_TOKENS = {"return_token_ids": True, "return_tokens": True, "verbose": True}
OPTIONS = NEUTRAL | LLAMACPP_NEUTRAL | WITH_TOKENS
#: llama.cpp's cache would favour the arm that comes second; SGLang and llama.cpp report drafts.
MEASURED = {
    **{"cache_prompt": False, "return_spec_tokens_details": True, "timings_per_token": True},
    "stream_options": {"include_usage": True},
}
OTHER_FORMS = {"top_k": (-1,)}  # SGLang's
NEUTRAL_START = (
    "start it without values of its own (vLLM: --generation-config vllm, SGLang: "
    "--sampling-defaults openai)"
)
_OPTIONAL = {*OPTIONS, *MEASURED, "seed"}
_UNRELATED = (401, 403, 404, 408, 429, 502, 503, 504)  # statuses that judge no option


class Dialect(NamedTuple):
    """The options that a server takes, and in which form."""

    forms: Mapping[str, Any] = {}  # values that are sent in another form
    refused: tuple[str, ...] = ()  # names of the options that are left out

    def of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request in this dialect."""
        left = {name: value for name, value in body.items() if name not in self.refused}
        return left | {name: value for name, value in self.forms.items() if name in left}

    def unset(self, software: str | None) -> list[str]:
        """Return penalties and filters that the server refuses, so it may use its own values."""
        words = NEUTRAL | (LLAMACPP_NEUTRAL if software == "llama.cpp" else {})
        return [name for name in words if name in self.refused]

    @property
    def described(self) -> dict[str, Any]:
        """The dialect in plain values; empty if the server takes all options as they are."""
        values = {"options_refused": [*self.refused], "options_changed": {**self.forms}}
        return {name: value for name, value in values.items() if value}


def learn_dialect(
    body: Mapping[str, Any],
    ask: Callable[[Mapping[str, Any]], Streamed],
    asked_for: Collection[str] = (),
) -> tuple[Dialect, Streamed]:
    """Return the dialect of a server, and its answer to a request in this dialect.

    If the server takes a request only without its options, these are added one by one: each as it
    is, then in its other form, and else left out alone.

    Args:
        body: A request with all options.
        ask: Sends a request.
        asked_for: Options that the user gave, which are never changed.
    """
    answer = ask(body)
    if not _refused(answer):
        return Dialect(), answer
    optional = [name for name in body if name in _OPTIONAL and name not in asked_for]
    dialect = Dialect(refused=tuple(optional))
    answer = ask(dialect.of(body))
    if answer.error or _refused(answer):
        return Dialect(), answer  # it is not the options that it refuses
    for name in optional:
        refused = tuple(other for other in dialect.refused if other != name)
        for form in ({}, *({name: form} for form in OTHER_FORMS.get(name, ()))):
            tried = Dialect({**dialect.forms, **form}, refused)
            if not _refused(ask(tried.of(body))):
                dialect = tried
                break
    return dialect, ask(dialect.of(body))


def _refused(answer: Streamed) -> bool:
    """Return whether a server refuses a request, by its status or within a stream."""
    values = [event.value for event in answer.events]
    within = any(isinstance(value, dict) and value.get("error") for value in values)
    return within or (answer.status > 0 and answer.status not in _UNRELATED)
