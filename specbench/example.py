"""One prompt of a task and what its answer is compared with."""

from __future__ import annotations

from dataclasses import dataclass

CHAT, PLAIN = "chat", "plain"
FORMATS = (CHAT, PLAIN)  # of a prompt: in the model's chat template, or as it is


@dataclass(frozen=True)
class Example:
    """One prompt and what its answer is compared with.

    Attributes:
        id: Name of the example, unique within its task and split.
        prompt: Text given to the models.
        reference: Right answer, where there is one.
        tests: Python statements that a generated program must survive.
        passage: Part of the prompt that may be cut at its end where the prompt is too long, for
            instance the article of a summary.
        code_prefix: Program text that a generated continuation follows, as HumanEval's signature.
        entry_point: Function that a generated program must define.
    """

    id: str
    prompt: str
    reference: str | None = None
    tests: tuple[str, ...] = ()
    passage: str = ""
    code_prefix: str = ""
    entry_point: str = ""
