"""Prompts of random tokens, for benchmarks: nothing about their answers is measured but time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.tasks.example import PLAIN, Example
from specbench.tasks.task import Task

RANDOM = "random"


@dataclass(frozen=True)
class RandomPrompts:
    """Prompts of random tokens, all of one length."""

    tokens: int  # of a prompt
    seed: int
    # Number of different prompts, which differ in their last token alone, so that a cache may share
    # the rest; None if all are different from the start.
    distinct: int | None = None

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return ``limit`` examples, whose tokens are those of ``ids``."""
        prompts = (f"{self.tokens} random tokens, no. {self._number(i)}" for i in range(limit or 1))
        return [Example(str(number), prompt) for number, prompt in enumerate(prompts)]

    def ids(self, example: Example, vocabulary: int) -> list[int]:
        """Return the tokens of an example's prompt."""
        import numpy as np

        number = self._number(int(example.id))
        generator = np.random.default_rng((self.seed, 0 if self.distinct else number))
        tokens: list[int] = generator.integers(vocabulary, size=self.tokens).tolist()
        return [*tokens[:-1], (tokens[-1] + number) % vocabulary] if self.distinct else tokens

    def provenance(self) -> dict[str, Any]:
        """Return the length and number of the prompts."""
        return {"generator": RANDOM, "prompt_tokens": self.tokens, "distinct": self.distinct}

    def _number(self, index: int) -> int:
        return index % self.distinct if self.distinct else index


def random_task(batch_size: int, new_tokens: int, prompts: RandomPrompts) -> Task:
    """Return the task of a batch size, with answers of fixed length that nothing ends or scores."""
    return Task(
        name=f"{RANDOM}-{batch_size}",
        version="1",
        description="random tokens",
        metrics=(),
        stop=(),
        max_new_tokens=new_tokens,
        source=prompts,
        path=Path(),
        prompt_format=PLAIN,
    )
