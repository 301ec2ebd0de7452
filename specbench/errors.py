"""Errors shown to the user, and parts of their messages: printable text, names, suggestions.

Each message is one sentence: what is wrong and what to do. None contains a secret.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_REASON = 200  # characters
LONGEST, MOST = 60, 30  # characters and names shown; a broken file may contain anything
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Control and format characters, surrogates, and separators of lines and paragraphs.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_PRINTABLE = frozenset("\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MASK, KEY_MASK = "hf_***", "***"
SHORTEST_KEY = 6  # characters; servers without keys accept words such as EMPTY
_keys: set[str] = set()


class SpecbenchError(Exception):
    """Base of all errors that the command line prints as one line, without a traceback."""

    exit_code = 1


class UsageError(SpecbenchError):
    """The request is wrong (an unknown name, a value out of range)."""

    exit_code = 2


class RunError(SpecbenchError):
    """The request was valid but its execution failed."""


class IncompleteError(SpecbenchError):
    """Nothing is wrong, but something is missing."""

    exit_code = 3


class EngineError(RunError):
    """The engine does not work with these settings, for any input."""


class CaptureError(Exception):
    """A function cannot be captured or compiled; the engine decides what follows from it."""


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut if it is long."""
    lines = str(error).strip().splitlines()
    first = lines[0].rstrip(".:") if lines else type(error).__name__
    # Transformers lists all model types that it supports, hundreds of them.
    return first if len(first) <= LONGEST_REASON else f"{first[:LONGEST_REASON]}..."


def cause(error: BaseException) -> str:
    """Return the reason of a configuration error, without the name of the failed check."""
    return first_line(error.__cause__ or error)


def printable(text: str) -> str:
    r"""Replace characters that could steer a terminal or reorder a line of a file.

    These are control and format characters, such as escape and right-to-left override, surrogates,
    and separators of lines; line feeds, tabs and joiners of letters stay.

    >>> printable("\x1b[31mred")
    '�[31mred'
    """
    steering = [
        ord(character)
        for character in {*text} - _PRINTABLE
        if unicodedata.category(character) in _UNPRINTABLE
    ]
    return text.translate(dict.fromkeys(steering, REPLACEMENT)) if steering else text


def shown(text: str, longest: int = LONGEST) -> str:
    """Return a text on one printable line, truncated if it has more characters than ``longest``."""
    line = printable(" ".join(text[: 2 * longest].split()))
    return line if len(line) <= longest else f"{line[:longest]}..."


def listed(words: Iterable[str]) -> str:
    """Format names as a list."""
    names = [f"`{shown(word)}`" for word in words]
    return ", ".join(names if len(names) <= MOST else [*names[:MOST], "..."])


def unknown(noun: str, word: str, names: Iterable[str]) -> str:
    """Return a message that a word is none of the names, with a suggestion."""
    return f"unknown {noun} `{shown(word)}`; {meant(word, names)}"


def meant(word: str, names: Iterable[str]) -> str:
    """Suggest the name that is nearest to a word, or list them all."""
    by_lower_case = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), by_lower_case, n=1)
    if not near:
        return f"choose one of {listed(by_lower_case.values())}"
    return f"did you mean `{by_lower_case[near[0]]}`?"


def none_of(word: object, names: Iterable[str]) -> str:
    """Return a message that a word must be one of the names, with a suggestion."""
    names = list(names)
    problem = f"must be one of {listed(names)}, not {shown(repr(word))}"
    near = meant(str(word), names)
    return f"{problem}; {near}" if near.startswith("did") else problem


def hide(key: str) -> None:
    """Let ``mask_tokens`` replace a server's key from now on."""
    if len(key) >= SHORTEST_KEY:
        _keys.add(key)


def mask_tokens(text: str) -> str:
    """Replace access tokens of the hub, anything that looks like one, and hidden keys by stars.

    >>> mask_tokens("401 for hf_abcDEF123456")
    '401 for hf_***'
    """
    for secret in filter(None, map(os.environ.get, _VARIABLES)):
        text = text.replace(secret, MASK)
    for key in _keys:
        text = text.replace(key, KEY_MASK)
    return _TOKEN.sub(MASK, text)
