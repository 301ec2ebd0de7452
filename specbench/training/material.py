"""Training examples with prompts that are encoded before the first step.

Prompts that are too long are skipped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from specbench.engine.pair import LoadedPair
from specbench.engine.prompts import encode_prompt
from specbench.errors import UsageError, require
from specbench.tasks.example import Example, repeated_prompts
from specbench.tasks.metrics import GREEDY, Metric, get_metric, try_metrics
from specbench.tasks.task import Task
from specbench.training.recipe import HeadRecipe

# Held-out examples for measurements during training, and others for the final one. If a task has
# too few, they are the same; if it has few distinct prompts (mini-code), some occur in training.
# With fewer final ones than ``FINAL``, each has two texts. With fewer than ``HELD_OUT``, each has
# several, ``HELD_OUT`` in all but at most ``MOST_TEXTS`` each: then prompts are the larger noise.
HELD_OUT, FINAL, MOST_TEXTS = 128, 256, 4


class Material(NamedTuple):
    """Examples with their encoded prompts, and the number of skipped examples."""

    examples: list[Example]
    prompts: list[list[int]]
    left_out: int = 0

    def taken(self, first: int, count: int) -> Material:
        """Return ``count`` examples from index ``first`` on, cycling after the last."""
        places = [(first + i) % len(self.examples) for i in range(count)]
        return Material([self.examples[i] for i in places], [self.prompts[i] for i in places])


class Materials(NamedTuple):
    """All examples for the training of a head."""

    train: Material  # for the steps
    held_out: Material  # for measurements during training
    final: Material  # for the head's worth
    unseen_left_out: int = 0

    @property
    def held_out_texts(self) -> int:
        """Texts per held-out prompt."""
        return min(MOST_TEXTS, -(-HELD_OUT // max(1, len(self.held_out.examples))))

    @property
    def final_texts(self) -> int:
        """Texts per final prompt."""
        return 1 if len(self.final.examples) >= FINAL else 2

    def left_out(self) -> dict[str, int]:
        """Return the number of skipped examples of each split."""
        return {"train": self.train.left_out, "held-out": self.unseen_left_out}


def read_material(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    examples: Sequence[Example],
    split: str,
    limit: int,
    *,
    thinking: bool = False,
    metric: Metric | None = None,
) -> Material:
    """Encode every prompt as a run does, and skip those that fail, if most do not.

    Prompts over the limit are cut inside their passage; without a passage they are skipped. So are
    examples that lack what the metric needs, apart from greedy texts, which are decoded later.
    """
    encoded: list[tuple[Example, list[int]]] = []
    problems: list[str] = []
    for example in examples:
        if metric and metric.needs != GREEDY and not metric.suits(example):
            problems.append(f"example `{example.id}` has no `{metric.needs}`")
            continue
        try:
            prompt = encode_prompt(tokenizer, example, task.prompt_format, limit, thinking=thinking)
            encoded.append((example, prompt.ids))
        except UsageError as error:
            problems.append(str(error))
    if len(problems) > len(encoded):
        raise UsageError(
            f"{len(problems)} of {len(examples)} {split} examples of {task.name} cannot be used, "
            f"the first because {problems[0]}"
        )
    return Material([e for e, _ in encoded], [prompt for _, prompt in encoded], len(problems))


def split_material(
    pair: LoadedPair,
    task: Task,
    split: str,
    count: int,
    seed: int,
    limit: int,
    metric: Metric | None = None,
) -> Material:
    """Encode up to ``count`` examples of a task's split; see ``read_material``.

    Held-out prompts that occur repeatedly are measured once.
    """
    examples = task.examples(split, count, seed)
    if split == "held-out":
        repeated = repeated_prompts(examples)
        examples = [example for example in examples if example.id not in repeated]
    read = partial(read_material, pair.tokenizer, thinking=pair.thinking, metric=metric)
    return read(task, examples, split, limit)


def read_materials(pair: LoadedPair, task: Task, recipe: HeadRecipe) -> Materials:
    """Encode all examples for the training of a head, whose metric can score each of them."""
    metric = get_metric(recipe.metric_for(task) or "")
    read = partial(split_material, pair, task, limit=recipe.max_prompt_tokens, metric=metric)
    unseen = read("held-out", HELD_OUT + FINAL, 0)
    further = len(unseen.examples) - HELD_OUT
    materials = Materials(
        train=read("train", recipe.steps * recipe.prompts_per_step, recipe.seed),
        held_out=unseen.taken(0, HELD_OUT) if further >= HELD_OUT else unseen,
        final=unseen.taken(HELD_OUT, further) if further >= HELD_OUT else unseen,
        unseen_left_out=unseen.left_out,
    )
    try_metrics([metric.name], [*materials.train.examples, *unseen.examples])
    longest = max(map(len, [*materials.train.prompts, *unseen.prompts]), default=0)
    context = min(model.context or math.inf for model in (pair.target, pair.draft))
    needed = longest + recipe.text_tokens(task)
    advice = "lower --max-prompt-tokens or --max-new-tokens"
    require(needed <= context, f"{task.name} needs a context of {needed}, not {context}: {advice}")
    return materials
