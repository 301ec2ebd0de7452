"""Training steps of a DIVERSED head: roll out, score, and update for a few epochs.

With a target acceptance, a multiplier replaces lambda and is adjusted to the missing acceptance
during training. Then the bias is calibrated: one number makes every weight stricter or looser and
preserves the ranking of positions. Controller gains large enough to make calibration unnecessary
were tried on mini-math. If the target acceptance costs reward, they overshoot to texts without any
reward, and training cannot recover from there.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.loading import LoadedPair
from specbench.example import Example
from specbench.heads.head import Head
from specbench.metrics import score
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training.material import Material, Materials
from specbench.training.objective import Baseline, Step, descend, evaluate, text_mean
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import Rollouts, roll_out

# Seeds for held-out scores and calibration; training cannot use them.
HELD_OUT_SEED, CALIBRATION_SEED = RESERVED_SEEDS, 2 * RESERVED_SEEDS

# Gains of the controller: missing acceptance -> log lambda.
PROPORTIONAL, INTEGRAL = 5.0, 0.5
CALIBRATION_ROUNDS = 3  # a shifted head generates other texts, so its acceptance is measured again
LARGEST_SHIFT = 16.0
HALVINGS = 40


class Progress(NamedTuple):
    """One row of ``training.csv``: a step, measured with the head before its update."""

    step: int  # from 1
    reward: float  # mean score of the texts
    reward_spread: float  # standard deviation of the scores; 0 gives no gradient
    acceptance: float  # mean over texts of 1 - w TV(p, q)
    weight: float  # mean w over tokens
    disagreement: float  # mean over texts of TV(p, q), the rejection rate of strict verification
    loss: float  # minus the objective at the last epoch, in standard deviations of the advantage
    acceptance_weight: float  # lambda
    kl: float  # nats per text from the untrained head's v, at the last epoch
    clipped: float  # fraction of tokens with a clipped ratio, at the last epoch
    gradient: float  # norm of the gradient at the last epoch, before clipping
    learning_rate: float  # Adam's
    tokens: int
    rollout_seconds: float  # time to sample and score the texts
    update_seconds: float  # time of all epochs

    def __str__(self) -> str:
        return (
            f"reward {self.reward:.3f}, acceptance {self.acceptance:.3f}, "
            f"weight {self.weight:.3f}, lambda {self.acceptance_weight:.2f}"
        )


class Training:
    """A head in training: its data, optimizer and progress.

    Attributes:
        start: The untrained head, which never changes.
        head: The head in training.
        multiplier: Lambda without its proportional part; changes only with a target acceptance.
        history: The progress of every step so far.
    """

    def __init__(
        self, pair: LoadedPair, task: Task, recipe: HeadRecipe, materials: Materials
    ) -> None:
        self.pair, self.task, self.recipe, self.materials = pair, task, recipe, materials
        sizes = (pair.target.hidden_size, pair.draft.hidden_size)
        self.start = Head(recipe.head_kind, sizes, recipe.initial_weight, recipe.seed)
        self.start = self.start.to(pair.target.device)
        self.head = deepcopy(self.start)
        self.optimizer = torch.optim.Adam(self.head.parameters())
        self.generator = self._new_generator(recipe.seed)
        self.baseline = Baseline(recipe.baseline)
        self.multiplier = recipe.acceptance_weight
        self.history: list[Progress] = []

    def take_step(self) -> Progress:
        """Roll out, score, and run the epochs of one step.

        The steps use the examples in order, cycling after the last.

        Raises:
            RunError: The loss is not finite.
        """
        began, recipe, done = time.perf_counter(), self.recipe, len(self.history)
        head, texts = self.head, recipe.rollouts
        chosen = self.materials.train.taken(done * recipe.prompts_per_step, recipe.prompts_per_step)
        rollouts = self._roll_out(chosen, self.generator, texts)
        each = [example for example in chosen.examples for _ in range(texts)]
        rewards = reward(rollouts, each, self.task).to(rollouts.tv.device)
        rolled_out = time.perf_counter()

        with torch.no_grad():
            old_weight, start_weight = head(rollouts.inputs), self.start(rollouts.inputs)
        accepted = text_mean(1 - old_weight * rollouts.tv, rollouts)
        price = self.multiplier
        if recipe.target_acceptance is not None:
            missing = recipe.target_acceptance - accepted.mean().item()
            self.multiplier, price = update_multiplier(self.multiplier, missing)
        returns = (rewards + price * accepted).view(-1, texts)
        advantage, self.baseline = self.baseline.advantages(returns), self.baseline.after(returns)
        step = Step(rollouts, old_weight, start_weight, advantage, price, recipe.kl_weight)
        rate = self.optimizer.param_groups[0]["lr"] = recipe.rate(done)
        for _ in range(recipe.epochs_per_rollout):
            value = evaluate(head, step)
            loss = -value.objective
            kept = " in another folder; the last checkpoint is untouched"
            gradient = descend(loss, head, self.optimizer, done, kept)
        progress = Progress(
            step=done + 1,
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
        self.history.append(progress)
        return progress

    @torch.no_grad()
    def calibrate_bias(self) -> None:
        """Shift the head's bias until mean acceptance over new roll-outs reaches the target.

        If no bias reaches it, the nearest acceptance is taken.
        """
        material, target = self.materials.calibration, self.recipe.target_acceptance
        if material is None or target is None:
            return
        for _ in range(CALIBRATION_ROUNDS):
            rollouts = self._roll_out(material, self._new_generator(CALIBRATION_SEED))
            weight = self.head(rollouts.inputs).double()
            self.head.summary.bias[1] += _shift(weight, rollouts, target)

    def held_out_scores(self) -> dict[str, Any]:
        """Return quality, acceptance and weight over one roll-out per held-out example."""
        material = self.materials.held_out
        rollouts = self._roll_out(material, self._new_generator(HELD_OUT_SEED))
        weight = self.head(rollouts.inputs)
        return {
            "n": len(material.examples),
            "quality": reward(rollouts, material.examples, self.task).mean().item(),
            "acceptance": text_mean(1 - weight * rollouts.tv, rollouts).mean().item(),
            "weight": weight.mean().item(),
        }

    def _roll_out(
        self, material: Material, generator: torch.Generator, copies: int = 1
    ) -> Rollouts:
        limit, stop = self.task.max_new_tokens, self.task.stop
        return roll_out(self.pair, self.head, material.prompts, limit, generator, copies, stop)

    def _new_generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.pair.target.device).manual_seed(seed)


def reward(rollouts: Rollouts, examples: list[Example], task: Task) -> Tensor:
    """Score every text by the task's metric: ``[B]`` in [0, 1]."""
    assert task.metric is not None
    # Each program runs in its own process, so threads suffice for running several at once.
    with ThreadPoolExecutor() as pool:
        return torch.tensor(list(pool.map(partial(score, task.metric), rollouts.texts, examples)))


def update_multiplier(multiplier: float, missing: float) -> tuple[float, float]:
    """Return the next multiplier, and the lambda of this step.

    This is proportional-integral control of log lambda: the right lambda may be 0.1 or 10, and the
    integral part alone would oscillate. ``missing`` is target minus measured acceptance.

    Source: after Stooke et al., PID Lagrangian methods, arXiv:2007.03964.
    """
    multiplier *= math.exp(INTEGRAL * missing)
    return multiplier, multiplier * math.exp(PROPORTIONAL * missing)


def _shift(weight: Tensor, rollouts: Rollouts, target: float) -> float:
    """Find by bisection the shift of the target's score that gives the target acceptance."""
    logit = weight.logit(eps=1e-12)
    low, high = -LARGEST_SHIFT, LARGEST_SHIFT
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        accepted = text_mean(1 - (logit + middle).sigmoid() * rollouts.tv, rollouts).mean()
        low, high = (middle, high) if accepted > target else (low, middle)
    return (low + high) / 2
