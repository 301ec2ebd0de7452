"""Training of a DIVERSED head by policy gradient.

The objective is the paper's: reward of the whole text plus lambda times mean acceptance
``1 - w TV(p, q)``, over the head alone. Roll-outs are cached, so the loss sees per token only two
hidden vectors and three scalars, and one set serves several clipped-ratio epochs.

Source: DIVERSED, arXiv:2604.07622; the clipped ratio is PPO's, arXiv:1707.06347.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.heads import LinearHead
from specbench.engine.loading import LoadedPair
from specbench.metrics import score
from specbench.tasks.example import Example
from specbench.tasks.task import Task
from specbench.training.rollouts import Rollouts, roll_out

CLIP = 0.2  # a token's probability under the head may move this far from the roll-out's
MAX_GRADIENT = 1.0


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained.

    Attributes:
        updates: Sets of roll-outs.
        prompts: Prompts in a set.
        rollouts: Texts per prompt; their mean reward is the baseline.
        epochs: Passes over a set.
        learning_rate: Adam's, falling linearly to zero.
        acceptance_weight: lambda, what acceptance is worth in reward.
        initial_weight: w of the untrained head, above 0 and below 1. The release starts at 0.5;
            where half-way texts earn next to nothing, a strict start lets rewards be seen.
        seed: Seed of all draws.
    """

    updates: int
    prompts: int
    rollouts: int
    epochs: int
    learning_rate: float
    acceptance_weight: float
    initial_weight: float
    seed: int


class Progress(NamedTuple):
    """State of the training after an update: means over its roll-outs."""

    update: int
    reward: float
    acceptance: float
    weight: float


def train_head(
    pair: LoadedPair,
    task: Task,
    examples: list[Example],
    recipe: HeadRecipe,
    report: Callable[[Progress], None],
) -> LinearHead:
    """Train a head for a pair and a task.

    Args:
        pair: Loaded models, frozen.
        task: Gives the metric that rewards a text, and the token limit.
        examples: Training examples, taken in order and again from the start.
        recipe: Sizes and rates.
        report: Called after every update.
    """
    generator = torch.Generator(pair.target.device).manual_seed(recipe.seed)
    head = LinearHead(pair.target.hidden_size, pair.draft.hidden_size, recipe.initial_weight)
    head = head.to(pair.target.device)
    optimizer = torch.optim.Adam(head.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda u: 1 - u / recipe.updates)
    for update in range(recipe.updates):
        first = update * recipe.prompts
        batch = [
            examples[(first + i) % len(examples)]
            for i in range(recipe.prompts)
            for _ in range(recipe.rollouts)
        ]
        prompts = [example.prompt for example in batch]
        rollouts = roll_out(pair, head, prompts, task.max_new_tokens, generator)
        rewards = reward(rollouts, batch, task).to(pair.target.device)
        with torch.no_grad():
            old_weight = head(rollouts.h_p, rollouts.h_q)
        accepted = text_mean(1 - old_weight * rollouts.tv, rollouts)
        gains = rewards + recipe.acceptance_weight * accepted
        groups = gains.view(recipe.prompts, recipe.rollouts)
        advantage = (groups - groups.mean(-1, keepdim=True)).flatten()
        for _ in range(recipe.epochs):
            loss = objective(head, rollouts, old_weight, advantage, recipe.acceptance_weight).neg()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), MAX_GRADIENT)
            optimizer.step()
        schedule.step()
        report(
            Progress(
                update + 1, rewards.mean().item(), accepted.mean().item(), old_weight.mean().item()
            )
        )
    return head.eval().requires_grad_(False)


def objective(
    head: LinearHead,
    rollouts: Rollouts,
    old_weight: Tensor,
    advantage: Tensor,
    acceptance_weight: float,
) -> Tensor:
    """Return the clipped surrogate of reward plus lambda times acceptance, to be maximised.

    Args:
        head: Head being trained.
        rollouts: Texts sampled with an earlier state of it.
        old_weight: ``[M]`` weights of that state.
        advantage: ``[B]`` gain of each text over its baseline.
        acceptance_weight: lambda.
    """
    weight = head(rollouts.h_p, rollouts.h_q)
    likelihood = torch.lerp(rollouts.q, rollouts.p, weight)
    ratio = likelihood / torch.lerp(rollouts.q, rollouts.p, old_weight)
    gain = advantage[rollouts.row]
    clipped = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    # A text's log-probability is a sum over its tokens, so this is a mean over texts of sums.
    surrogate = clipped.sum() / len(advantage)
    acceptance = text_mean(1 - weight * rollouts.tv, rollouts).mean()
    return surrogate + acceptance_weight * acceptance


def text_mean(values: Tensor, rollouts: Rollouts) -> Tensor:
    """Average a value per token ``[M]`` over each text: ``[B]``."""
    texts = len(rollouts.texts)
    total = values.new_zeros(texts).index_add(0, rollouts.row, values)
    return total / rollouts.row.bincount(minlength=texts)


def reward(rollouts: Rollouts, examples: list[Example], task: Task) -> Tensor:
    """Score every text by the task's metric: ``[B]`` in [0, 1]."""
    assert task.metric is not None
    scores = [
        score(task.metric, text, example)
        for text, example in zip(rollouts.texts, examples, strict=True)
    ]
    return torch.tensor(scores)


def evaluate_head(
    pair: LoadedPair, task: Task, head: LinearHead, examples: list[Example], seed: int
) -> dict[str, float]:
    """Return mean quality, acceptance and weight of one roll-out per example."""
    generator = torch.Generator(pair.target.device).manual_seed(seed)
    prompts = [example.prompt for example in examples]
    rollouts = roll_out(pair, head, prompts, task.max_new_tokens, generator)
    weight = head(rollouts.h_p, rollouts.h_q)
    return {
        "n": len(examples),
        "quality": reward(rollouts, examples, task).mean().item(),
        "acceptance": text_mean(1 - weight * rollouts.tv, rollouts).mean().item(),
        "weight": weight.mean().item(),
    }
