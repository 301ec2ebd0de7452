"""A server with OpenAI's API: its address, what it tells of itself, and what it is asked.

``check --server`` and ``run --server`` ask it in the same way: for neutral sampling, in
the words of every engine, without what it refuses. What a request does not name may have a value
of its own at the server: from the model's ``generation_config``, its command line, or the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from specbench.errors import UsageError, require
from specbench.serving.answers import read_answer
from specbench.serving.client import KEY_VARIABLE, LOG, Client, Event, Streamed
from specbench.serving.values import quoted

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
LIMIT, OTHER_LIMIT = "max_tokens", "max_completion_tokens"  # OpenAI's newer models want the second
NEUTRAL_START = (
    "start it without values of its own (vLLM: --generation-config vllm, SGLang: "
    "--sampling-defaults openai)"
)
_OPTIONAL = {*OPTIONS, *MEASURED, "seed"}
_UNRELATED = (401, 403, 404, 408, 429, 502, 503, 504)  # statuses that judge no option
# Where engines tell their version: the path, the engine, and the key of the answer.
TELLING = (
    ("/version", "vllm", "version"),
    ("/props", "llama.cpp", "build_info"),
    ("/get_server_info", "sglang", "version"),
)
MOST_MODELS, LONGEST_NAME = 20, 1000  # of a server's list that are named; characters of a name
_SECRET = re.compile(r"(^|[&_-])(api-?key|key|token|secret|password|sig|signature)=", re.I)
_VERSION = re.compile(r"v\d+\w*")  # a part of the address of an API, such as v1 or v1beta
_ENDPOINTS = ("/chat/completions", "/completions", "/models")
# What a dated name adds: :latest, -0613, -2407, @20260806, -2026-08-06.
_MONTH, _DAY = "(0[1-9]|1[0-2])", "(0[1-9]|[12][0-9]|3[01])"
_DATE = re.compile(rf"[-:@](latest|{_MONTH}{_DAY}|(20)?\d\d-?{_MONTH}(-?{_DAY})?)$")
IDS = (
    "texts are checked by their token ids, which vLLM and llama.cpp's server take and return: "
    "measure another server with specbench run --server"
)
_PROMPT = f"name its model, as in URL#MODEL; {IDS}"
ADVICE: dict[int, str] = {
    **{HTTPStatus.BAD_REQUEST: _PROMPT, HTTPStatus.UNPROCESSABLE_ENTITY: _PROMPT},
    HTTPStatus.REQUEST_TIMEOUT: LOG,
}


class Dialect(NamedTuple):
    """The options that a server takes, and in which form."""

    forms: Mapping[str, Any] = {}  # values that are sent in another form
    refused: tuple[str, ...] = ()  # names of the options that are left out
    limit: str = LIMIT  # what the limit of tokens is called

    def of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request in this dialect."""
        left = {name: value for name, value in body.items() if name not in self.refused}
        left |= {name: value for name, value in self.forms.items() if name in left}
        return {self.limit if name == LIMIT else name: value for name, value in left.items()}

    def unset(self, software: str | None) -> list[str]:
        """Return penalties and filters that the server refuses, so it may use its own values."""
        words = NEUTRAL | (LLAMACPP_NEUTRAL if software == "llama.cpp" else {})
        return [name for name in words if name in self.refused]

    @property
    def described(self) -> dict[str, Any]:
        """The dialect in plain values; empty if the server takes all options as they are."""
        renamed = {} if self.limit == LIMIT else {LIMIT: self.limit}
        values = {"options_refused": [*self.refused], "options_changed": {**self.forms, **renamed}}
        return {name: value for name, value in values.items() if value}


def learn_dialect(
    body: Mapping[str, Any],
    ask: Callable[[Mapping[str, Any]], Streamed],
    asked_for: Collection[str] = (),
) -> tuple[Dialect, Streamed]:
    """Return the dialect of a server, and its answer to a request ``body`` in this dialect.

    If the server takes a request only without its options, these are added one by one: each as it
    is, then in its other form, and else left out alone. Options that the user ``asked_for`` are
    never changed.
    """
    answer = ask(body)
    if not _refused(answer):
        return Dialect(), answer
    optional = [name for name in body if name in _OPTIONAL and name not in asked_for]
    for dialect in (
        Dialect(refused=tuple(optional)),
        Dialect(limit=OTHER_LIMIT),
        Dialect(refused=tuple(optional), limit=OTHER_LIMIT),
    ):
        taken = ask(dialect.of(body))
        if not taken.error and not dialect.refused:
            return dialect, taken
        if not taken.error:
            break
        if not _refused(taken):
            return Dialect(), taken
    else:  # it is not the options that it refuses
        return Dialect(), answer
    for name in dialect.refused:
        refused = tuple(other for other in dialect.refused if other != name)
        for form in ({}, *({name: form} for form in OTHER_FORMS.get(name, ()))):
            wider = dialect._replace(forms={**dialect.forms, **form}, refused=refused)
            if not ask(wider.of(body)).error:
                dialect = wider
                break
    return dialect, ask(dialect.of(body))


def _refused(answer: Streamed) -> bool:
    """Return whether a server refuses a request, by its status or within a stream."""
    return answer.status > 0 and answer.status not in _UNRELATED


def is_alias(asked: str, answered: str) -> bool:
    """Return whether one name of a model is the other, without a date or the folders before it.

    >>> is_alias("m", "m-2026-08-06"), is_alias("org/M:latest", "m"), is_alias("m", "m-mini")
    (True, True, False)
    >>> is_alias("/one/m.gguf", "/other/m.gguf"), is_alias("one/m", "other/m")
    (True, False)
    """
    names = (name.lower() for name in (asked, answered))
    files = (name.rpartition("/")[2] if name.startswith("/") else name for name in names)
    short, long = sorted(files, key=len)
    return any(f"/{name}".endswith(f"/{short}") for name in (long, _DATE.sub("", long)))


class Completion(NamedTuple):
    """A text that a server wrote after a prompt."""

    token_ids: list[int]  # maybe with an end token
    ended: bool  # by an end token, not by the limit


@dataclass(frozen=True)
class Server:
    """A server at an address such as ``http://localhost:8080/v1``."""

    url: str
    client: Client = field(default_factory=lambda: Client(advice=ADVICE))
    model: str | None = None  # the server's name of the model; None leaves it out
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
            not {"@", "#"} & {*self.url} and not _SECRET.search(parts.query),
            "an address must not contain a user, a password, a key or a fragment: "
            f"put a key into {KEY_VARIABLE}, or send it by --header",
        )

    @cached_property
    def base(self) -> str:
        """The address of the API: without an endpoint, and with a version."""
        return self._bases[0]

    @property
    def _bases(self) -> list[str]:
        """The addresses that may be meant, the likeliest first."""
        address = self.url.partition("?")[0].rstrip("/")
        for endpoint in _ENDPOINTS:
            if address.endswith(endpoint):
                return [address.removesuffix(endpoint)]
        parts = urlsplit(address).path.split("/")
        if _VERSION.fullmatch(parts[-1]):
            return [address]
        versioned = f"{address}/v1"
        has_version = any(map(_VERSION.fullmatch, parts))
        return [address, versioned] if has_version else [versioned, address]

    @property
    def endpoint(self) -> str:
        """The address of completions."""
        return self._at(f"{self.base}/completions")

    @property
    def chat_endpoint(self) -> str:
        """The address of chat completions."""
        return self._at(f"{self.base}/chat/completions")

    def _at(self, url: str) -> str:
        """Return an address with the query of the server's, such as ``?api-version=1``."""
        return url + "".join(self.url.partition("?")[1:])

    def located(self) -> Server:
        """Return the server at the address under which it lists its models, if it does."""
        bases = self._bases
        try:
            self.client.reach(self._at(f"{self.base}/models"))
        except UsageError:
            if len(bases) == 1:
                raise
        for base in bases:
            if _models(self.client.get(self._at(f"{base}/models"))):
                # An endpoint behind it says that the address is complete.
                url = base if Server(base).base == base else f"{base}{_ENDPOINTS[0]}"
                return replace(self, url=self._at(url))
        self.client.reach(self._at(f"{self.base}/models"))
        return self

    def describe(self, answers_as: str = "") -> dict[str, Any]:
        """Return what the server tells of itself: software, version, models, length of context.

        It may answer under another name of its model than that of its list, ``answers_as``.
        """
        models = _models(self.client.get(self._at(f"{self.base}/models")))
        model = self.model or next(iter(models), None)
        others = [
            name
            for name, row in models.items()
            if self.model is None
            and not is_alias(str(model), name)
            and not (row.get("root") and row.get("root") == models[str(model)].get("root"))
        ]
        require(
            not others,
            f"{self.base}/models lists several models, {', '.join(map(quoted, [*models][:4]))}"
            f"{' ...' if len(models) > 4 else ''}: name the one to ask behind the address, as in "
            f"{quoted(self.url)}#MODEL",
        )
        require(
            model is not None,
            f"{self.base}/models lists no model: name the server's behind the address, as in "
            f"{quoted(self.url)}#MODEL, or correct the address",
        )
        same = [name for name in models if is_alias(str(model), name)]
        require(
            bool(not models or same or answers_as),
            f"{self.base}/models has no model {quoted(model or '')} but "
            f"{', '.join(map(quoted, [*models][:MOST_MODELS]))}: name one of them behind the "
            f"address, as in {quoted(self.url)}#MODEL, or give the name in this list by --alias",
        )
        row = next((models[name] for name in (model, *same, answers_as) if name in models), {})
        roots = [
            name for name in models if row.get("root") and models[name].get("root") == row["root"]
        ]
        context = row.get("max_model_len")
        return {
            "models": [*dict.fromkeys([*[*models][:MOST_MODELS], *same])],
            **self.software(),
            "model": model,
            "context": context if type(context) is int else None,
            **({"aliases": roots} if len(roots) > 1 else {}),
        }

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
        """Continue a prompt ``count`` times, with the seeds from ``seed`` on.

        Temperature 0 is greedy. All tokens of the vocabulary may be sampled.
        """
        body = self._body(prompt, temperature, limit)
        bodies = [self.dialect.of({**body, "seed": number}) for number in range(seed, seed + count)]
        completions = []
        for value in self.client.post(self.endpoint, bodies):  # which may contain anything
            streamed = Streamed(0.0, 0.0, [Event(0.0, value)], 0)
            answer = read_answer(streamed, server=self.endpoint, limit=limit)
            ended = answer.stopped_by in ("eos", "stop")
            # llama.cpp lists no token of a text that ends at once.
            require(
                answer.token_ids is not None or (ended and not answer.text),
                f"{self.endpoint} returns no token ids: {IDS}",
            )
            completions.append(Completion(answer.token_ids or [], ended))
        return completions

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
        body = OPTIONS | {"prompt": [*prompt], "temperature": temperature, "max_tokens": limit}
        return body if self.model is None else body | {"model": self.model}


def _models(answer: Any) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a server's list of models, by name."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    return {
        quoted(row["id"], LONGEST_NAME): row
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    }
