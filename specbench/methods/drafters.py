"""The names of drafters: what proposes the drafts that a rule judges. Nothing imports torch."""

import re

from specbench.errors import UsageError
from specbench.words import unknown

MODEL, GREEDY, LOOKUP = "model", "greedy", "prompt-lookup"
#: Each drafter, and whether it runs the draft model; ``decoding.drafting`` has their code.
DRAFTERS = {MODEL: True, GREEDY: True, LOOKUP: False}
SHORTEST, LONGEST = 1, 3  # tokens of an n-gram
_LOOKUP = re.compile(rf"{LOOKUP}(?::(\d+)-(\d+))?")


def checked(name: str) -> str:
    """Return a drafter's name in its shortest form.

    Raises:
        UsageError: There is no such drafter.
    """
    lengths = ngram_lengths(name)
    if policy_of(name) and name.partition("+")[0] in (MODEL, GREEDY):
        return name
    if name not in DRAFTERS and lengths is None:
        raise UsageError(unknown("drafter", name, [*DRAFTERS, f"{LOOKUP}:2-5"]))
    if lengths and not 1 <= lengths[0] <= lengths[1]:
        raise UsageError(f"drafter '{name}': an n-gram has at least 1 token, the shortest first")
    return LOOKUP if lengths == (SHORTEST, LONGEST) else name


def needs_model(name: str) -> bool:
    """Return whether a drafter runs a draft model; any other name is that of a model."""
    return DRAFTERS.get(LOOKUP if ngram_lengths(name) else name, True)


def ngram_lengths(name: str) -> tuple[int, int] | None:
    """Return the shortest and longest n-gram of a prompt lookup; None for other drafters."""
    match = _LOOKUP.fullmatch(name)
    if match is None:
        return None
    return (int(match[1]), int(match[2])) if match[1] else (SHORTEST, LONGEST)


def policy_of(name: str) -> str:
    """Return the policy of a drafter such as ``model+svip:0.6``; empty if it always drafts N."""
    return name.partition("+")[2]
