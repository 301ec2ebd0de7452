"""What a model is trained on: batches by step, and held-out texts to measure it on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor
from transformers import PreTrainedTokenizerFast


class Batch(NamedTuple):
    """Texts that go through the model together.

    A step may have several batches; its loss is their mean, weighted by their share.
    """

    name: str  # of the kind of text; its loss is shown
    share: float
    ids: Tensor  # `[B, T]` tokens
    labels: Tensor  # `[B, T]` next tokens; ``IGNORED`` has no loss


class HeldOut(NamedTuple):
    """Texts that no model is trained on."""

    batches: list[Batch]
    characters: int  # in all texts, for a loss that does not depend on the tokenizer


class Texts(Protocol):
    """The texts of a recipe."""

    @property
    def one_shape(self) -> bool:
        """Whether all batches have the same shape, so that compiling the model pays."""

    def for_tokenizer(self) -> Iterator[str]:
        """Yield the texts that the tokenizer is trained on."""

    def encode(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Prepare the batches of a tokenizer; must run before they are asked for."""

    def batches(self, step: int, style: str | None) -> Iterator[Batch]:
        """Yield the batches of a step, counted from 0."""

    @property
    def held_out(self) -> dict[str, HeldOut]:
        """Held-out texts by name."""
