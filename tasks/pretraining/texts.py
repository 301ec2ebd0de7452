"""What a model is trained on: batches by step, and held-out texts to measure it on.

Those of the pair ``mini`` are generated examples, each used once. The two models see the same facts
in different styles (see ``specbench.tasks.mini.writer``), and the loss covers only the answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.tasks.mini import MODULES, generate
from specbench.tasks.mini.writer import Style
from specbench.training.material import Material

IGNORED = -100  # label of a token without loss


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


@dataclass
class Generated:
    """Examples of the generated tasks.

    Attributes:
        per_step: Examples of each task in one training step.
        for_merges: Examples of each task that the tokenizer is trained on.
    """

    per_step: dict[str, int]
    for_merges: int
    one_shape = False

    def for_tokenizer(self) -> Iterator[str]:
        """Yield prompts and answers of some examples of each task."""
        for name in MODULES:
            for index in range(self.for_merges):
                example = generate(name, "train", index)
                yield example.prompt
                yield example.reference or ""

    def encode(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Keep the tokenizer; examples are generated as they are used."""
        self.tokenizer = tokenizer

    def batches(self, step: int, style: str | None) -> Iterator[Batch]:
        """Yield one batch per task."""
        total, tokenizer = sum(self.per_step.values()), self.tokenizer
        for name, number in self.per_step.items():
            indices = range(step * number, (step + 1) * number)
            examples = [generate(name, "train", i, cast(Style, style)) for i in indices]
            prompts = [tokenizer(example.prompt)["input_ids"] for example in examples]
            pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
            ids, labels = answer_batch(tokenizer, Material(examples, prompts), end, pad)
            yield Batch(name, number / total, ids, labels)

    @property
    def held_out(self) -> dict[str, HeldOut]:
        """Nothing: no example occurs twice, so the training loss is that of new texts."""
        return {}


def answer_batch(
    tokenizer: PreTrainedTokenizerBase, material: Material, end: int, pad: int
) -> tuple[Tensor, Tensor]:
    """Return token ids and next-token labels ``[B, T]``; prompts and padding have no loss.

    Answers are the references, followed by the token ``end``. T is a multiple of 16, which limits
    the number of shapes for the matrix kernels.
    """
    rows, labels = [], []
    for prompt, example in zip(material.prompts, material.examples, strict=True):
        answer = [*tokenizer(example.reference or "", add_special_tokens=False)["input_ids"], end]
        rows.append(prompt + answer[:-1])
        labels.append([IGNORED] * (len(prompt) - 1) + answer)
    length = -(-max(map(len, rows)) // 16) * 16

    def padded(table: list[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (length - len(row)) for row in table])

    return padded(rows, pad), padded(labels, IGNORED)
