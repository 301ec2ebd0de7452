"""The objective of a DIVERSED head, from cached roll-outs.

It is the paper's: reward of the whole text plus lambda times mean acceptance ``1 - w TV(p, q)``,
over the head alone. Autograd sees, per token, what the head reads and three scalars; no tensor has
the vocabulary's size, and one set of roll-outs serves several clipped-ratio epochs.

Source: DIVERSED, arXiv:2604.07622; the clipped ratio is PPO's, arXiv:1707.06347; normalising by the
spread of the whole step is REINFORCE++'s, arXiv:2501.03262.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from specbench.errors import RunError
from specbench.heads.head import Head
from specbench.training.rollouts import Rollouts

CLIP = 0.2  # a token's probability under the head may move this far from the roll-out's
MAX_GRADIENT = 1.0  # its norm
DECAY = 0.9  # of the running mean
SMALLEST_LIKELIHOOD = 1e-30
SMALLEST_SPREAD = 1e-3  # of gains; below it there is nothing to tell texts apart by


class Baseline(NamedTuple):
    """The baseline of gains: a key of ``recipe.BASELINES``, and the running mean so far."""

    kind: str
    mean: float | None = None

    def advantages(self, gains: Tensor) -> Tensor:
        """Return how far gains ``[prompts, rollouts]`` lie above the baseline, ``[B]``.

        A mean over n texts contains each of them, so that the reward's gradient is 1 - 1/n of what
        it would be beside an independent baseline; lambda is meant with that.
        """
        if self.kind == "group":
            return (gains - gains.mean(-1, keepdim=True)).flatten()
        if self.kind == "ema" and self.mean is not None:
            return (gains - self.mean).flatten()
        return (gains - gains.mean()).flatten()

    def after(self, gains: Tensor) -> Baseline:
        """Return the baseline once a step's gains are known."""
        mean = gains.mean().item()
        previous = mean if self.mean is None else self.mean
        return self._replace(mean=DECAY * previous + (1 - DECAY) * mean)


class Step(NamedTuple):
    """What the epochs over one set of roll-outs share."""

    rollouts: Rollouts  # B texts with M tokens, sampled with the head's state at the time
    old_weight: Tensor  # `[M]` weights of that state
    start_weight: Tensor  # `[M]` weights of the untrained head
    advantage: Tensor  # `[B]` gain of each text over its baseline
    acceptance_weight: float  # lambda
    kl_weight: float = 0.0  # price of a nat of divergence from the untrained head's v


class Value(NamedTuple):
    """The objective, to be maximised, and two figures of how far the head has moved."""

    objective: Tensor
    clipped: float  # share of tokens whose ratio has left the permitted range
    kl: float  # mean over texts of KL(v, v of the untrained head), estimated


def evaluate(head: Head, step: Step) -> Value:
    """Return the clipped surrogate of reward plus lambda times acceptance, minus the KL's price.

    Both terms are in units of the step's spread of gains, so that a learning rate means the same
    for every metric.
    """
    rollouts, advantage = step.rollouts, step.advantage
    weight = head(rollouts.inputs)
    likelihood = torch.lerp(rollouts.q, rollouts.p, weight)
    ratio = likelihood / torch.lerp(rollouts.q, rollouts.p, step.old_weight)
    gain = advantage[rollouts.row]
    permitted = ratio.clamp(1 - CLIP, 1 + CLIP)
    # A text's log-probability is a sum over its tokens, so this is a mean over texts of sums.
    surrogate = torch.minimum(ratio * gain, permitted * gain).sum() / len(advantage)
    acceptance = text_mean(1 - weight * rollouts.tv, rollouts).mean()
    # With r = v_start / v, E_v[r - 1 - log r] is the KL, and no term of the estimate is negative.
    # As a loss it is GRPO's penalty. A token that has become impossible must not make it infinite.
    started = torch.lerp(rollouts.q, rollouts.p, step.start_weight)
    log_r = (started / likelihood.clamp_min(SMALLEST_LIKELIHOOD)).log()
    kl = (log_r.exp() - 1 - log_r).sum() / len(advantage)
    total = surrogate + step.acceptance_weight * acceptance - step.kl_weight * kl
    spread = advantage.std().clamp_min(SMALLEST_SPREAD)
    clipped = (ratio != permitted).float().mean()
    return Value(total / spread, clipped.item(), kl.item())


def descend(
    loss: Tensor, model: Module, optimizer: Optimizer, steps_done: int, advice: str
) -> float:
    """Take one optimizer step; return the norm of the gradient before clipping.

    Raises:
        RunError: Loss or gradient is no number; ``advice`` goes on from "a lower --learning-rate".
    """
    optimizer.zero_grad()
    loss.backward()
    gradient = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
    for value in (loss, gradient):
        if not value.isfinite():
            raise RunError(
                f"the loss or its gradient is {value.item()} at step {steps_done + 1}: start again "
                f"with a lower --learning-rate{advice}"
            )
    optimizer.step()
    return gradient.item()


def text_mean(values: Tensor, rollouts: Rollouts) -> Tensor:
    """Average a value per token ``[M]`` over each text: ``[B]``."""
    texts = len(rollouts.texts)
    total = values.new_zeros(texts).index_add(0, rollouts.row, values)
    return total / rollouts.row.bincount(minlength=texts)
