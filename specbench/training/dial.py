"""The quality-speed dial: a head with a wished acceptance instead of a fixed lambda.

During training a multiplier in lambda's place follows what is missing. What is then left is closed
by shifting the bias: one number, which makes every weight a little stricter or looser and keeps the
order in which the head trusts positions. Gains that would do without it were tried on mini-math:
where a wish takes away what rewards need, they overshoot to texts that earn nothing, from where no
reward leads back.
"""

from __future__ import annotations

import math

import torch

from specbench.heads.head import Head
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training.material import Material
from specbench.training.objective import text_mean
from specbench.training.parts import RollOut, sample
from specbench.training.rollouts import Rollouts

# What missing acceptance adds to log lambda at once, and what it adds at every step.
PROPORTIONAL, INTEGRAL = 5.0, 0.5

SEED = 2 * RESERVED_SEEDS  # of the draws; neither a training's nor those of the scores
ROUNDS = 3  # a shifted head writes other texts, so its acceptance is looked at again
LARGEST_SHIFT = 16.0
HALVINGS = 40


def follow(multiplier: float, missing: float) -> tuple[float, float]:
    """Return the next multiplier, and the lambda of this step.

    Proportional and integral control, of the logarithm: the right lambda may be 0.1 or 10, and the
    integral part alone would swing.

    Args:
        multiplier: lambda without its proportional part.
        missing: Wished minus measured acceptance; the prompts of a step are new to the head, so
            this is a held-out figure.

    Source: after Stooke et al., PID Lagrangian methods, arXiv:2007.03964.
    """
    multiplier *= math.exp(INTEGRAL * missing)
    return multiplier, multiplier * math.exp(PROPORTIONAL * missing)


@torch.no_grad()
def settle(
    roll_out: RollOut, task: Task, head: Head, wish: float, material: Material, parts: int = 1
) -> None:
    """Shift a head's bias until mean acceptance over fresh roll-outs is the wished one.

    Args:
        roll_out: Decodes.
        task: Says what ends a text.
        head: Changed in place.
        wish: Mean acceptance per position; where no bias reaches it, the nearest that one does.
        material: Held-out examples, others than those of the scores.
        parts: How many they are decoded in.
    """
    for _ in range(ROUNDS):
        rollouts, _ = sample(roll_out, head, material.prompts, task, SEED, parts)
        head.summary.bias[1] += _shift(head(rollouts.inputs).double(), rollouts, wish)


def _shift(weight: torch.Tensor, rollouts: Rollouts, wish: float) -> float:
    """Bisect for what, added to the score of the target, gives the wished acceptance."""
    score = weight.logit(eps=1e-12)
    low, high = -LARGEST_SHIFT, LARGEST_SHIFT
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        accepted = text_mean(1 - (score + middle).sigmoid() * rollouts.tv, rollouts).mean()
        low, high = (middle, high) if accepted > wish else (low, middle)
    return (low + high) / 2
