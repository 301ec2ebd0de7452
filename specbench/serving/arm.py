"""Servers as arms of a run, before anything is sent to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from specbench.errors import UsageError, require
from specbench.plugins import in_file
from specbench.runs.configuration import DEEPEST, deeper
from specbench.serving.values import parsed

#: How prompts are sent: as token ids, as text without a template, or as messages.
TOKENS, TEXT, CHAT = SENT = ("tokens", "text", "chat")

#: What names the rule of a request to vLLM with specbench's plugin; and the rules that its server
#: starts with, of which the first is that of all other requests.
ARGUMENT, VARIABLE, SEPARATOR = "specbench_rule", "SPECBENCH_VLLM_RULE", ";"
VLLM = "vllm"  # vLLM's own verification
#: What names the key by which a request's rounds are read, and the route that tells them.
ROUNDS, MOST_KEY = "specbench_rounds", 64

#: What a run decides itself, so that ``--set-body`` may not: in the words of OpenAI and llama.cpp.
DECIDED = {
    **dict.fromkeys(("prompt", "messages"), "--prompts or --task"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens"), "--max-new-tokens"),
    **dict.fromkeys(("n_predict", "num_predict"), "--max-new-tokens"),
    **{"model": "--server NAME=URL#MODEL", "n": "--repeats", "vllm_xargs": "--rule"},
    **{name: f"--{name.replace('_', '-')}" for name in ("temperature", "top_k", "top_p", "min_p")},
    **{"seed": "--seed", "stop": "the task's `stop`"},
    **dict.fromkeys(("stream", "stream_options", "extra_body", "best_of", "echo"), ""),
}
MOST_LEVELS = DEEPEST - 4  # of what is sent, which `config.json` has below others
#: What only changes how messages become a prompt.
OF_TEMPLATES = ("chat_template", "chat_template_kwargs", "add_generation_prompt")
# The beginning of a value that was meant as JSON.
_LIKE_JSON = re.compile(
    r"$|[{\[\"]|[-+]?[\d.]+(e[-+]?\d+)?$|[-+]?(true|false|null|none|nan|inf(inity)?)$"
)


class Arm(NamedTuple):
    """A server that a run measures."""

    name: str  # given by the user; the method of its samples
    url: str
    model: str  # the server's name of its model
    prompts: str  # how they are sent: ``TOKENS``, ``TEXT`` or ``CHAT``
    rule: str = ""  # by which vLLM with specbench's plugin verifies; empty for the server's own
    alias: str = ""  # another name of the model, under which the server answers
    body: Mapping[str, Any] = {}  # what its requests have beside what the run sends

    @property
    def described(self) -> dict[str, Any]:
        """The arm in plain values, without its address, which does not change a text."""
        further = {"rule": self.rule, "body": dict(self.body)}
        further = {name: value for name, value in further.items() if value}
        return {"name": self.name, "model": self.model, "prompts": self.prompts, **further}


def named_values(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the values of ``static:weight=0.5,...`` or ``FILE.py:RULE:...``."""
    end = text.find(":", text.find(".py:") + 4 if in_file(text) else 0)
    name, assignments = (text, "") if end < 0 else (text[:end], text[end + 1 :])
    values: dict[str, str] = {}
    for part in filter(None, assignments.split(",")):
        key, equals, value = part.partition("=")
        require(bool(key and equals and value), f"'{part}' in {text} is not NAME=VALUE")
        values[key] = value
    return name, values


def body_of(arm: Arm, texts: Iterable[str], arms: Collection[str]) -> dict[str, Any]:
    """Return what the requests of an arm have beside what the run sends.

    ``texts`` are assignments ``[ARM:]NAME[.NAME...]=VALUE``, to one of all ``arms`` or to each;
    those that name the arm take precedence.
    """
    values: dict[str, dict[str, Any]] = {"": {}, arm.name: {}}
    for text in texts:
        left, equals, value = text.partition("=")
        name, _, path = left.rpartition(":")
        keys = path.strip().split(".")
        require(
            bool(equals) and all(keys),
            f"--set-body cannot be '{text}': give NAME=VALUE, such as "
            "chat_template_kwargs.enable_thinking=false, for one server ARM:NAME=VALUE",
        )
        require(not name or name in arms, f"--set-body {text}: there is no --server {name}=URL")
        if (option := DECIDED.get(keys[0])) is not None:
            advice = f"use {option}" if option else "leave it out"
            raise UsageError(f"--set-body {text}: the run decides {keys[0]} itself: {advice}")
        if name in values:
            require(path not in values[name], f"--set-body gives {left} twice: omit one")
            values[name][path] = _value(text, value.strip())
    body: dict[str, Any] = {}
    for path, value in (values[""] | values[arm.name]).items():
        *parents, last = path.strip().split(".")
        part = body
        for parent in parents:
            part = part.setdefault(parent, {})
            require(isinstance(part, dict), f"--set-body: {parent} cannot have value and parts")
        has_parts = isinstance(part.get(last), dict)
        require(not has_parts, f"--set-body: {last} cannot have value and parts")
        part[last] = value
    require(not deeper(body, MOST_LEVELS), f"--set-body: more than {MOST_LEVELS} nested levels")
    for name in OF_TEMPLATES:
        require(
            name not in body or arm.prompts == CHAT,
            f"--set-body: {name} is about messages, and {arm.name} gets {arm.prompts}: add "
            f"--send {CHAT}",
        )
    return body


def _value(text: str, value: str) -> Any:
    """Return a value of JSON, or a text that does not look like one."""
    try:
        return parsed(value.encode(), finite=True)
    except (ValueError, RecursionError):
        require(
            not _LIKE_JSON.match(value.lower()),
            f"--set-body {text}: the value is no JSON, such as false, 0.5, [1, 2] or a text",
        )
        return value
