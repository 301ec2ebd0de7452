"""The objective of a DIVERSED head, computed from cached roll-outs.

As in the paper, it is the reward of the whole text plus lambda times the mean acceptance
``1 - w TV(p, q)``, and only the head is trained. Per token, the computation needs the head's input
and three scalars, so no tensor has the vocabulary's size. One set of roll-outs serves several
epochs with clipped ratios.

With a goal, lambda is the multiplier of a constraint, set by a PI controller on the shortfall.
Acceptance is in units of the static ensemble's range between target (0) and draft (1), a loss of
quality in units of the permitted one, and lambda in units of the static ensemble's slope, so the
same gains suit every metric. Source: after Stooke et al., PID Lagrangian methods, arXiv:2007.03964.

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


FIRST = 0.4
# The quality of a step is noisier.
INTEGRAL = {"acceptance": 0.5, "quality": 0.04}
PROPORTIONAL = {"acceptance": 5.0, "quality": 0.16}
LEAST, MOST = 0.1, 5.0  # integral part; at 0 a head stays at the target
STRICTEST = -0.3  # lowest multiplier; lower ones drive w to 1, where training is slow
RAMP = 0.6  # fraction of the steps in which the acceptance to reach rises to the goal
PAST = 0.8  # weight of the past in the running mean of the quality lost


class Multiplier(NamedTuple):
    """Lambda in units of the static ensemble's slope, and the state of its control."""

    value: float
    integral: float = FIRST
    start: float | None = None  # acceptance of the first step
    lost: float | None = None  # running mean

    def for_acceptance(self, gained: float, goal: float, done: float) -> Multiplier:
        """Return the next multiplier for a target acceptance.

        It may become negative, which makes a head that accepts too much stricter.

        Args:
            gained: Acceptance of this step; 0 is the target's own, 1 the draft's.
            goal: The acceptance to reach, in the same unit.
            done: Fraction of the steps that is done, with this one.
        """
        start = gained if self.start is None else self.start
        now = start + (goal - start) * min(1.0, done / RAMP)
        return self._adjusted("acceptance", now - gained, STRICTEST)._replace(start=start)

    def for_quality(self, lost: float) -> Multiplier:
        """Return the next multiplier for a quality loss; 0 is the target's quality, 1 the goal.

        A step has few texts, so their running mean is compared with the goal. A loss far beyond it,
        as at the start, counts as one of twice the goal, so that lambda recovers from it.
        """
        mean = lost if self.lost is None else PAST * self.lost + (1 - PAST) * lost
        mean = min(mean, 2.0)
        return self._adjusted("quality", 1 - mean, 0.0)._replace(lost=mean)

    def _adjusted(self, goal: str, missing: float, lowest: float) -> Multiplier:
        integral = min(max(self.integral + INTEGRAL[goal] * missing, LEAST), MOST)
        value = max(integral + PROPORTIONAL[goal] * missing, lowest)
        return self._replace(value=value, integral=integral)
