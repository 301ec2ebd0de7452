"""The turns of conversations, decoded one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from specbench.errors import RunError
from specbench.experiment.plan import SampleIndex, Step

SampleResult = tuple[Step, dict[str, Any]]  # the step and the columns of its record
# The texts of a conversation's turns so far, None if a turn failed, by the index of its step.
Answers = defaultdict[SampleIndex, list[str | None]]


def by_turns(
    steps: Sequence[Step], decode: Callable[[Sequence[Step], Answers], Iterator[SampleResult]]
) -> Iterator[SampleResult]:
    """Decode the first turn of all steps together, then the second ones, and so on.

    ``decode`` gets steps of one turn each, with the answers to the turns before.
    """
    answers: Answers = defaultdict(list)
    for turn in zip_longest(*(step.turns for step in steps)):
        for step, result in decode([step for step in turn if step is not None], answers):
            answers[step.place].append(result.get("text"))
            yield step, result


def earlier_answers(step: Step, answers: Answers) -> list[str]:
    """Return the answers to the turns before a step.

    Raises:
        RunError: One of them could not be decoded.
    """
    texts = [text for text in answers[step.place] if text is not None]
    if len(texts) < len(answers[step.place]):
        raise RunError("an earlier turn of the conversation could not be decoded")
    return texts
