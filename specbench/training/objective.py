"""The objective of a DIVERSED head, computed from cached roll-outs.

As in the paper, it is the reward of the whole text plus lambda times the mean acceptance
``1 - w TV(p, q)``, and only the head is trained. Per token, the computation needs the head's input
and three scalars, so no tensor has the vocabulary's size. One set of roll-outs serves several
epochs with clipped ratios. What a step measures is a row of ``training.csv``.

Source: DIVERSED, arXiv:2604.07622. The clipped ratio is from PPO, arXiv:1707.06347. Normalisation
by the standard deviation of the whole step is from REINFORCE++, arXiv:2501.03262.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from specbench.decoding.heads.head import Head
from specbench.errors import RunError
from specbench.training.rollouts import Rollouts

CLIP = 0.2  # largest relative change of a token's probability under the head since the roll-out
MAX_GRADIENT = 1.0  # largest norm of the gradient
SMALLEST_LIKELIHOOD = 1e-30
SMALLEST_SPREAD = 1e-3  # of returns; texts with a smaller spread are equally good


def advantages(returns: Tensor) -> Tensor:
    """Return the returns ``[prompts, rollouts]`` minus the mean of their prompt, ``[B]``.

    A mean over n texts includes the text itself, which scales the reward's gradient by 1 - 1/n
    relative to an independent baseline. The values of lambda assume this scale.
    """
    return (returns - returns.mean(-1, keepdim=True)).flatten()


class Surrogate(NamedTuple):
    """Data shared by the epochs over one set of roll-outs."""

    rollouts: Rollouts  # B texts with M tokens, sampled with the head at the start of the step
    old_weight: Tensor  # `[M]` weights of that head
    start_weight: Tensor  # `[M]` weights of the untrained head
    advantage: Tensor  # `[B]` return of each text minus the mean of its prompt's texts
    acceptance_weight: float  # lambda


class Value(NamedTuple):
    """The objective, to be maximised, and two measures of how far the head has moved."""

    objective: Tensor
    clipped: float  # fraction of tokens with a ratio outside the permitted range
    kl: float  # mean over texts of KL(v, v of the untrained head), estimated


class TrainingStep(NamedTuple):
    """One row of ``training.csv``: a step, measured with the head before its update.

    The columns ``held_out_...`` are measured after the update, at some steps only.
    """

    step: int  # from 1
    reward: float  # mean score of the texts
    reward_spread: float  # standard deviation of the scores; 0 gives no gradient
    acceptance: float  # mean over texts of 1 - w TV(p, q)
    weight: float  # mean w over tokens
    disagreement: float  # mean over texts of TV(p, q), the rejection rate of strict verification
    loss: float  # minus the objective at the last epoch, in standard deviations of the advantage
    acceptance_weight: float  # lambda, in units of the static ensemble's slope
    kl: float  # nats per text from the untrained head's v, at the last epoch
    clipped: float  # fraction of tokens with a clipped ratio, at the last epoch
    gradient: float  # norm of the gradient at the last epoch, before clipping
    learning_rate: float  # Adam's
    tokens: int
    rollout_seconds: float  # time to sample and score the texts
    update_seconds: float  # time of all epochs
    held_out_quality: float | None = None  # mean score
    held_out_acceptance: float | None = None
    held_out_weight: float | None = None
    held_out_distance: float | None = None  # quality above the randomised static front

    def __str__(self) -> str:
        return (
            f"reward {self.reward:.3f}, acceptance {self.acceptance:.3f}, "
            f"weight {self.weight:.3f}, lambda {self.acceptance_weight:.2f}"
        )


def evaluate(head: Head, step: Surrogate) -> Value:
    """Return the clipped surrogate of reward plus lambda times acceptance.

    The objective is divided by the standard deviation of the step's advantages, so that a learning
    rate means the same for every metric.
    """
    rollouts, advantage = step.rollouts, step.advantage
    weight = head(rollouts.inputs)
    likelihood = torch.lerp(rollouts.q, rollouts.p, weight)
    ratio = likelihood / torch.lerp(rollouts.q, rollouts.p, step.old_weight)
    permitted = ratio.clamp(1 - CLIP, 1 + CLIP)
    texts, of_token = len(rollouts.texts), advantage[rollouts.row]
    # A text's log-probability is a sum over its tokens, so this is a mean over texts of sums.
    surrogate = torch.minimum(ratio * of_token, permitted * of_token).sum() / texts
    spread = advantage.std().clamp_min(SMALLEST_SPREAD)
    acceptance = text_mean(1 - weight * rollouts.tv, rollouts).mean()
    # With r = v_start / v, E_v[r - 1 - log r] is the KL, and no term of the estimate is negative.
    # The clamp keeps it finite for tokens that became impossible.
    started = torch.lerp(rollouts.q, rollouts.p, step.start_weight)
    log_r = (started / likelihood.clamp_min(SMALLEST_LIKELIHOOD)).log()
    kl = (log_r.exp() - 1 - log_r).sum() / texts
    total = surrogate + step.acceptance_weight * acceptance
    clipped = (ratio != permitted).float().mean()
    return Value(total / spread, clipped.item(), kl.item())


def descend(
    loss: Tensor, model: Module, optimizer: Optimizer, steps_done: int, advice: str
) -> float:
    """Take one optimizer step; return the norm of the gradient before clipping.

    Raises:
        RunError: The loss or gradient is not finite; the message ends with ``advice``, which
            follows "a lower --learning-rate".
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
