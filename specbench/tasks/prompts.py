"""Prompt files of users in place of a task: JSON, JSONL, CSV or plain text, gzipped or not.

A row is a prompt, the turns of a user, or a conversation: ``messages`` as in OpenAI's API, or
``conversations`` as in ShareGPT. A conversation is one prompt: the last message that is not an
answer is to be answered, and an answer behind it is the reference.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.errors import UsageError, listed, none_of, require, shown
from specbench.tasks.example import Example, Message, text_of
from specbench.tasks.rows import Row, list_in, plain_name, read_rows, require_utf8
from specbench.tasks.task import Task

MESSAGES, CONVERSATIONS = MESSAGE_COLUMNS = ("messages", "conversations")
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
MAX_NEW_TOKENS = 512  # lets most instruct models finish
SUFFIXES = (".jsonl", ".json", ".csv", ".txt")
#: Kinds of values besides texts that names and categories of rows may be.
SCALARS = (int, float, bool)
PROMPTS = ("turns", "prompt", *MESSAGE_COLUMNS)  # columns, of which the first one counts
#: The columns that specbench uses.
COLUMNS = (*PROMPTS, "id", "question_id", "reference", "passage", "category")
#: Columns that change what a model is asked: sent with conversations, else named in a note.
SYSTEM, TOOLS = "system", "tools"
#: Columns of tests: statements, or HumanEval's function ``check``.
TESTS, CHECK = ("tests", "test_list"), "test"
log = logging.getLogger(__name__)


def read_conversation(row: Row, column: str) -> tuple[tuple[Message, ...], str | None]:
    """Return the messages in a column up to the one to be answered, and the answer behind it."""
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
    if (text := row.columns.get(SYSTEM)) and messages[0]["role"] not in ("system", "developer"):
        messages = [{"role": "system", "content": _checked(text, SYSTEM, row)}, *messages]
        asking = [n + 1 for n in asking]
    return tuple(messages[: asking[-1]]), next(filter(None, answers), None)


def tools_of(columns: Mapping[str, object] | None) -> list[Any] | None:
    """Return the tools in a row's columns in the form of OpenAI's API; None if they are none."""
    tools = _entries((columns or {}).get(TOOLS)) or []
    if not tools or not all("function" in tool or "name" in tool for tool in tools):
        return None
    return [t if "function" in t else {"type": "function", "function": t} for t in tools]


def _is_asked(row: Row) -> bool:
    """Return whether a row has a message of the user, if it is a conversation."""
    column = next((name for name in PROMPTS if name in row.columns), "prompt")
    entries = _entries(row.columns[column]) if column in MESSAGE_COLUMNS else None
    roles = [ROLES.get(str(e.get("role", e.get("from"))).lower()) for e in entries or ()]
    return entries is None or not all(roles) or not {*ASKING}.isdisjoint(roles)


def advice(columns: Mapping[str, object]) -> str:
    """Say how to name the columns of a row that has no prompt."""
    kinds: dict[str, list[str]] = {name: [] for name in (*MESSAGE_COLUMNS, "turns", "prompt")}
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


@dataclass(frozen=True)
class PromptList:
    """Test examples in the order of their file, and the file's entry in ``config.json``."""

    rows: tuple[Example, ...] = field(repr=False)
    origin: Mapping[str, Any] = field(default_factory=dict)

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return the first examples, or with a seed the first of a shuffled order."""
        require(split == "test", "a list of prompts has no training split: choose a task with one")
        rows = list(self.rows)
        if seed:
            random.Random(seed).shuffle(rows)
        return rows[:limit]

    def provenance(self) -> dict[str, Any]:
        """Return the file's path, digest and number of rows."""
        return dict(self.origin)


def prompts_task(path: Path, *, cut: bool = False) -> Task:
    """Read a prompt file as a task without metrics; its version is a prefix of the file's digest.

    ``.jsonl``, ``.json`` (a list) and ``.csv`` have a ``prompt`` column, or ``turns``, a list of
    the user's messages that are answered one after the other, or a column of ``conversations``.
    ``reference`` is optional: a text, a list of alternatives or, with several turns, a list with
    one or several per turn, of which further ones are ignored. So are ``id`` or ``question_id``,
    ``category``, and ``passage``, the part of the prompt that may be cut. In ``.txt`` every line is
    a prompt. Each may be packed. Empty lines are skipped. The ``question.jsonl`` of Spec-Bench and
    MT-Bench has this form. With ``cut``, a prompt without a ``passage`` may be cut at its end.
    """
    plain = plain_name(path)
    needed = ["prompt"] if plain.suffix == ".txt" else []
    file = read_rows(path, SUFFIXES, "prompt file", needed)
    if plain.suffix == ".csv":
        _require_prompt(file.rows[0].columns, f"{path}:1")
    asked = [row for row in file.rows if _is_asked(row)] or file.rows
    if skipped := len(file.rows) - len(asked):
        log.warning(f"{path}: {skipped} of {len(file.rows)} entries lack a user's message: skipped")
    # A line of the file, or an entry of its list, has a number.
    numbers = [row.location.rpartition(":")[2].split()[-1] for row in asked]
    names = [f"{plain.stem}-{number}" for number in numbers]
    rows = [*map(_example, asked, names)]
    for name in (SYSTEM, TOOLS, "functions"):
        of_name = [row.columns for row in asked if row.columns.get(name)]
        if name == TOOLS and of_name and all(map(tools_of, of_name)):
            log.warning(f"{path}: the column `{name}` is sent only to servers that get messages")
        elif (name != SYSTEM and of_name) or any({*MESSAGE_COLUMNS}.isdisjoint(c) for c in of_name):
            log.warning(f"{path}: the column `{name}` is not sent")
    seen: set[str] = set()
    for row, example in zip(asked, rows, strict=True):
        if example.id in seen:
            message = f"a second row with the id `{shown(example.id)}`: give it its own id"
            raise UsageError(f"{row.location}: {message}")
        seen.add(example.id)
    rows = [replace(e, passage=e.prompt) if cut and not e.passage else e for e in rows]
    origin = {"file": str(path), "sha256": file.sha256, "rows": len(file.rows)}
    return Task(
        name=plain.stem,
        version=file.sha256[:12],
        description=f"Prompts from {path.name}",
        metrics=(),
        stop=(),
        max_new_tokens=MAX_NEW_TOKENS,
        source=PromptList(tuple(rows), origin),
        path=path,
    )


def _require_prompt(columns: Mapping[str, object], where: str) -> None:
    if not {*PROMPTS} & columns.keys():
        raise UsageError(
            f"{where}: no `prompt` column; columns found: {listed(columns) or 'none'}; "
            f"{advice(columns)}"
        )


def _example(row: Row, name: str) -> Example:
    """Return the prompt or conversation of a row; ``name`` is its id unless it has its own."""
    _require_prompt(row.columns, row.location)
    column = next(name for name in PROMPTS if name in row.columns)
    is_conversation = column in MESSAGE_COLUMNS
    messages, answer = read_conversation(row, column) if is_conversation else ((), None)
    turns = [text_of(messages[-1])] if messages else _texts(row, "turns") or [_text(row, "prompt")]
    if not all(turn.strip() for turn in turns):
        raise UsageError(f"{row.location}: the prompt is empty; fill it in or remove the line")
    several = len(turns) > 1
    correct = _references(row, several)
    if not any(correct):
        correct = [[answer] if answer else []]
    correct += [[] for _ in range(len(turns) - len(correct))]
    references = [next(iter(texts), None) for texts in correct[: len(turns)]]
    alternatives = tuple(tuple(texts[1:]) for texts in correct[: len(turns)])
    passage = _text(row, "passage")
    if passage not in turns[0]:
        raise UsageError(f"{row.location}: `passage` must be a part of the prompt, word for word")
    return Example(
        id=_text(row, "id", *SCALARS) or _text(row, "question_id", *SCALARS) or name,
        prompt=turns[0],
        reference=references[0],
        passage=passage,
        category=_text(row, "category", *SCALARS),
        turns=tuple(turns) if several else (),
        references=tuple(references) if several else (),
        alternatives=alternatives if any(alternatives) else (),
        conversation=messages,
        **_tests(row),
        columns={n: v for n, v in row.columns.items() if n not in COLUMNS} or None,
    )


def _tests(row: Row) -> dict[str, Any]:
    """Return the tests of a program and what they call, in the columns of common files."""
    name = _text(row, "entry_point")
    column = next((n for n in TESTS if row.columns.get(n)), "")
    as_csv = row._replace(columns={**row.columns, "turns": ""})  # whose lists are JSON
    names = ("test_imports", "test_setup_code", column) if column else ()  # as in MBPP
    tests = [text for name in names for text in _texts(as_csv, name) if text]
    if not tests and name and (check := _text(row, CHECK)):
        tests = [check, f"check({name})"]
    prompt = _text(row, "prompt") if "prompt" in row.columns else ""
    # A prompt may be the beginning of a function, which an answer continues.
    begins = name and re.search(rf"^def {re.escape(name)}\(", prompt, re.M)
    prefix = _text(row, "code_prefix") or (prompt if begins else "")
    return {"tests": tuple(tests), "entry_point": name, "code_prefix": prefix} if tests else {}


def _references(row: Row, several: bool) -> list[list[str]]:
    """Return the correct answers to each turn; one list of texts belongs to a single turn."""
    value = row.columns.get("reference")
    entries = list_in(value) if "turns" in row.columns else value
    if not isinstance(entries, list):
        entries = [] if value is None else [value]
    by_turn = entries if several or any(isinstance(e, list) for e in entries) else [entries]
    lists = [entry if isinstance(entry, list) else [entry] for entry in by_turn]
    return [
        [_checked(e, "reference", row) for e in texts if e not in (None, "")] for texts in lists
    ]


def _texts(row: Row, name: str) -> list[str]:
    """Return a column's list of texts; one text is a list of one, and a missing one is empty."""
    value = row.columns.get(name)
    value = list_in(value) if "turns" in row.columns else value
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [_checked(entry, name, row) for entry in entries]


def _text(row: Row, name: str, *others: type) -> str:
    """Return a column's text, empty if it is missing; values of ``others`` as in the file."""
    value = row.columns.get(name)
    text = str(value) if isinstance(value, others) else value
    if isinstance(value, bool) and bool in others:
        text = str(value).lower()  # as JSON writes it
    return "" if text is None else _checked(text, name, row)


def _checked(value: object, name: str, row: Row) -> str:
    if not isinstance(value, str):
        kinds: dict[type, str] = {list: "a list", dict: "an object"}
        advice = kinds.get(type(value)) or f"{json.dumps(value)}: write it in double quotes"
        raise UsageError(f"{row.location}: `{name}` must be a string, not {advice}")
    return require_utf8(value, name, row.location)
