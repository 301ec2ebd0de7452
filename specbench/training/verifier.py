"""Training steps of a DIVERSED head: roll out, score, and update for a few epochs.

With a target acceptance, a multiplier replaces lambda and follows what is missing during training.
Then the bias is calibrated: one number, which makes every weight a little stricter or looser and
keeps the order in which the head trusts positions. Gains that would do without it were tried on
mini-math: where a target takes away what rewards need, they overshoot to texts that earn nothing,
from where no reward leads back.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.loading import LoadedPair
from specbench.example import Example
from specbench.heads.head import Head
from specbench.metrics import score
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training.material import Material
from specbench.training.objective import Baseline, Step, descend, evaluate, text_mean
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import Rollouts, roll_out

# Seeds of the draws of held-out scores and of calibration; neither is a training's.
HELD_OUT_SEED, CALIBRATION_SEED = RESERVED_SEEDS, 2 * RESERVED_SEEDS

# What missing acceptance adds to log lambda at once, and what it adds at every step.
PROPORTIONAL, INTEGRAL = 5.0, 0.5
CALIBRATION_ROUNDS = 3  # a shifted head writes other texts, so its acceptance is measured again
LARGEST_SHIFT = 16.0
HALVINGS = 40


class Progress(NamedTuple):
    """One row of ``training.csv``: a step, by the head that made its roll-outs."""

    step: int  # from 1
    reward: float  # mean score of the texts
    reward_spread: float  # standard deviation of the scores; 0 teaches nothing
    acceptance: float  # mean over texts of 1 - w TV(p, q)
    weight: float  # mean w over tokens
    disagreement: float  # mean over texts of TV(p, q): what strict verification would reject
    loss: float  # minus the objective at the last epoch, in units of the spread of gains
    acceptance_weight: float  # lambda
    kl: float  # nats per text from the untrained head's v, at the last epoch
    clipped: float  # share of tokens whose ratio was clipped, at the last epoch
    gradient: float  # norm of the gradient at the last epoch, before it is cut
    learning_rate: float  # Adam's
    tokens: int
    rollout_seconds: float  # time to sample and score the texts
    update_seconds: float  # time of all epochs

    def __str__(self) -> str:
        return (
            f"reward {self.reward:.3f}, acceptance {self.acceptance:.3f}, "
            f"weight {self.weight:.3f}, lambda {self.acceptance_weight:.2f}"
        )


@dataclass
class State:
    """State of a training between two steps; ``start`` is the untrained head, which stays as it is.

    With a target acceptance, ``multiplier`` is the part of lambda that persists.
    """

    start: Head
    head: Head
    optimizer: torch.optim.Adam
    generator: torch.Generator
    baseline: Baseline
    multiplier: float
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def new_state(pair: LoadedPair, recipe: HeadRecipe) -> State:
    """Return the state before the first step."""
    sizes = (pair.target.hidden_size, pair.draft.hidden_size)
    head = Head(recipe.head_kind, sizes, recipe.initial_weight, recipe.seed)
    head = head.to(pair.target.device)
    return State(
        start=deepcopy(head),
        head=head,
        optimizer=torch.optim.Adam(head.parameters()),
        generator=_generator(pair, recipe.seed),
        baseline=Baseline(recipe.baseline),
        multiplier=recipe.acceptance_weight,
    )


def train_step(
    pair: LoadedPair, task: Task, recipe: HeadRecipe, state: State, material: Material
) -> Progress:
    """Roll out, score, and take the epochs of one step; moves the state on.

    ``material`` holds the examples of all steps, taken in order, starting over after the last.

    Raises:
        RunError: The loss is no longer a number.
    """
    began = time.perf_counter()
    head, texts = state.head, recipe.rollouts
    chosen = material.taken(state.step * recipe.prompts_per_step, recipe.prompts_per_step)
    rollouts = _sample(pair, head, chosen, task, state.generator, texts)
    each = [example for example in chosen.examples for _ in range(texts)]
    rewards = reward(rollouts, each, task).to(rollouts.tv.device)
    rolled_out = time.perf_counter()

    with torch.no_grad():
        old_weight, start_weight = head(rollouts.inputs), state.start(rollouts.inputs)
    accepted = text_mean(1 - old_weight * rollouts.tv, rollouts)
    price = state.multiplier
    if recipe.target_acceptance is not None:
        missing = recipe.target_acceptance - accepted.mean().item()
        state.multiplier, price = update_multiplier(state.multiplier, missing)
    gains = (rewards + price * accepted).view(-1, texts)
    advantage, state.baseline = state.baseline.advantages(gains), state.baseline.after(gains)
    step = Step(rollouts, old_weight, start_weight, advantage, price, recipe.kl_weight)
    rate = state.optimizer.param_groups[0]["lr"] = recipe.rate(state.step)
    for _ in range(recipe.epochs_per_rollout):
        value = evaluate(head, step)
        loss = -value.objective
        kept = " in another folder; the last checkpoint is untouched"
        gradient = descend(loss, head, state.optimizer, state.step, kept)
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
        gradient=gradient,
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


def update_multiplier(multiplier: float, missing: float) -> tuple[float, float]:
    """Return the next multiplier, and the lambda of this step.

    Proportional and integral control, of the logarithm: the right lambda may be 0.1 or 10, and the
    integral part alone would swing. ``missing`` is target minus measured acceptance.

    Source: after Stooke et al., PID Lagrangian methods, arXiv:2007.03964.
    """
    multiplier *= math.exp(INTEGRAL * missing)
    return multiplier, multiplier * math.exp(PROPORTIONAL * missing)


@torch.no_grad()
def calibrate_bias(
    pair: LoadedPair, task: Task, head: Head, target: float, material: Material
) -> None:
    """Shift a head's bias in place until mean acceptance over fresh roll-outs is the target.

    Where no bias reaches it, the nearest that one does.
    """
    for _ in range(CALIBRATION_ROUNDS):
        rollouts = _sample(pair, head, material, task, _generator(pair, CALIBRATION_SEED))
        head.summary.bias[1] += _shift(head(rollouts.inputs).double(), rollouts, target)


def _shift(weight: Tensor, rollouts: Rollouts, target: float) -> float:
    """Bisect for the addition to the target's score that gives the wanted acceptance."""
    logit = weight.logit(eps=1e-12)
    low, high = -LARGEST_SHIFT, LARGEST_SHIFT
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        accepted = text_mean(1 - (logit + middle).sigmoid() * rollouts.tv, rollouts).mean()
        low, high = (middle, high) if accepted > target else (low, middle)
    return (low + high) / 2


def held_out_scores(pair: LoadedPair, task: Task, head: Head, material: Material) -> dict[str, Any]:
    """Return quality, acceptance and weight of one roll-out per held-out example."""
    rollouts = _sample(pair, head, material, task, _generator(pair, HELD_OUT_SEED))
    weight = head(rollouts.inputs)
    return {
        "n": len(material.examples),
        "quality": reward(rollouts, material.examples, task).mean().item(),
        "acceptance": text_mean(1 - weight * rollouts.tv, rollouts).mean().item(),
        "weight": weight.mean().item(),
    }


def _sample(
    pair: LoadedPair,
    head: Head,
    material: Material,
    task: Task,
    generator: torch.Generator,
    copies: int = 1,
) -> Rollouts:
    return roll_out(pair, head, material.prompts, task.max_new_tokens, generator, copies, task.stop)


def _generator(pair: LoadedPair, seed: int) -> torch.Generator:
    return torch.Generator(pair.target.device).manual_seed(seed)
