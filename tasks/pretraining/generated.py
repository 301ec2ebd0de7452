"""The texts of the pair ``mini``: generated examples, each used once.

The two models see the same facts in different styles (see ``specbench.tasks.mini.writer``). The
loss covers only the answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from transformers import PreTrainedTokenizerFast

from pretraining.texts import Batch, HeldOut
from specbench.tasks.mini import MODULES, generate
from specbench.tasks.mini.writer import Style
from specbench.training.material import Material, answer_batch


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
