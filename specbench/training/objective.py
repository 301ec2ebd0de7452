"""The objective of a DIVERSED head, computed from cached roll-outs.

As in the paper, it is the reward of the whole text plus lambda times the mean acceptance
``1 - w TV(p, q)``, and only the head is trained. Per token, the computation needs the head's input
and three scalars, so no tensor has the vocabulary's size. One set of roll-outs serves several
epochs with clipped ratios, and later steps as well: the probability of a text under any head is the
product of ``w p + (1 - w) q`` over its tokens, so a text of an earlier head counts as many times as
it is likelier under the current one. What a step measures is a row of ``training.csv``.

Source: DIVERSED, arXiv:2604.07622. The clipped ratio is from PPO, arXiv:1707.06347. Normalisation
by the standard deviation of the whole step is from REINFORCE++, arXiv:2501.03262. Truncated weights
of earlier texts are from Ionides 2008 (doi:10.1198/106186008X320456).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from specbench.decoding.heads.head import Head
from specbench.errors import RunError
from specbench.training.rollouts import Rollouts, joined

CLIP = 0.2  # largest relative change of a token's probability under the head since the roll-out
LARGEST_WEIGHT = 4.0  # of a text of an earlier head, which bounds the variance of the gradient
MAX_GRADIENT = 1.0  # largest norm of the gradient
SMALLEST_LIKELIHOOD = 1e-30
SMALLEST_SHARE = 1e-6  # of a prompt's other texts together, to form their mean
SMALLEST_SPREAD = 1e-3  # of returns; texts with a smaller spread are equally good


def advantages(returns: Tensor, shares: Tensor) -> Tensor:
    """Return the returns ``[prompts, rollouts]`` minus the mean of their prompt, ``[B]``.

    ``shares`` are the weights of the texts in that mean, likewise. With equal weights, a mean over
    n texts includes the text itself, which scales the reward's gradient by 1 - 1/n relative to an
    independent baseline. The values of lambda assume this scale. With other weights, the text must
    be left out of the mean, and the scale is kept.
    """
    weighted = shares * returns
    others = (shares.sum(-1, keepdim=True) - shares).clamp_min(SMALLEST_SHARE)
    mean = (weighted.sum(-1, keepdim=True) - weighted) / others
    return ((1 - 1 / returns.shape[-1]) * (returns - mean)).flatten()


class Scored(NamedTuple):
    """The texts of a step, B of them with M tokens, and their scores."""

    rollouts: Rollouts
    likelihood: Tensor  # `[M]` of each token under the head that wrote the text
    reward: Tensor  # `[B]` scores, 0 to 1


class Surrogate(NamedTuple):
    """Data shared by the epochs of one update."""

    rollouts: Rollouts  # B texts with M tokens, of this step and of those before it
    old_weight: Tensor  # `[M]` weights of the head before the update
    start_weight: Tensor  # `[M]` weights of the untrained head
    share: Tensor  # `[B]` how often each text counts, 1 on average; see ``shares_of``
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


@torch.no_grad()
def surrogate(
    head: Head, start: Head, steps: Sequence[Scored], texts: int, acceptance_weight: float
) -> Surrogate:
    """Return what the epochs of an update share, from the texts of some steps.

    ``start`` is the untrained head, and each prompt has ``texts`` adjacent texts. With one text a
    prompt, all texts are compared with each other.
    """
    rollouts = joined([step.rollouts for step in steps])
    weight = head(rollouts.inputs)
    share = shares_of(rollouts, weight, torch.cat([step.likelihood for step in steps]))
    accepted = text_mean(1 - weight * rollouts.tv, rollouts)
    returns = torch.cat([step.reward for step in steps]) + acceptance_weight * accepted
    group = texts if texts > 1 else len(returns)
    advantage = advantages(returns.view(-1, group), share.view(-1, group))
    return Surrogate(rollouts, weight, start(rollouts.inputs), share, advantage, acceptance_weight)


def shares_of(rollouts: Rollouts, weight: Tensor, likelihood: Tensor) -> Tensor:
    """Return how often texts count for a head that did not write them, ``[B]``, 1 on average.

    That is their probability under its weights ``[M]`` over that under the head that wrote them,
    which gave their tokens ``likelihood`` ``[M]``, but at most ``LARGEST_WEIGHT``.
    """
    now = rollouts.likelihood(weight).clamp_min(SMALLEST_LIKELIHOOD)
    ratio = (now / likelihood.clamp_min(SMALLEST_LIKELIHOOD)).log()
    total = ratio.new_zeros(len(rollouts.texts)).index_add(0, rollouts.row, ratio)
    share = total.exp().clamp_max(LARGEST_WEIGHT)
    return share / share.mean()


def evaluate(head: Head, step: Surrogate) -> Value:
    """Return the clipped surrogate of reward plus lambda times acceptance.

    The objective is divided by the standard deviation of the step's advantages, so that a learning
    rate means the same for every metric.
    """
    rollouts, share = step.rollouts, step.share
    weight = head(rollouts.inputs)
    likelihood = rollouts.likelihood(weight)
    # A token of an earlier text may be impossible under the current head, whose w can be 1.
    before = rollouts.likelihood(step.old_weight).clamp_min(SMALLEST_LIKELIHOOD)
    ratio = likelihood / before
    permitted = ratio.clamp(1 - CLIP, 1 + CLIP)
    texts, of_token = len(rollouts.texts), (share * step.advantage)[rollouts.row]
    # A text's log-probability is a sum over its tokens, so this is a mean over texts of sums.
    gained = torch.minimum(ratio * of_token, permitted * of_token).sum() / texts
    deviation = step.advantage - (share * step.advantage).mean()
    spread = (share * deviation.square()).sum().div(texts - 1).sqrt().clamp_min(SMALLEST_SPREAD)
    acceptance = (share * text_mean(1 - weight * rollouts.tv, rollouts)).mean()
    # With r = v_start / v, E_v[r - 1 - log r] is the KL, and no term of the estimate is negative.
    # The clamp keeps it finite for tokens that became impossible.
    started = rollouts.likelihood(step.start_weight)
    log_r = (started / likelihood.clamp_min(SMALLEST_LIKELIHOOD)).log()
    kl = (share[rollouts.row] * (log_r.exp() - 1 - log_r)).sum() / texts
    total = gained + step.acceptance_weight * acceptance
    clipped = (ratio != permitted).float().mean()
    return Value(total / spread, clipped.item(), kl.item())


def descend(
    loss: Tensor, model: Module, optimizer: Optimizer, steps_done: int, advice: str
) -> float:
    """Take one optimizer step; return the norm of the gradient before clipping.

    ``advice`` ends the message on a loss or gradient that is not finite.
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
