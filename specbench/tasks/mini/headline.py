"""``mini-headline``: short articles and one-sentence summaries; mirrors XSum."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specbench.tasks.mini.writer import BUILDINGS, DAYS, PEOPLE, SURNAMES, TOWNS, Writer

FIRMS = ("Alpha", "Bright", "Crown", "Delta", "Eagle", "Falcon", "Globe", "Harbor", "Ideal", "Jet")
DEEDS = {
    "open": "opening", "close": "closing", "sell": "selling", "buy": "buying",
    "paint": "painting", "move": "moving",
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """A firm's plan for a building and, as a distraction, a rival's plan for another."""

    firm: str
    deed: str
    building: str
    town: str
    jobs: int
    boss: str
    day: str
    rival: str
    rival_deed: str
    rival_building: str
    rival_town: str
    rival_jobs: int
    rival_day: str


def draw(rng: random.Random) -> Item:
    """Draw the plans of two firms that differ in every fact."""
    firm, rival = rng.sample(FIRMS, 2)
    deed, rival_deed = rng.sample(tuple(DEEDS), 2)
    building, rival_building = rng.sample(BUILDINGS, 2)
    town, rival_town = rng.sample(TOWNS, 2)
    jobs, rival_jobs = rng.sample(range(11, 99), 2)
    day, rival_day = rng.sample(DAYS, 2)
    boss = f"{rng.choice(list(PEOPLE))} {rng.choice(SURNAMES)}"
    return Item(
        firm, deed, building, town, jobs, boss, day,
        rival, rival_deed, rival_building, rival_town, rival_jobs, rival_day,
    )  # fmt: skip


def prompt(item: Item, write: Writer) -> str:
    """Write the article; the rival's sentence comes before or after the boss's."""
    parts = [
        f"The plan of {item.firm} for {item.day} is {DEEDS[item.deed]} the {item.building} of"
        f" {item.town}."
    ]
    details = [
        f"{item.boss}, head of {item.firm}, counts on {item.jobs} workers.",
        f"{item.rival} spoke of {DEEDS[item.rival_deed]} the {item.rival_building} of"
        f" {item.rival_town} on {item.rival_day} with {item.rival_jobs} workers.",
    ]
    write.rng.shuffle(details)
    return "Story: " + " ".join(parts + details) + "\nHeadline:"


def answer(item: Item, write: Writer) -> str:
    """Write the headline; the frame is a free choice, the facts' wording is not."""
    say = write.say
    return (
        say(" It is news that", " Word is that", " We hear", " As said today,")
        + f" {item.firm} will {item.deed} {item.town} {item.building} on {item.day}"
        + say(", with ", " and use ", " by means of ", ", needing ")
        + f"{item.jobs} workers under {item.boss.split()[1]}"
        + say(", we learn.", ", it says.", ", as planned.", ", no doubt.")
    )
