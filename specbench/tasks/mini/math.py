"""``mini-math``: multi-step word problems with step-by-step answers; mirrors GSM8K."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specbench.tasks.mini.writer import CONTAINERS, PEOPLE, THINGS, Writer, capital


@dataclass(frozen=True)
class WordProblem:
    """A start amount, a bulk purchase and one or two further gains or losses."""

    name: str
    thing: str
    container: str
    start: int
    packs: int
    size: int
    changes: tuple[int, ...]
    aside: tuple[str, str, int] | None


def draw(rng: random.Random) -> WordProblem:
    """Draw a problem with all amounts between 1 and 99."""
    name, other = rng.sample(list(PEOPLE), 2)
    thing, other_thing = rng.sample(THINGS, 2)
    start, packs, size = rng.randint(2, 30), rng.randint(2, 6), rng.randint(2, 9)
    amount, changes = start + packs * size, []
    for _ in range(rng.choice((1, 1, 2))):
        low, high = max(2 - amount, -20), min(99 - amount, 20)
        change = rng.choice([c for c in range(low, high + 1) if abs(c) > 1])
        amount += change
        changes.append(change)
    aside = (other, other_thing, rng.randint(2, 40)) if rng.random() < 0.4 else None
    return WordProblem(
        name, thing, rng.choice(CONTAINERS), start, packs, size, tuple(changes), aside
    )


def prompt(problem: WordProblem, write: Writer) -> str:
    """Write the problem, sometimes with a distracting aside about somebody else."""
    name, thing = problem.name, problem.thing
    pronoun = PEOPLE[name]
    parts = [f"{name} has {problem.start} {thing}."]
    if problem.aside:
        parts.append(f"{problem.aside[0]} has {problem.aside[2]} {problem.aside[1]}.")
    parts.append(f"{pronoun} buys {problem.packs} {problem.container} of {problem.size} {thing}.")
    for change in problem.changes:
        if change > 0:
            verb = write.say("finds", "wins", "gets")
            parts.append(f"{pronoun} {verb} {change} more.")
        else:
            verb = write.say("loses", "sells", "gives away")
            parts.append(f"{pronoun} {verb} {-change}.")
    parts.append(f"How many {thing} does {name} have now?")
    return "Question: " + " ".join(parts) + "\nAnswer:"


def answer(problem: WordProblem, write: Writer) -> str:
    """Write the solution step by step, ending with the number after ``####``."""
    say = write.say
    bulk = problem.packs * problem.size
    amount = problem.start
    lines = [
        " "
        + say("First", "To start", "We begin here", "Step one")
        + ", "
        + say("the {c} hold", "we count the {c}", "in these {c} are", "it is {c} that give").format(
            c=problem.container
        )
        + f" {problem.packs} * {problem.size} = {bulk}"
        + say(" new ones.", " in all.", " at once.", " to add.")
    ]
    for position, change in enumerate((bulk, *problem.changes)):
        last = position == len(problem.changes)
        total = amount + change
        opening = (
            say("So", "In the end", "Finally", "At last")
            if last
            else say("Then", "Next", "After that", "Now")
        )
        if change > 0:
            clause = say("the sum is", "we add", "this makes", "it grows to")
        else:
            clause = say("what stays is", "we take", "this leaves", "it falls to")
        sign = "+" if change > 0 else "-"
        tail = say(" {t}.", " of the {t}.", " such {t}.", " good {t}.").format(t=problem.thing)
        lines.append(f"{opening}, {clause} {amount} {sign} {abs(change)} = {total}{tail}")
        amount = total
    closing = say("That is it.", "We are done.", "There we are.", "This is all.")
    return capital("\n".join([*lines, closing])) + f"\n#### {amount}"
