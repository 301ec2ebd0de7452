"""Values that a server answers: JSON that is not trusted, parts of it in messages, and its errors.

Everything that a message quotes is short, printable and free of keys.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from specbench.errors import LONGEST, LONGEST_REASON, mask_tokens, shown

MAX_SHOWN = 2**12  # bytes of an answer that a message may quote
DEEPEST = 4  # levels at which an error's words are searched
FILTERED = "content_filter"  # OpenAI's reason for an answer that is withheld
#: How a text ended, by the server's reason: OpenAI's, and those of engines behind its API (vLLM,
#: TGI, Together, Mistral, Anthropic, Gemini). Others, such as abort, error or timeout, are no ends.
ENDS = {
    "stop": "eos",  # unless the server names a stop string
    "repetition": "repetition",
    **dict.fromkeys(("eos", "eos_token", "end_turn", "complete"), "eos"),
    **dict.fromkeys(("stop_sequence", "stop_string"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_length", "model_length"), "length"),
    **dict.fromkeys((FILTERED, "safety", "refusal"), FILTERED),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_calls"),
}
NO_REASON = ("", "null", "none")
# Keys under which servers put the words of an error, and its code.
_WORDS = ("error", "errors", "message", "detail", "msg", "error_message", "error_msg")
_CODES = ("code", "status_code", "status")


def parsed(content: bytes, *, finite: bool = False) -> Any:
    """Return the value of JSON in UTF-8, in which a key has one value.

    Halves of characters stay as they are, since the other half may be in the next part of a stream;
    ``whole`` joins them. Numbers that are not finite are null, unless they must be ``finite``.

    Raises:
        ValueError: It is something else.
        RecursionError: It is nested too deeply.
    """

    def number(text: str) -> float | None:
        value = float(text)
        if finite and not math.isfinite(value):
            raise ValueError(f"{shown(text)} is not a finite number")
        return value if math.isfinite(value) else None

    def distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs) and any(values[name] != value for name, value in pairs):
            raise ValueError("a key occurs twice")
        return values

    text = content.decode(errors="surrogatepass")
    return json.loads(text, object_pairs_hook=distinct, parse_float=number, parse_constant=number)


def whole(parts: Iterable[str]) -> str:
    """Join parts of a text: halves of a character become one, and a half that is alone a mark."""
    text = "".join(parts)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def quoted(text: str | bytes, longest: int = LONGEST) -> str:
    """Return the beginning of what a server says, printable and without secrets."""
    printable = text if isinstance(text, str) else text[:MAX_SHOWN].decode(errors="replace")
    return shown(mask_tokens(printable), longest)


def excerpt(value: object) -> str:
    """Return the beginning of a value that a server answers, like ``quoted``."""
    brief = reprlib.Repr()
    brief.maxstring = MAX_SHOWN  # a key is masked before it is cut
    return quoted(brief.repr(value))


def error_words(content: bytes) -> str:
    """Return the words of an error in an answer's content, or its beginning."""
    try:
        words = _words(parsed(content))
    except (ValueError, RecursionError):
        words = ""
    return quoted(words, LONGEST_REASON) if words else quoted(content)


class Failure(NamedTuple):
    """What a value of a stream says of a failure."""

    words: str
    status: int  # of the error; 0 if a text is ended by a reason that is no end


def failure_of(value: Any) -> Failure | None:
    """Return the failure in a value of a stream: an error in any form, or a reason that is no end.

    A value without choices is an error if it has the words of one.
    """
    if isinstance(value, list) and len(value) == 1:  # Gemini's form of an error
        value = value[0]
    fields = value if isinstance(value, dict) else {}
    choice = _choice(fields)
    error, reason = fields.get("error") or choice.get("error"), reason_of(choice)
    words = _words(error) or (_words(fields) if fields.get("choices") is None else "")
    text = quoted(words, LONGEST_REASON) if words else excerpt(error) if error else ""
    if isinstance(reason, str) and end_of(reason) is None:
        text = text or quoted(_words({**fields, "choices": None}), LONGEST_REASON)
        by = f"ends an answer by the finish_reason {quoted(reason)}"
        return Failure(f"{by} ({text})" if text else by, 0)
    status = _code(fields) or HTTPStatus.OK
    return Failure(f"fails in its answer: {text}", status) if text else None


def breaks_off(values: Iterable[Any]) -> bool:
    """Return whether a stream has parts of a text, and no reason why it ended."""
    choices = [*filter(None, map(_choice, values))]
    return bool(choices) and all(reason_of(choice) is None for choice in choices)


def reason_of(choice: Mapping[str, Any]) -> Any:
    """Return the ``finish_reason`` of a choice; None for the words by which servers say none."""
    reason = choice.get("finish_reason")
    return None if isinstance(reason, str) and reason.strip().lower() in NO_REASON else reason


def _choice(value: Any) -> Mapping[str, Any]:
    """Return the choice in a value; empty if it has none."""
    choices = value.get("choices") if isinstance(value, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def end_of(reason: str) -> str | None:
    """Return how a text ended by a server's reason; None if the reason is no end."""
    return ENDS.get(reason.lower().replace("-", "_"))


def _words(value: Any, levels: int = DEEPEST) -> str:
    """Return the words of an error; empty if there are none.

    OpenAI nests them (``{"error": {"message": ...}}``), others have flat forms, and FastAPI a list
    of details with the place of each.
    """
    if isinstance(value, str) or not levels:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "; ".join(filter(None, (_words(part, levels - 1) for part in value[:DEEPEST])))
    if not isinstance(value, dict):
        return ""
    words = next(filter(None, (_words(value.get(name), levels - 1) for name in _WORDS)), "")
    path = value.get("loc")
    located = ".".join(map(str, path)) if isinstance(path, list) and words else ""
    return f"{located}: {words}" if located else words


def _code(fields: Mapping[str, Any]) -> int:
    """Return the status that an error names, 0 if it names none."""
    for part in (fields.get("error"), fields):
        for code in map(part.get, _CODES) if isinstance(part, dict) else ():
            if isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < 600:
                return code
    return 0
