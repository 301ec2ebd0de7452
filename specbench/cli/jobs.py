"""The heads that ``train`` is to train, and what they need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.cli.output import needed_memory
from specbench.engine.pairs import Loading, PairSpec
from specbench.runs.labels import recipe_of
from specbench.tasks.task import Task
from specbench.training.recipe import HeadRecipe


class HeadJob(NamedTuple):
    """One head to train: its task, recipe and folder."""

    task: Task
    recipe: HeadRecipe
    folder: Path

    def __str__(self) -> str:
        target, loss = self.recipe.target_acceptance, self.recipe.max_quality_loss
        goal = f" at acceptance {target:g}" if target is not None else ""
        goal = f" within {loss:g} points" if loss is not None else goal
        seed = f", seed {self.recipe.seed}" if recipe_of(str(self.folder)) else ""
        return f"{self.task.name}{goal}{seed}"


def print_plan(jobs: Sequence[HeadJob], spec: PairSpec, loading: Loading) -> None:
    """Print the steps, the reward and the folder of each head, and the memory that one needs."""
    from specbench.engine.device import choose_device
    from specbench.engine.hardware import available_memory
    from specbench.engine.memory import check_memory

    for job in jobs:
        recipe = job.recipe
        texts = recipe.steps * recipe.prompts_per_step * recipe.rollouts
        print(
            f"{job} on {spec.name}: {recipe.head_kind} head, {recipe.steps} steps of "
            f"{recipe.prompts_per_step} prompts with {recipe.rollouts} text"
            f"{'s' * (recipe.rollouts > 1)} each ({texts:,} texts "
            f"of up to {recipe.text_tokens(job.task)} tokens), reward "
            f"{recipe.metric_for(job.task)}; {job.folder}"
        )
    if jobs:
        prompt_tokens, new_tokens, texts = sizes(jobs)
        needed = check_memory(
            spec, loading, prompt_tokens, new_tokens, rows=texts, purpose="to train a head"
        )
        free = available_memory(choose_device(loading.device), loading.device_map is not None)
        print(needed_memory(needed, free))


def sizes(jobs: Sequence[HeadJob]) -> tuple[int, int, int]:
    """Return the sizes to reserve memory for: prompt tokens, new tokens, texts per batch."""
    from specbench.engine.memory import estimate_tokens
    from specbench.training.rollouts import AT_ONCE

    def prompt_tokens(task: Task, recipe: HeadRecipe) -> int:
        examples = task.examples("train", recipe.steps * recipe.prompts_per_step, recipe.seed)
        longest = estimate_tokens(example.prompt for example in examples)
        return min(longest, recipe.max_prompt_tokens)

    return (
        max(prompt_tokens(job.task, job.recipe) for job in jobs),
        max(job.recipe.text_tokens(job.task) for job in jobs),
        max(AT_ONCE, *(job.recipe.rollouts for job in jobs)),
    )
