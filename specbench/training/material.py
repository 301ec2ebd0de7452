"""Examples for training, their prompts read as tokens before the first step.

Prompts that are too long are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.prompts import encode_prompt
from specbench.tasks.task import Task
from specbench.training.recipe import HeadRecipe

# Held-out examples that heads are scored with. Where a task has few distinct prompts (mini-code),
# some of them occur in a training too.
HELD_OUT = 256
# Held-out examples that a bias is calibrated with, others than those of the scores; where a task
# has few, some are both.
CALIBRATION, CALIBRATION_SEED = 256, 1
IGNORED = -100  # label of a token without loss


class Material(NamedTuple):
    """Examples with the tokens of their prompts, and how many more were left out."""

    examples: list[Example]
    prompts: list[list[int]]
    left_out: int = 0

    def taken(self, first: int, count: int) -> Material:
        """Return ``count`` examples from an index on, starting over after the last."""
        places = [(first + i) % len(self.examples) for i in range(count)]
        return Material([self.examples[i] for i in places], [self.prompts[i] for i in places])


class Materials(NamedTuple):
    """All examples that the training of a head reads."""

    train: Material  # for its steps
    held_out: Material  # for its scores
    calibration: Material | None  # for its bias; None without a target acceptance

    def left_out(self) -> dict[str, int]:
        """Return how many examples of each split were left out."""
        unseen = [part for part in (self.held_out, self.calibration) if part is not None]
        return {"train": self.train.left_out, "held-out": sum(part.left_out for part in unseen)}


def read_material(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    examples: Sequence[Example],
    what: str,
    limit: int,
    *,
    thinking: bool = False,
) -> Material:
    """Read every prompt as a run does, and leave out those that cannot be read.

    Prompts over the limit are cut inside their passage, or left out where they have none.

    Raises:
        UsageError: Most of them cannot be read: what is left would stand for another task.
    """
    kept: list[tuple[Example, list[int]]] = []
    problems: list[str] = []
    for example in examples:
        try:
            prompt = encode_prompt(tokenizer, example, task.prompt_format, limit, thinking=thinking)
            kept.append((example, prompt.ids))
        except UsageError as error:
            problems.append(str(error))
    if len(problems) > len(kept):
        raise UsageError(
            f"{len(problems)} of {len(examples)} {what} examples of {task.name} cannot be used, "
            f"the first because {problems[0]}"
        )
    return Material([e for e, _ in kept], [prompt for _, prompt in kept], len(problems))


def split_material(
    pair: LoadedPair, task: Task, split: str, count: int, seed: int, limit: int
) -> Material:
    """Read up to ``count`` examples of a task's split; see ``read_material``."""
    examples = task.examples(split, count, seed)
    return read_material(pair.tokenizer, task, examples, split, limit, thinking=pair.thinking)


def read_materials(pair: LoadedPair, task: Task, recipe: HeadRecipe) -> Materials:
    """Read all examples that the training of a head needs.

    Raises:
        UsageError: The task has no training split, or most prompts are too long.
    """

    def read(split: str, count: int, seed: int) -> Material:
        return split_material(pair, task, split, count, seed, recipe.max_prompt_tokens)

    targeted = recipe.target_acceptance is not None
    return Materials(
        train=read("train", recipe.steps * recipe.prompts_per_step, recipe.seed),
        held_out=read("held-out", HELD_OUT, 0),
        calibration=read("held-out", CALIBRATION, CALIBRATION_SEED) if targeted else None,
    )


def described(task: Task, left_out: dict[str, int]) -> dict[str, Any]:
    """Return what the description of a head or a draft says of its data."""
    return {
        "task": task.name,
        "task_version": task.version,
        "prompt_format": task.prompt_format,
        "data": task.provenance(),
        "left_out": left_out,
    }


def answer_batch(
    tokenizer: PreTrainedTokenizerBase, material: Material, end: int, pad: int
) -> tuple[Tensor, Tensor]:
    """Return token ids and next-token labels ``[B, T]``; prompts and padding carry no loss.

    Answers, which are the references, end in the token ``end``. T is a multiple of 16: few shapes
    for the matrix kernels.
    """
    rows, labels = [], []
    for prompt, example in zip(material.prompts, material.examples, strict=True):
        answer = [*tokenizer(example.reference or "", add_special_tokens=False)["input_ids"], end]
        rows.append(prompt + answer[:-1])
        labels.append([IGNORED] * (len(prompt) - 1) + answer)
    length = -(-max(map(len, rows)) // 16) * 16
    ids, wanted = (
        torch.tensor([row + [value] * (length - len(row)) for row in table])
        for table, value in ((rows, pad), (labels, IGNORED))
    )
    return ids, wanted
