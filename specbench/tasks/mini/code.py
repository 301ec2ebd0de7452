"""``mini-code``: Python functions from descriptions, checked by asserts; mirrors MBPP."""

from __future__ import annotations

import random
from collections.abc import Callable
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


def _number_stage(rng: random.Random) -> Stage:
    k = rng.randint(2, 9)
    return rng.choice(
        (
            Stage(f"adds {k}", f"{{v}} + {k}"),
            Stage(f"takes away {k}", f"{{v}} - {k}"),
            Stage(f"multiplies by {k}", f"{{v}} * {k}"),
            Stage(f"subtracts it from {k}", f"{k} - {{v}}"),
            Stage("takes the square", "{v} ** 2"),
            Stage(f"takes the rest by {k}", f"{{v}} % {k}"),
        )
    )


def _list_stage(rng: random.Random) -> Stage:
    k = rng.randint(2, 9)
    return rng.choice(
        (
            Stage(f"keeps those above {k}", f"[n for n in {{v}} if n > {k}]"),
            Stage(f"keeps those below {k}", f"[n for n in {{v}} if n < {k}]"),
            Stage("keeps the even ones", "[n for n in {v} if n % 2 == 0]"),
            Stage("keeps the odd ones", "[n for n in {v} if n % 2 == 1]"),
            Stage(f"adds {k} to each", f"[n + {k} for n in {{v}}]"),
            Stage(f"multiplies each by {k}", f"[n * {k} for n in {{v}}]"),
            Stage("sorts them", "sorted({v})"),
            Stage("turns them around", "{v}[::-1]"),
        )
    )


def _list_end(rng: random.Random) -> Stage:
    return rng.choice(
        (
            Stage("gives their sum", "sum({v})"),
            Stage("counts them", "len({v})"),
            Stage(f"appends {(k := rng.randint(2, 9))}", f"{{v}} + [{k}]"),
            Stage(f"drops the first {(k := rng.randint(2, 4))}", f"{{v}}[{k}:]"),
        )
    )


def _word_stage(rng: random.Random) -> Stage:
    k, letter = rng.randint(2, 5), rng.choice(LETTERS)
    return rng.choice(
        (
            Stage(f"repeats it {k} times", f"{{v}} * {k}"),
            Stage(f"puts {letter} at the end", f"{{v}} + '{letter}'"),
            Stage(f"puts {letter} in front", f"'{letter}' + {{v}}"),
            Stage("turns it around", "{v}[::-1]"),
            Stage("makes it upper case", "{v}.upper()"),
            Stage(f"drops the first {k} letters", f"{{v}}[{k}:]"),
            Stage(f"keeps the first {k} letters", f"{{v}}[:{k}]"),
        )
    )


def _number(rng: random.Random) -> int:
    return rng.randint(1, 20)


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(1, 12) for _ in range(rng.randint(4, 7))]


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 6)))


KINDS: dict[str, tuple[Callable[[random.Random], Any], Callable[[random.Random], Stage]]] = {
    "number": (_number, _number_stage),
    "list": (_numbers, _list_stage),
    "word": (_word, _word_stage),
}


def draw(rng: random.Random) -> Exercise:
    """Draw a function of two or three stages with three test inputs."""
    kind = rng.choice(tuple(KINDS))
    make_input, make_stage = KINDS[kind]
    stages = [make_stage(rng) for _ in range(rng.choice((2, 3)))]
    if kind == "list":
        stages[-1] = _list_end(rng)
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
