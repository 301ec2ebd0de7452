"""Keep access tokens and keys out of messages and files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MASK, KEY_MASK = "hf_***", "***"
KEY_OPTION = "--api-key"
SHORTEST_KEY = 6  # characters; servers without keys accept words such as EMPTY
_keys: set[str] = set()


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


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without tokens and keys."""
    masked = [mask_tokens(argument) for argument in arguments]
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{KEY_OPTION}="):
            masked[index] = f"{KEY_OPTION}={KEY_MASK}"
        elif argument == KEY_OPTION and index + 1 < len(arguments):
            masked[index + 1] = KEY_MASK
    return masked
