"""The names of drafters: what proposes the drafts that a rule judges. Nothing imports torch."""

import re
from collections.abc import Collection
from pathlib import Path

from specbench.errors import UsageError
from specbench.words import unknown

MODEL, GREEDY, LOOKUP = "model", "greedy", "prompt-lookup"
#: Each drafter, and whether it runs the draft model; ``drafters.load`` has their code.
DRAFTERS = {MODEL: True, GREEDY: True, LOOKUP: False}
SHORTEST, LONGEST = 1, 3  # tokens of an n-gram
_LOOKUP = re.compile(rf"{LOOKUP}(?::(\d+)-(\d+))?")


def checked(name: str, heads: Collection[str] | None = None) -> str:
    """Return a drafter's name in its shortest form.

    A drafter is one of ``DRAFTERS`` or, unless ``heads`` is None, one of a pair's ``heads`` or a
    folder with a head.

    Raises:
        UsageError: There is no such drafter.
    """
    lengths = ngram_lengths(name)
    drafter, plus, policy = name.partition("+")
    if heads is not None and (drafter in heads or (Path(drafter) / "config.json").is_file()):
        return name if drafter in heads else f"{Path(drafter).as_posix()}{plus}{policy}"
    if policy and drafter in (MODEL, GREEDY):
        return name
    if not is_drafter(name):
        names = [*DRAFTERS, f"{LOOKUP}:2-5", *(heads or ())]
        folder = "" if heads is None else "; a folder with a head needs its config.json"
        raise UsageError(unknown("drafter", name, names) + folder)
    if lengths and not 1 <= lengths[0] <= lengths[1]:
        raise UsageError(f"drafter '{name}': an n-gram has at least 1 token, the shortest first")
    return LOOKUP if lengths == (SHORTEST, LONGEST) else name


def is_drafter(name: str) -> bool:
    """Return whether a name is that of a drafter, and not of a model or a head."""
    return name in DRAFTERS or ngram_lengths(name) is not None


def needs_model(name: str) -> bool:
    """Return whether a drafter runs a model; any other name is that of a model or a head."""
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
