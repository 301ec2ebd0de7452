"""``mini-news``: articles and three-sentence summaries; mirrors CNN/DailyMail."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

from specbench.tasks.mini.writer import BUILDINGS, DAYS, PEOPLE, SURNAMES, TOWNS, Writer, capital

EVENTS = ("fire", "flood", "storm", "blast", "crash", "theft", "power cut", "gas leak")
ROLES = ("mayor", "chief", "doctor", "judge", "teacher", "guard", "captain", "manager")
CAUSES = (
    "rain", "wind", "ice", "smoke", "rust", "speed", "a broken pipe", "an old cable", "a lorry",
    "a candle",
)  # fmt: skip


class Incident(NamedTuple):
    """What happened to a building."""

    event: str
    building: str
    town: str
    day: str
    hurt: int
    surname: str  # of who speaks of it


class Story(NamedTuple):
    """The facts of one event, and of another that the summary must omit."""

    main: Incident
    other: Incident
    reopen: str
    role: str
    name: str
    cause: str
    cost: int


def draw(rng: random.Random) -> Story:
    """Draw the facts of a story; the second event differs from the first in each of them."""
    sizes = {EVENTS: 2, BUILDINGS: 2, TOWNS: 2, DAYS: 3, range(2, 60): 2, SURNAMES: 2}
    facts: list[list[Any]] = [rng.sample(values, size) for values, size in sizes.items()]
    main, other = itertools.starmap(Incident, zip(*facts, strict=False))
    role, name = rng.choice(ROLES), f"{rng.choice(list(PEOPLE))} {main.surname}"
    return Story(main, other, facts[3][2], role, name, rng.choice(CAUSES), rng.randint(2, 90))


def prompt(story: Story, write: Writer) -> str:
    """Write the article: the event, its details and another event in shuffled order."""
    main, other = story.main, story.other
    article, another = ("An" if e.event[0] in "aeiou" else "A" for e in (main, other))
    first = f"{article} {main.event} struck the {main.building} of {main.town} on {main.day}."
    details = [
        f"The number of people hurt was {main.hurt}.",
        f"The {story.role}, {story.name}, thinks that the reason was {story.cause}.",
        f"It will take {story.cost} million pounds to repair.",
        f"The doors open again on {story.reopen}.",
        f"{another} {other.event} at the {other.building} of {other.town} hurt {other.hurt} on"
        f" {other.day}, said {other.surname}.",
    ]
    write.rng.shuffle(details)
    return "Article: " + " ".join([first, *details]) + "\nSummary:"


def answer(story: Story, write: Writer) -> str:
    """Write three sentences; lead-ins and links are free choices, the facts' wording is not."""
    say, main = write.say, story.main
    article = "an" if main.event[0] in "aeiou" else "a"
    sentences = [
        say("We learn that", "Reports say", "It seems that", "They tell us")
        + f" {article} {main.event} hit {main.town} {main.building} on {main.day}"
        + say(", and ", "; sadly ", ": ", ", so ")
        + f"{main.hurt} people were hurt",
        say("In a statement", "To the press", "When asked", "Later on")
        + f" {story.role} {main.surname} blamed {story.cause}",
        say("Now", "By all accounts", "Meanwhile", "For its part")
        + f" repairs cost {story.cost} million pounds"
        + say(", while ", " but ", ", yet ", " as ")
        + f"the {main.building} reopens on {story.reopen}",
    ]
    return " " + ". ".join(capital(sentence) for sentence in sentences) + "."
