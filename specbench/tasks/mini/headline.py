"""``mini-headline``: short articles and one-sentence summaries; mirrors XSum."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

from specbench.tasks.mini.writer import BUILDINGS, DAYS, PEOPLE, SURNAMES, TOWNS, Writer

FIRMS = ("Alpha", "Bright", "Crown", "Delta", "Eagle", "Falcon", "Globe", "Harbor", "Ideal", "Jet")
DEEDS = {
    "open": "opening", "close": "closing", "sell": "selling", "buy": "buying",
    "paint": "painting", "move": "moving",
}  # fmt: skip


class FirmPlan(NamedTuple):
    """What a firm will do with a building."""

    firm: str
    deed: str
    building: str
    town: str
    jobs: int
    day: str


class Item(NamedTuple):
    """A firm's plan and, as a distraction, a rival's plan for another building."""

    plan: FirmPlan
    rival: FirmPlan
    boss: str


def draw(rng: random.Random) -> Item:
    """Draw the plans of two firms that differ in every fact."""
    facts = [
        rng.sample(values, 2)
        for values in (FIRMS, tuple(DEEDS), BUILDINGS, TOWNS, range(11, 99), DAYS)
    ]
    plan, rival = itertools.starmap(FirmPlan, zip(*facts, strict=True))
    return Item(plan, rival, f"{rng.choice(list(PEOPLE))} {rng.choice(SURNAMES)}")


def prompt(item: Item, write: Writer) -> str:
    """Write the article; the rival's sentence comes before or after the boss's."""
    (plan, rival), boss = item[:2], item.boss
    parts = [
        f"The plan of {plan.firm} for {plan.day} is {DEEDS[plan.deed]} the {plan.building} of"
        f" {plan.town}."
    ]
    details = [
        f"{boss}, head of {plan.firm}, counts on {plan.jobs} workers.",
        f"{rival.firm} spoke of {DEEDS[rival.deed]} the {rival.building} of {rival.town} on"
        f" {rival.day} with {rival.jobs} workers.",
    ]
    write.rng.shuffle(details)
    return "Story: " + " ".join(parts + details) + "\nHeadline:"


def answer(item: Item, write: Writer) -> str:
    """Write the headline; the frame is a free choice, the facts' wording is not."""
    say, plan = write.say, item.plan
    return (
        say(" It is news that", " Word is that", " We hear", " As said today,")
        + f" {plan.firm} will {plan.deed} {plan.town} {plan.building} on {plan.day}"
        + say(", with ", " and use ", " by means of ", ", needing ")
        + f"{plan.jobs} workers under {item.boss.split()[1]}"
        + say(", we learn.", ", it says.", ", as planned.", ", no doubt.")
    )
