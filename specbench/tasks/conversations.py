"""Conversations in prompt files: OpenAI's ``messages`` and ShareGPT's ``conversations``.

A conversation is one prompt: its last message that is not an answer is to be answered, and an
answer behind it is the reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from specbench.errors import UsageError, require
from specbench.example import Message, text_of
from specbench.tasks.rows import Row
from specbench.words import listed, none_of, shown

MESSAGES, CONVERSATIONS = COLUMNS = ("messages", "conversations")
ANSWER = "assistant"
#: Roles in OpenAI's API, by the names that are used in both columns.
ROLES = {
    **{name: name for name in ("system", "developer", "user", ANSWER, "tool", "function")},
    **{"human": "user", "gpt": ANSWER, "chatgpt": ANSWER, "bing": ANSWER, "bard": ANSWER},
    **{"model": ANSWER, "function_call": ANSWER},
    **{"observation": "tool", "function_response": "tool"},
}
#: Roles of messages that can be answered.
ASKING = ("user", "tool", "function")
# Further parts of a message that belong to the API; others, such as weights, are for training.
_PARTS = ("name", "tool_calls", "tool_call_id", "function_call")


class Conversation(NamedTuple):
    """A conversation up to the message that is to be answered, and the answer that follows it."""

    messages: tuple[Message, ...]
    reference: str | None


def conversation_column(columns: Mapping[str, object]) -> str | None:
    """Return the column of a row that has a conversation, if any."""
    return next((name for name in COLUMNS if name in columns), None)


def read_conversation(row: Row, column: str) -> Conversation:
    """Return the conversation in a column of a row.

    Raises:
        UsageError: It is no list of messages with texts, or there is nothing to answer.
    """
    entries, where = conversation_in(row.columns[column]), f"{row.location}: `{column}`"
    if entries is None:
        raise UsageError(
            f"{where} must be a list of messages, each with `role` and `content` or with `from` "
            "and `value`"
        )
    messages = [_message(entry, f"{where}, message {n}") for n, entry in enumerate(entries, 1)]
    asked = [number for number, message in enumerate(messages) if message["role"] in ASKING]
    require(bool(asked), f"{where} has no message of the user: add one or remove the row")
    last = asked[-1]
    answers = [text_of(m) for m in messages[last + 1 :] if m["role"] == ANSWER]
    return Conversation(tuple(messages[: last + 1]), next(filter(None, answers), None))


def conversation_in(value: object) -> list[Any] | None:
    """Return the messages in a column, which CSV files have as JSON; None if there are none."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    is_list = isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    return value if is_list else None  # type: ignore[return-value]


def advice(columns: Mapping[str, object]) -> str:
    """Say how to name the columns of a row that has no prompt."""
    kinds: dict[str, list[str]] = {"prompt": [], "turns": [], MESSAGES: [], CONVERSATIONS: []}
    for name, value in columns.items():
        if entries := conversation_in(value):
            keys = [{*entry} for entry in entries]
            kinds[MESSAGES] += [name] if all({"role", "content"} <= k for k in keys) else []
            kinds[CONVERSATIONS] += [name] if all({"from", "value"} <= k for k in keys) else []
        elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            kinds["turns"].append(name)
        elif isinstance(value, str):
            kinds["prompt"].append(name)
    for kind in (MESSAGES, CONVERSATIONS, "turns", "prompt"):
        if len(kinds[kind]) == 1:
            return f"rename {listed(kinds[kind])} to `{kind}`"
        if kinds[kind]:
            return f"rename the right one of {listed(kinds[kind])} to `{kind}`"
    return (
        "give each row `prompt`, a text; `turns`, a list of texts; or `messages` or "
        "`conversations`, a list of messages"
    )


def _message(entry: Mapping[str, Any], where: str) -> Message:
    """Return a message in the form of OpenAI's API.

    Raises:
        UsageError: Its role is unknown, or its content is no text.
    """
    role = entry.get("role", entry.get("from"))
    require(
        isinstance(role, str) and role in ROLES,
        f"{where}: the role {none_of(role, ROLES)}",
    )
    content = entry.get("content", entry.get("value"))
    silent = content is None and (entry.get("tool_calls") or entry.get("function_call"))
    parts = content if isinstance(content, list) else [{"text": "" if silent else content}]
    require(
        all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts),
        f"{where}: the content must be a text or a list of text parts, not {shown(repr(content))}",
    )
    calls = entry.get("tool_calls") or []
    require(
        isinstance(calls, list)
        and all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls),
        f"{where}: `tool_calls` must be a list of calls, each with a `function`",
    )
    message = {"role": ROLES[role], "content": content}
    message |= {name: entry[name] for name in _PARTS if entry.get(name) is not None}
    try:
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # half a surrogate pair, or a number that is none
        raise UsageError(f"{where}: no valid text; fix its escapes and numbers") from error
    return message
