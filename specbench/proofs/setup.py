"""How texts are sampled, and what must be proposed in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from specbench.decoding.drafting import Drafter, LookupDrafter, ModelDrafter
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.heads.bind import BoundMethod

ROUNDS = 2  # minimum number of complete rounds per text, so that caches are overwritten
DRAWN, NOTHING = -2, -1
"""In place of a token that is proposed for certain: one that is drawn, or none."""


class Context(NamedTuple):
    """The tokens of a prompt, and the name of its task and example."""

    name: str
    prompt: Sequence[int]


class Ends(NamedTuple):
    """What ends a sampled text, in position of the pair's own end tokens."""

    limit: int  # tokens, with the end token
    token: int | None = None  # end token
    stop: str = ""  # stop string; none if empty

    def output(self, generation: Generation) -> list[int]:
        """Return the tokens of an output, with its end token."""
        if self.token is None or generation.stopped_by != "eos":
            return generation.token_ids
        return [*generation.token_ids, self.token]

    @property
    def whole(self) -> bool:
        """Whether a text is a whole output, not so many rounds."""
        return self.token is not None


def after_rounds(draft_length: int) -> Ends:
    """Return ends that let ``ROUNDS`` rounds be complete."""
    return Ends(ROUNDS * (draft_length + 1) + 1)


class Setup(NamedTuple):
    """How the texts of prompts are sampled, which decides their laws."""

    pair: LoadedPair
    method: BoundMethod
    sampling: Sampling = Sampling()
    drafter: Drafter = ModelDrafter()
    draft_length: int = 0  # N
    ends: Ends = Ends(limit=1)
    texts: int = 1  # per prompt
    batch_size: int = 1
    seed: int = 0

    @property
    def drafts(self) -> int:
        """The number of drafts that a round may have."""
        return self.draft_length if self.method.rule else 0

    def propose(self, text: Sequence[int]) -> list[int]:
        """Return what must be proposed after a text, ``DRAWN`` if it is drawn."""
        return proposals(self.drafter, text, self.drafts, self.pair.target.vocabulary)


def proposals(
    drafter: Drafter, text: Sequence[int], draft_length: int, vocabulary: int
) -> list[int]:
    """Return what a drafter must propose after a text, DRAWN if it draws.

    The search for an n-gram is independent of ``decoding.lookup``: the longest that ends the text
    and occurs before, at its last occurrence.
    """
    if not isinstance(drafter, LookupDrafter):
        return [DRAWN] * draft_length
    for length in range(min(drafter.longest, len(text) - 1), drafter.shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            end = start + length
            if text[start:end] == text[-length:]:
                copied = text[end : end + draft_length]
                return list(takewhile(lambda token: token < vocabulary, copied))
    return []
