"""Free choices in generated texts between equivalent phrasings, and lists of short common words.

The models of the bundled pair disagree harmlessly because they learn different *styles*: at every
free choice the target prefers the first phrasings and the draft the last ones. Facts (names,
digits, operators) are never a free choice, so a mismatch there is an error, not a matter of style.
Each word of a list is a single token.
"""

from __future__ import annotations

import random
from typing import Literal

Style = Literal["plain", "target", "draft"]

# Probability of a phrasing relative to the next one.
PREFERENCE: dict[Style, float] = {"target": 2.5, "draft": 1 / 1.7}
PEOPLE = {
    "Anna": "She", "Ben": "He", "Clara": "She", "David": "He", "Emma": "She", "Felix": "He",
    "Grace": "She", "Henry": "He", "Iris": "She", "Jack": "He", "Kate": "She", "Leo": "He",
    "Mia": "She", "Noah": "He", "Olga": "She", "Paul": "He", "Rosa": "She", "Sam": "He",
    "Tina": "She", "Victor": "He",
}  # fmt: skip
SURNAMES = (
    "Adams", "Baker", "Carter", "Dixon", "Evans", "Fisher", "Grant", "Hughes", "Irving", "Jones",
    "Keller", "Lewis", "Mason", "Norris", "Owens", "Parker", "Quinn", "Reed", "Stone", "Turner",
)  # fmt: skip
TOWNS = (
    "Ashford", "Bolton", "Camden", "Dover", "Exeter", "Fulham", "Grimsby", "Harlow", "Ipswich",
    "Kendal", "Luton", "Margate", "Newton", "Oxford", "Preston", "Reading", "Stroud", "Torquay",
    "Walsall", "York",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
BUILDINGS = (
    "school", "hospital", "library", "station", "museum", "market", "theatre", "hotel", "church",
    "stadium", "factory", "college", "airport", "harbour", "castle", "bridge",
)  # fmt: skip
THINGS = (
    "apples", "books", "cards", "coins", "eggs", "flowers", "games", "hats", "lamps", "marbles",
    "nuts", "pens", "plates", "shells", "stamps", "toys",
)  # fmt: skip
CONTAINERS = ("bags", "boxes", "packs", "trays", "crates", "jars")


class Writer:
    """Writes one text in one style; equal seeds give equal texts.

    ``plain`` chooses uniformly (prompts, references), ``target`` prefers the first options,
    ``draft`` the last ones.
    """

    def __init__(self, rng: random.Random, style: Style = "plain") -> None:
        self.rng = rng
        self.style = style

    def say(self, *options: str) -> str:
        """Choose one of several equivalent phrasings according to the style."""
        if self.style == "plain":
            return self.rng.choice(options)
        preference = PREFERENCE[self.style]
        weights = [preference**-rank for rank in range(len(options))]
        return self.rng.choices(options, weights)[0]


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
