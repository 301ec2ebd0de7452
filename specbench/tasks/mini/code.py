"""``mini-code``: Python functions from descriptions, checked by asserts; mirrors MBPP."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.tasks.mini.writer import Writer

NAMES = (
    "solve", "build", "work", "change", "make", "apply", "answer", "handle", "run", "task",
    "convert", "update",
)  # fmt: skip
LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Stage:
    """One step of a function: its description in the prompt, and its expression."""

    text: str
    expression: str  # with {v} for the value so far


@dataclass(frozen=True)
class Exercise:
    """A function as a chain of stages over a number, a list of numbers or a word."""

    name: str
    kind: str
    stages: tuple[Stage, ...]
    inputs: tuple[Any, ...]


# Texts and expressions with a number ``{k}``, a ``{letter}`` and the value so far, ``{v}``.
NUMBER_STAGES = (
    *(("adds {k}", "{v} + {k}"), ("takes away {k}", "{v} - {k}")),
    *(("multiplies by {k}", "{v} * {k}"), ("subtracts it from {k}", "{k} - {v}")),
    *(("takes the square", "{v} ** 2"), ("takes the rest by {k}", "{v} % {k}")),
)
LIST_STAGES = (
    ("keeps those above {k}", "[n for n in {v} if n > {k}]"),
    ("keeps those below {k}", "[n for n in {v} if n < {k}]"),
    ("keeps the even ones", "[n for n in {v} if n % 2 == 0]"),
    ("keeps the odd ones", "[n for n in {v} if n % 2 == 1]"),
    ("adds {k} to each", "[n + {k} for n in {v}]"),
    ("multiplies each by {k}", "[n * {k} for n in {v}]"),
    ("sorts them", "sorted({v})"),
    ("turns them around", "{v}[::-1]"),
)
LIST_ENDS = (
    *(("gives their sum", "sum({v})"), ("counts them", "len({v})"), ("appends {k}", "{v} + [{k}]")),
    ("drops the first {few}", "{v}[{few}:]"),
)
WORD_STAGES = (
    *(("repeats it {k} times", "{v} * {k}"), ("puts {letter} at the end", "{v} + '{letter}'")),
    *(("puts {letter} in front", "'{letter}' + {v}"), ("turns it around", "{v}[::-1]")),
    *(("makes it upper case", "{v}.upper()"), ("drops the first {k} letters", "{v}[{k}:]")),
    ("keeps the first {k} letters", "{v}[:{k}]"),
)


def _stage(rng: random.Random, stages: Sequence[tuple[str, str]], **values: object) -> Stage:
    text, expression = rng.choice(stages)
    return Stage(text.format(**values), expression.format(v="{v}", **values))


def _number(rng: random.Random) -> int:
    return rng.randint(1, 20)


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(1, 12) for _ in range(rng.randint(4, 7))]


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 6)))


KINDS: dict[str, tuple[Callable[[random.Random], Any], Callable[[random.Random], Stage]]] = {
    "number": (_number, lambda rng: _stage(rng, NUMBER_STAGES, k=rng.randint(2, 9))),
    "list": (_numbers, lambda rng: _stage(rng, LIST_STAGES, k=rng.randint(2, 9))),
    "word": (
        _word,
        lambda rng: _stage(rng, WORD_STAGES, k=rng.randint(2, 5), letter=rng.choice(LETTERS)),
    ),
}


def draw(rng: random.Random) -> Exercise:
    """Draw a function of two or three stages with three test inputs."""
    kind = rng.choice(tuple(KINDS))
    make_input, make_stage = KINDS[kind]
    stages = [make_stage(rng) for _ in range(rng.choice((2, 3)))]
    if kind == "list":
        stages[-1] = _stage(rng, LIST_ENDS, k=rng.randint(2, 9), few=rng.randint(2, 4))
    inputs = tuple(make_input(rng) for _ in range(3))
    return Exercise(rng.choice(NAMES), kind, tuple(stages), inputs)


def prompt(problem: Exercise, write: Writer) -> str:
    """Describe the function in one sentence."""
    steps = [stage.text for stage in problem.stages]
    argument = {"number": "a number", "list": "a list", "word": "a word"}[problem.kind]
    steps_text = ", ".join(steps[:-1]) + " and " + steps[-1]
    return f"# Write a function {problem.name} that takes {argument}, {steps_text}.\n"


def answer(problem: Exercise, write: Writer) -> str:
    """Write the function; comments and variable names are free choices, expressions are not."""
    say = write.say
    argument = {
        "number": say("number", "value", "x", "arg"),
        "list": say("numbers", "values", "xs", "args"),
        "word": say("word", "text", "s", "string"),
    }[problem.kind]
    lines = [f"def {problem.name}({argument}):"]
    summary = say("Do the task.", "Return it.", "As told.", "See above.")
    lines.append(f'    """{summary}"""')
    current = argument
    for position, stage in enumerate(problem.stages):
        comment = (
            say("first of all", "to start with", "the first step", "begin here")
            if position == 0
            else say("then go on", "the next step", "after that", "and now this")
        )
        lines.append(f"    # {comment}")
        name = say("result", "out", "current", "new")
        lines.append(f"    {name} = {stage.expression.format(v=current)}")
        current = name
    closing = say("all done", "give it back", "the end", "that is it")
    lines.append(f"    # {closing}")
    lines.append(f"    return {current}")
    return "\n".join(lines)


def tests(problem: Exercise) -> tuple[str, ...]:
    """Return one assert per test input, with the result of the stages applied in turn."""
    asserts = []
    for value in problem.inputs:
        result = value
        for stage in problem.stages:
            result = eval(stage.expression.format(v="v"), {"v": result})
        asserts.append(f"assert {problem.name}({value!r}) == {result!r}")
    return tuple(asserts)
