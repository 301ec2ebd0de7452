"""Free choices of a generated text: which of several equivalent phrasings is written.

The bundled pair disagrees harmlessly because its two models learn different *styles*: at every free
choice the target prefers the first phrasings and the draft the last ones. Facts (names, digits,
operators) are never a free choice, so a mismatch there is an error and not a matter of taste.
"""

from __future__ import annotations

import random
from typing import Literal

Style = Literal["plain", "target", "draft"]

# A phrasing is this many times as likely as the next one in the style's order of preference.
PREFERENCE = 2.5


class Writer:
    """Writes one text in one style.

    Args:
        rng: Source of every choice; equal seeds write equal texts.
        style: ``plain`` chooses evenly (prompts, references), ``target`` prefers the first options,
            ``draft`` the last ones.
    """

    def __init__(self, rng: random.Random, style: Style = "plain") -> None:
        self.rng = rng
        self.style = style

    def say(self, *options: str) -> str:
        """Choose one of several phrasings that mean the same, by the preference of the style."""
        ranks = range(len(options))
        if self.style == "plain":
            return self.rng.choice(options)
        weights = [PREFERENCE**-rank for rank in ranks]
        if self.style == "draft":
            weights.reverse()
        return self.rng.choices(options, weights)[0]

    def flip(self, chance: float = 0.5) -> bool:
        """Toss a coin that no style influences."""
        return self.rng.random() < chance


def capital(text: str) -> str:
    """Return the text with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]
