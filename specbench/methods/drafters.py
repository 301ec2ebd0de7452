"""The names of drafters: what proposes the drafts that a rule judges. Nothing imports torch."""

import re
from typing import NamedTuple

from specbench.errors import UsageError

MODEL, GREEDY, LOOKUP = "model", "greedy", "prompt-lookup"


class DrafterName(NamedTuple):
    """A drafter without its code, which ``decoding.drafting.load_drafter`` finds by the name."""

    proposes: str
    needs_model: bool  # whether it runs the draft model


DRAFTERS = {
    MODEL: DrafterName("draws from the draft model", True),
    GREEDY: DrafterName("the draft model's likeliest tokens; q is one-hot", True),
    LOOKUP: DrafterName(
        "what followed an earlier occurrence of the text's last 1 to 3 tokens, without a draft "
        f"model; {LOOKUP}:2-5 takes n-grams of 2 to 5 tokens",
        False,
    ),
}
SHORTEST, LONGEST = 1, 3  # tokens of an n-gram
_LOOKUP = re.compile(rf"{LOOKUP}(?::(\d+)-(\d+))?")


def checked(name: str) -> str:
    """Return a drafter's name in its shortest form.

    Raises:
        UsageError: There is no such drafter.
    """
    lengths = ngram_lengths(name)
    if name not in DRAFTERS and lengths is None:
        raise UsageError(f"unknown drafter '{name}': give {', '.join(DRAFTERS)} or {LOOKUP}:2-5")
    if lengths and not 1 <= lengths[0] <= lengths[1]:
        raise UsageError(f"drafter '{name}': an n-gram has at least 1 token, the shortest first")
    return LOOKUP if lengths == (SHORTEST, LONGEST) else name


def needs_model(name: str) -> bool:
    """Return whether a drafter runs a draft model; any other name is that of a model."""
    known = DRAFTERS.get(LOOKUP if ngram_lengths(name) else name)
    return known is None or known.needs_model


def ngram_lengths(name: str) -> tuple[int, int] | None:
    """Return the shortest and longest n-gram of a prompt lookup; None for other drafters."""
    match = _LOOKUP.fullmatch(name)
    if match is None:
        return None
    return (int(match[1]), int(match[2])) if match[1] else (SHORTEST, LONGEST)
