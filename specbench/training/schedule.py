"""What the trainings of heads and of drafts share: the course of a learning rate, a limit."""

from __future__ import annotations

import math

WARM_UP = 0.05  # share of the steps
MAX_PROMPT_TOKENS = 512  # in training, as in the paper (arXiv:2604.07622)


def warm_up_cosine(step: int, steps: int) -> float:
    """Return the share of the peak rate at a step counted from 0: up in a line, down in a cosine.

    Args:
        step: Steps done.
        steps: Steps in all; by then the rate is zero.
    """
    warm_up = max(1, round(WARM_UP * steps))
    return min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / steps)) / 2
