"""Training of a DIVERSED head: roll out, score, a few epochs, once more.

Everything that decides the next step is in ``State``, which is written after each step; a training
that was killed goes on from there as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.loading import LoadedPair
from specbench.errors import RunError
from specbench.example import Example
from specbench.heads.head import Head
from specbench.metrics import score
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training.dial import follow
from specbench.training.material import Material
from specbench.training.objective import Step, evaluate, text_mean
from specbench.training.parts import RollOut, sample
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import Rollouts
from specbench.training.state import State, untrained_head

MAX_GRADIENT = 1.0
HELD_OUT_SEED = RESERVED_SEEDS  # of the draws of held-out scores


class Progress(NamedTuple):
    """One row of ``training.csv``: a step, by the head that made its roll-outs.

    Attributes:
        step: From 1.
        reward: Mean score of the texts.
        reward_spread: Standard deviation of the scores; 0 teaches nothing.
        acceptance: Mean over texts of 1 - w TV(p, q).
        weight: Mean w over tokens.
        disagreement: Mean over texts of TV(p, q): what strict verification would reject.
        loss: Minus the objective at the last epoch, in units of the spread of gains.
        acceptance_weight: lambda of the step.
        kl: Nats per text from the untrained head's v, at the last epoch.
        clipped: Share of tokens that the clipping held back, at the last epoch.
        gradient: Norm of the gradient at the last epoch, before it is cut to ``MAX_GRADIENT``.
        learning_rate: Adam's.
        tokens: Tokens in the roll-outs.
        rollout_seconds: Time to sample and score the texts.
        update_seconds: Time of all epochs.
    """

    step: int
    reward: float
    reward_spread: float
    acceptance: float
    weight: float
    disagreement: float
    loss: float
    acceptance_weight: float
    kl: float
    clipped: float
    gradient: float
    learning_rate: float
    tokens: int
    rollout_seconds: float
    update_seconds: float

    def __str__(self) -> str:
        return (
            f"step {self.step}, reward {self.reward:.3f}, acceptance {self.acceptance:.3f}, "
            f"weight {self.weight:.3f}, lambda {self.acceptance_weight:.2f}"
        )


def train_head(
    pair: LoadedPair,
    roll_out: RollOut,
    task: Task,
    recipe: HeadRecipe,
    material: Material,
    state: State,
    report: Callable[[Progress, State], None],
) -> Head:
    """Train a head for a pair and a task, from a state to the last step of the recipe.

    Args:
        pair: Loaded models, frozen; the head is updated on their device.
        roll_out: Decodes with them, here or elsewhere.
        task: Gives the metric that rewards a text, and what ends one.
        recipe: Sizes and rates.
        material: Training examples, taken in their order, again from the first where they end.
        state: A new one, or that of a training that was interrupted.
        report: Called after every step with the row of the log and the state to go on from.

    Raises:
        RunError: The loss is no longer a number, or the roll-outs cannot be had.
    """
    start = untrained_head(pair, recipe)
    while state.step < recipe.steps:
        chosen = material.taken(state.step * recipe.prompts_per_step, recipe.prompts_per_step)
        report(_train_step(roll_out, task, recipe, state, start, chosen), state)
    return state.head.eval().requires_grad_(False)


def _train_step(
    roll_out: RollOut,
    task: Task,
    recipe: HeadRecipe,
    state: State,
    start: Head,
    material: Material,
) -> Progress:
    """Roll out, score, and take the epochs of one step; moves the state on."""
    began = time.perf_counter()
    head = state.head
    rollouts, state.draws = sample(
        roll_out,
        head,
        material.prompts,
        task,
        state.draws,
        recipe.rollout_parts,
        recipe.rollouts,
    )
    each = [example for example in material.examples for _ in range(recipe.rollouts)]
    rewards = reward(rollouts, each, task).to(rollouts.tv.device)
    rolled_out = time.perf_counter()

    with torch.no_grad():
        old_weight, start_weight = head(rollouts.inputs), start(rollouts.inputs)
    accepted = text_mean(1 - old_weight * rollouts.tv, rollouts)
    price = state.multiplier
    if recipe.target_acceptance is not None:
        missing = recipe.target_acceptance - accepted.mean().item()
        state.multiplier, price = follow(state.multiplier, missing)
    gains = (rewards + price * accepted).view(-1, recipe.rollouts)
    advantage, state.baseline = state.baseline.advantages(gains), state.baseline.after(gains)
    step = Step(rollouts, old_weight, start_weight, advantage, price, recipe.kl_weight)
    rate = state.optimizer.param_groups[0]["lr"] = recipe.rate(state.step)
    for _ in range(recipe.epochs_per_rollout):
        value = evaluate(head, step)
        loss = -value.objective
        _require_finite(loss, state.step + 1)
        state.optimizer.zero_grad()
        loss.backward()
        gradient = torch.nn.utils.clip_grad_norm_(head.parameters(), MAX_GRADIENT)
        _require_finite(gradient, state.step + 1)
        state.optimizer.step()
    state.step += 1
    return Progress(
        step=state.step,
        reward=rewards.mean().item(),
        reward_spread=rewards.std(correction=0).item(),
        acceptance=accepted.mean().item(),
        weight=old_weight.mean().item(),
        disagreement=text_mean(rollouts.tv, rollouts).mean().item(),
        loss=loss.item(),
        acceptance_weight=price,
        kl=value.kl,
        clipped=value.clipped,
        gradient=gradient.item(),
        learning_rate=rate,
        tokens=len(rollouts.row),
        rollout_seconds=rolled_out - began,
        update_seconds=time.perf_counter() - rolled_out,
    )


def reward(rollouts: Rollouts, examples: list[Example], task: Task) -> Tensor:
    """Score every text by the task's metric: ``[B]`` in [0, 1]."""
    assert task.metric is not None
    # Programs run in processes of their own, so threads are enough to run several at a time.
    with ThreadPoolExecutor() as pool:
        return torch.tensor(list(pool.map(partial(score, task.metric), rollouts.texts, examples)))


def held_out_scores(
    roll_out: RollOut, task: Task, head: Head, material: Material, parts: int = 1
) -> dict[str, Any]:
    """Return quality, acceptance and weight of one roll-out per held-out example.

    Args:
        roll_out: Decodes.
        task: Gives the metric, and what ends a text.
        head: Head to score.
        material: Held-out examples.
        parts: How many they are decoded in.
    """
    rollouts, _ = sample(roll_out, head, material.prompts, task, HELD_OUT_SEED, parts)
    weight = head(rollouts.inputs)
    return {
        "n": len(material.examples),
        "quality": reward(rollouts, material.examples, task).mean().item(),
        "acceptance": text_mean(1 - weight * rollouts.tv, rollouts).mean().item(),
        "weight": weight.mean().item(),
    }


def _require_finite(value: Tensor, step: int) -> None:
    if not value.isfinite():
        raise RunError(
            f"the loss or its gradient is {value.item()} at step {step}: start again with a lower "
            "--learning-rate in another folder; the last checkpoint is untouched"
        )
