"""Keep access tokens out of messages and files."""

from __future__ import annotations

import os
import re

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MASK = "hf_***"


def mask_tokens(text: str) -> str:
    """Replace access tokens of the hub, and anything that looks like one, by stars.

    >>> mask_tokens("401 for hf_abcDEF123456")
    '401 for hf_***'
    """
    for secret in filter(None, map(os.environ.get, _VARIABLES)):
        text = text.replace(secret, MASK)
    return _TOKEN.sub(MASK, text)
