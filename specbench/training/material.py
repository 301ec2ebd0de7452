"""What a training reads, its prompts as tokens before the first step.

What cannot be read, as a rule because it is too long, is left out and counted while that costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.example import Example
from specbench.tasks.task import Task
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import read_prompts

# Held-out examples that heads are scored with. Where a task has few distinct prompts (mini-code),
# some of them occur in a training too.
HELD_OUT = 256
# Held-out examples that a bias is set with, others than those of the scores; where a task has few,
# some are both.
SETTLING, SETTLING_SEED = 256, 1


class Material(NamedTuple):
    """Examples with the tokens of their prompts.

    Attributes:
        examples: The examples.
        prompts: Tokens of each one's prompt.
        left_out: How many more there were.
    """

    examples: list[Example]
    prompts: list[list[int]]
    left_out: int = 0

    def taken(self, first: int, count: int) -> Material:
        """Return some of it from a place on; after the last comes the first again."""
        places = [(first + i) % len(self.examples) for i in range(count)]
        return Material([self.examples[i] for i in places], [self.prompts[i] for i in places])


class Materials(NamedTuple):
    """All that a training of a head reads.

    Attributes:
        train: For its steps.
        held_out: For its scores.
        settling: For its bias; None where no acceptance is wished for.
    """

    train: Material
    held_out: Material
    settling: Material | None

    def left_out(self) -> dict[str, int]:
        """Return how many examples of each split were left out."""
        unseen = [part for part in (self.held_out, self.settling) if part is not None]
        return {"train": self.train.left_out, "held-out": sum(part.left_out for part in unseen)}


def readable(
    examples: Sequence[Example], read: Callable[[Example], list[int]], what: str
) -> Material:
    """Read every prompt, and leave out what cannot be read.

    Args:
        examples: The examples.
        read: Returns the tokens of one's prompt, or raises ``UsageError``.
        what: What they are, for the message.

    Raises:
        UsageError: Most of them cannot be read: what is left would stand for another task.
    """
    kept: list[tuple[Example, list[int]]] = []
    problems: list[str] = []
    for example in examples:
        try:
            kept.append((example, read(example)))
        except UsageError as error:
            problems.append(str(error))
    if len(problems) > len(kept):
        raise UsageError(
            f"{len(problems)} of {len(examples)} {what} cannot be used, the first because "
            f"{problems[0]}"
        )
    return Material([e for e, _ in kept], [prompt for _, prompt in kept], len(problems))


def split_material(
    pair: LoadedPair, task: Task, split: str, count: int, seed: int, limit: int
) -> Material:
    """Read examples of a task as a run reads them.

    Args:
        pair: Loaded models.
        task: Where the examples come from.
        split: ``train`` or ``held-out``.
        count: At most this many.
        seed: Which.
        limit: Longer prompts are cut inside their passage, or left out where they have none.

    Raises:
        UsageError: No such split, or most prompts are too long.
    """

    def read(example: Example) -> list[int]:
        return read_prompts(pair, task, [example], limit)[0]

    return readable(task.examples(split, count, seed), read, f"{split} examples of {task.name}")


def read_materials(pair: LoadedPair, task: Task, recipe: HeadRecipe) -> Materials:
    """Read all that a training of a head will need.

    Raises:
        UsageError: The task has no training split, or most prompts are too long.
    """
    limit, total = recipe.max_prompt_tokens, recipe.steps * recipe.prompts_per_step
    wished = recipe.target_acceptance is not None
    return Materials(
        train=split_material(pair, task, "train", total, recipe.seed, limit),
        held_out=split_material(pair, task, "held-out", HELD_OUT, 0, limit),
        settling=split_material(pair, task, "held-out", SETTLING, SETTLING_SEED, limit)
        if wished
        else None,
    )
