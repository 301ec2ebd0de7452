"""Conversations in prompt files: OpenAI's ``messages`` and ShareGPT's ``conversations``.

A conversation is one prompt: the last message that is not an answer is to be answered, and an
answer behind it is the reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specbench.errors import UsageError, require
from specbench.tasks.example import Message, text_of
from specbench.tasks.rows import Row
from specbench.errors import listed, none_of, shown

MESSAGES, CONVERSATIONS = COLUMNS = ("messages", "conversations")
ANSWER = "assistant"
ASKING = ("user", "tool", "function")  # roles of messages that can be answered
#: Roles in OpenAI's API, by the names that are used in both columns.
ROLES = {
    **{name: name for name in ("system", "developer", ANSWER, *ASKING)},
    **{"human": "user", "observation": "tool", "function_response": "tool"},
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "function_call"), ANSWER),
}
# Further parts of a message in OpenAI's API; others, such as weights, are for training.
_PARTS = ("name", "tool_calls", "tool_call_id", "function_call")


def read_conversation(row: Row, column: str) -> tuple[tuple[Message, ...], str | None]:
    """Return the messages in a column up to the one to be answered, and the answer behind it.

    Raises:
        UsageError: They are no messages with texts, or there is nothing to answer.
    """
    entries, where = _entries(row.columns[column]), f"{row.location}: `{column}`"
    if entries is None:
        raise UsageError(
            f"{where} must be a list of messages, each with `role` and `content` or with `from` "
            "and `value`"
        )
    messages = [_message(entry, f"{where}, message {n}") for n, entry in enumerate(entries, 1)]
    asking = [number for number, message in enumerate(messages, 1) if message["role"] in ASKING]
    require(bool(asking), f"{where} has no message of the user: add one or remove the row")
    answers = [text_of(m) for m in messages[asking[-1] :] if m["role"] == ANSWER]
    return tuple(messages[: asking[-1]]), next(filter(None, answers), None)


def advice(columns: Mapping[str, object]) -> str:
    """Say how to name the columns of a row that has no prompt."""
    kinds: dict[str, list[str]] = {name: [] for name in (*COLUMNS, "turns", "prompt")}
    for name, value in columns.items():
        first = (_entries(value) or [{}])[0]
        if {"role", "from"} & first.keys():
            kinds[MESSAGES if "role" in first else CONVERSATIONS].append(name)
        elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            kinds["turns"].append(name)
        elif isinstance(value, str):
            kinds["prompt"].append(name)
    for kind, names in kinds.items():
        if names:
            right = "" if len(names) == 1 else "the right one of "
            return f"rename {right}{listed(names)} to `{kind}`"
    return (
        "give each row `prompt`, a text; `turns`, a list of texts; or `messages` or "
        "`conversations`, a list of messages"
    )


def _entries(value: object) -> list[Any] | None:
    """Return a list of objects, which CSV files have as JSON; None if it is something else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    entries = value if isinstance(value, list) else [None]
    return entries if all(isinstance(entry, dict) for entry in entries) else None


def _message(entry: Mapping[str, Any], where: str) -> Message:
    """Return a message in the form of OpenAI's API, after checks."""
    named = entry.get("role", entry.get("from"))
    if (role := ROLES.get(str(named).lower())) is None:
        raise UsageError(f"{where}: the role {none_of(named, ROLES)}")
    content, calls = entry.get("content", entry.get("value")), entry.get("tool_calls") or []
    silent = content is None and (calls or entry.get("function_call"))
    parts = content if isinstance(content, list) else [{"text": "" if silent else content}]
    require(
        all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts),
        f"{where}: the content must be a text or a list of text parts, not {shown(repr(content))}",
    )
    require(
        isinstance(calls, list)
        and all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls),
        f"{where}: `tool_calls` must be a list of calls, each with a `function`",
    )
    message = {"role": role, "content": content}
    message |= {name: entry[name] for name in _PARTS if entry.get(name) is not None}
    try:
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # half a surrogate pair, or a number that is none
        raise UsageError(f"{where}: no valid text; fix its escapes and numbers") from error
    return message
