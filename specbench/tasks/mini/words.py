"""Word lists of the bundled tasks: short common words, each a single token."""

from __future__ import annotations

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
