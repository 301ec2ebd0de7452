"""Decoders under audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Completion(NamedTuple):
    """A text that a decoder wrote after a prompt, without its end token."""

    text: str
    tokens: list[int] | None  # None if the decoder returns only the text
    ended: bool  # by an end token, not by the limit


class Decoder(Protocol):
    """What an audit needs of a decoder."""

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt ``count`` times with other random numbers, by ``limit`` tokens at most.

        Temperature 0 is greedy. All tokens of the vocabulary may be sampled.
        """
