"""Lambda during training: fixed, or following a goal.

With a goal, lambda is the multiplier of a constraint, set by a PI controller on the shortfall.
Acceptance is in units of the static ensemble's range between target (0)
and draft (1), a loss of quality in units of the permitted one, and lambda in units of the static
ensemble's slope, so the same gains suit every metric.

Source: after Stooke et al., PID Lagrangian methods, arXiv:2007.03964.
"""

from __future__ import annotations

from typing import NamedTuple

FIRST = 0.4
# The quality of a step is noisier.
INTEGRAL = {"acceptance": 0.5, "quality": 0.04}
PROPORTIONAL = {"acceptance": 5.0, "quality": 0.16}
LEAST, MOST = 0.1, 5.0  # integral part; without any price for acceptance a head stays at the target
STRICTEST = -0.3  # lowest price; lower ones drive w to 1, where training is slow
RAMP = 0.6  # fraction of the steps in which the asked acceptance rises from the start's to the goal
PAST = 0.8  # weight of the past in the running mean of the quality lost


class Price(NamedTuple):
    """Lambda in units of the static ensemble's slope, and the state of its control."""

    value: float
    integral: float = FIRST
    start: float | None = None  # acceptance of the first step
    lost: float | None = None  # running mean

    def for_acceptance(self, gained: float, asked: float, done: float) -> Price:
        """Return the next price for a target acceptance.

        It may become negative, which makes a head that accepts too much stricter.

        Args:
            gained: Acceptance of this step; 0 is the target's own, 1 the draft's.
            asked: The goal in the same unit.
            done: Fraction of the steps that is done, with this one.
        """
        start = gained if self.start is None else self.start
        now = start + (asked - start) * min(1.0, done / RAMP)
        return self._adjusted("acceptance", now - gained, STRICTEST)._replace(start=start)

    def for_quality(self, lost: float) -> Price:
        """Return the next price for a quality loss; 0 is the target's quality, 1 the goal.

        A step has few texts, so their running mean is compared with the goal. A loss far beyond it,
        as at the start, counts as one of twice the goal, so that lambda recovers from it.
        """
        mean = lost if self.lost is None else PAST * self.lost + (1 - PAST) * lost
        mean = min(mean, 2.0)
        return self._adjusted("quality", 1 - mean, 0.0)._replace(lost=mean)

    def _adjusted(self, goal: str, missing: float, lowest: float) -> Price:
        integral = min(max(self.integral + INTEGRAL[goal] * missing, LEAST), MOST)
        value = max(integral + PROPORTIONAL[goal] * missing, lowest)
        return self._replace(value=value, integral=integral)
