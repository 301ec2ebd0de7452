"""What a training aims at: its start, the choice of the best head, and lambda.

Without a goal, lambda is fixed, and the best head is the one farthest above the static front. With
a goal, lambda is the multiplier of a constraint, set by a PI controller on the shortfall.
Acceptance is in units of the static ensemble's range between target (0) and draft (1), a loss of
quality in units of the permitted one, and lambda in units of the static ensemble's slope, so the
same gains suit every metric. Source: after Stooke et al., PID Lagrangian methods, arXiv:2007.03964.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from specbench.tasks.metrics import Metric
from specbench.training import front
from specbench.training.front import Point
from specbench.training.recipe import HeadRecipe

# A start must keep most of the quality, or its texts earn nothing to learn from.
MOST_LOST = 0.3  # share of the quality between target and draft that the start may lose
STARTS = (0.3, 0.95)  # range of the first weight; a sampled draft must stay possible
TOLERANCE = 0.01  # of a target acceptance, in the choice of the best head
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

        It may become negative, which makes a head that accepts too much stricter. In what this step
        ``gained`` and in the ``goal``, 0 is the target's own acceptance and 1 the draft's; ``done``
        is the fraction of the steps, with this one.
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


class Checked(NamedTuple):
    """The head after a step, with its measurement on held-out prompts."""

    step: int
    merit: list[float]  # the best head has the largest
    weights: dict[str, Tensor]
    # quality above the static front with its interval, from 0 to 1; an earlier version kept none
    distance: tuple[float, float, float] | None = None


class Goal:
    """The best head is the one farthest above the static front; lambda is fixed.

    ``static`` are the static weights on held-out prompts, from target to draft.
    """

    def __init__(self, static: Sequence[Point]) -> None:
        self.static, self.target, self.draft = static, static[0], static[-1]
        between = float(self.target.quality.mean() - self.draft.quality.mean())
        self.permitted_loss = MOST_LOST * between  # of the start, as a score from 0 to 1

    @property
    def first_weight(self) -> float:
        """The static weight that training starts from; it keeps most of the quality."""
        quality = self.target.quality.mean() - self.permitted_loss
        return self._possible(front.weight_for_quality(quality, self.static))

    def merit(self, point: Point, distance: float) -> list[float]:
        """Return what the best head has most of; ``distance`` is that above the front."""
        return [distance]

    def next_multiplier(
        self, multiplier: Multiplier, quality: float, acceptance: float, done: float
    ) -> Multiplier:
        """Return the multiplier of a step with these means, after this share of the steps."""
        return multiplier

    def _possible(self, weight: float) -> float:
        return min(max(weight, STARTS[0]), STARTS[1])


class AcceptanceGoal(Goal):
    """Reach an acceptance per position; of the heads that do, the best is farthest above."""

    def __init__(self, static: Sequence[Point], acceptance: float) -> None:
        super().__init__(static)
        self.acceptance = acceptance

    @property
    def first_weight(self) -> float:
        """The weight of ``Goal``, or a larger one halfway between the target and the goal."""
        middle = (self.target.acceptance.mean() + self.acceptance) / 2
        stricter = front.weight_for_acceptance(middle, self.static)
        return self._possible(max(super().first_weight, stricter))

    def merit(self, point: Point, distance: float) -> list[float]:
        """Return the acceptance missed beyond ``TOLERANCE``, negative, and the distance."""
        missed = abs(float(point.acceptance.mean()) - self.acceptance)
        return [-max(missed - TOLERANCE, 0.0), distance]

    def next_multiplier(
        self, multiplier: Multiplier, quality: float, acceptance: float, done: float
    ) -> Multiplier:
        """Return the multiplier by the acceptance that is missing."""
        least = float(self.target.acceptance.mean())
        span = float(self.draft.acceptance.mean()) - least
        goal = (self.acceptance - least) / span
        return multiplier.for_acceptance((acceptance - least) / span, goal, done)


class QualityGoal(Goal):
    """Accept as much as possible with a largest loss of quality, a score from 0 to 1."""

    def __init__(self, static: Sequence[Point], loss: float) -> None:
        super().__init__(static)
        self.permitted_loss = loss

    def merit(self, point: Point, distance: float) -> list[float]:
        """Return the quality lost beyond the goal, negative, and the acceptance."""
        lost = float((self.target.quality - point.quality).mean())
        return [-max(lost - self.permitted_loss, 0.0), float(point.acceptance.mean())]

    def next_multiplier(
        self, multiplier: Multiplier, quality: float, acceptance: float, done: float
    ) -> Multiplier:
        """Return the multiplier by the quality that is lost, relative to the permitted loss."""
        lost = float(self.target.quality.mean()) - quality
        return multiplier.for_quality(lost / self.permitted_loss)


def goal_of(recipe: HeadRecipe, metric: Metric, static: Sequence[Point]) -> Goal:
    """Return the goal that a recipe names, from the static weights on held-out prompts."""
    if recipe.target_acceptance is not None:
        return AcceptanceGoal(static, recipe.target_acceptance)
    if recipe.max_quality_loss is not None:
        return QualityGoal(static, recipe.max_quality_loss / metric.scale)
    return Goal(static)
