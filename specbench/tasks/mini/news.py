"""``mini-news``: articles and three-sentence summaries; mirrors CNN/DailyMail."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specbench.tasks.mini.writer import BUILDINGS, DAYS, PEOPLE, SURNAMES, TOWNS, Writer, capital

EVENTS = ("fire", "flood", "storm", "blast", "crash", "theft", "power cut", "gas leak")
ROLES = ("mayor", "chief", "doctor", "judge", "teacher", "guard", "captain", "manager")
CAUSES = (
    "rain", "wind", "ice", "smoke", "rust", "speed", "a broken pipe", "an old cable", "a lorry",
    "a candle",
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    """The facts of one event, and of another that the summary must omit."""

    event: str
    building: str
    town: str
    day: str
    hurt: int
    role: str
    name: str
    cause: str
    cost: int
    reopen: str
    other_event: str
    other_building: str
    other_town: str
    other_day: str
    other_hurt: int
    other_name: str


def draw(rng: random.Random) -> Story:
    """Draw the facts of a story; the second event differs from the first in each of them."""
    event, other_event = rng.sample(EVENTS, 2)
    building, other_building = rng.sample(BUILDINGS, 2)
    town, other_town = rng.sample(TOWNS, 2)
    day, other_day, reopen = rng.sample(DAYS, 3)
    hurt, other_hurt = rng.sample(range(2, 60), 2)
    surname, other_surname = rng.sample(SURNAMES, 2)
    return Story(
        event, building, town, day, hurt, rng.choice(ROLES),
        f"{rng.choice(list(PEOPLE))} {surname}", rng.choice(CAUSES), rng.randint(2, 90), reopen,
        other_event, other_building, other_town, other_day, other_hurt, other_surname,
    )  # fmt: skip


def prompt(story: Story, write: Writer) -> str:
    """Write the article: the event, its details and another event in shuffled order."""
    article, other = ("An" if s[0] in "aeiou" else "A" for s in (story.event, story.other_event))
    first = f"{article} {story.event} struck the {story.building} of {story.town} on {story.day}."
    details = [
        f"The number of people hurt was {story.hurt}.",
        f"The {story.role}, {story.name}, thinks that the reason was {story.cause}.",
        f"It will take {story.cost} million pounds to repair.",
        f"The doors open again on {story.reopen}.",
        f"{other} {story.other_event} at the {story.other_building} of {story.other_town} hurt"
        f" {story.other_hurt} on {story.other_day}, said {story.other_name}.",
    ]
    write.rng.shuffle(details)
    return "Article: " + " ".join([first, *details]) + "\nSummary:"


def answer(story: Story, write: Writer) -> str:
    """Write three sentences; lead-ins and links are free choices, the facts' wording is not."""
    say = write.say
    article = "an" if story.event[0] in "aeiou" else "a"
    surname = story.name.split()[1]
    sentences = [
        say("We learn that", "Reports say", "It seems that", "They tell us")
        + f" {article} {story.event} hit {story.town} {story.building} on {story.day}"
        + say(", and ", "; sadly ", ": ", ", so ")
        + f"{story.hurt} people were hurt",
        say("In a statement", "To the press", "When asked", "Later on")
        + f" {story.role} {surname} blamed {story.cause}",
        say("Now", "By all accounts", "Meanwhile", "For its part")
        + f" repairs cost {story.cost} million pounds"
        + say(", while ", " but ", ", yet ", " as ")
        + f"the {story.building} reopens on {story.reopen}",
    ]
    return " " + ". ".join(capital(sentence) for sentence in sentences) + "."
