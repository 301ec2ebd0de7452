"""The course of a learning rate, the same for heads and drafts."""

from __future__ import annotations

import math

WARM_UP = 0.05  # share of the steps


def warm_up_cosine(step: int, steps: int) -> float:
    """Return the share of the peak rate at a step counted from 0: up in a line, down in a cosine.

    Args:
        step: Steps done.
        steps: Steps in all; by then the rate is zero.
    """
    warm_up = max(1, round(WARM_UP * steps))
    return min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / steps)) / 2
