"""One prompt of a task, with its reference answer or tests."""

from __future__ import annotations

from dataclasses import dataclass

CHAT, PLAIN = "chat", "plain"
FORMATS = (CHAT, PLAIN)  # prompt formats: with the model's chat template, or unchanged


@dataclass(frozen=True)
class Example:
    """One prompt, with its reference answer or tests.

    Attributes:
        id: Name of the example, unique within its task and split.
        prompt: Text given to the models.
        reference: Correct answer, if known.
        tests: Python statements that a generated program must pass.
        passage: Part of the prompt that may be truncated at its end if the prompt is too long, for
            instance the article to summarise.
        code_prefix: Program text before a generated continuation, such as HumanEval's signature.
        entry_point: Function that a generated program must define.
    """

    id: str
    prompt: str
    reference: str | None = None
    tests: tuple[str, ...] = ()
    passage: str = ""
    code_prefix: str = ""
    entry_point: str = ""
