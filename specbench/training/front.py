"""What a head is worth: its distance above the static ensemble on held-out prompts.

Everything is measured on roll-outs; several texts of a prompt count as one with their means.
Acceptance is the mean over texts of the
mean over tokens of ``1 - w TV(p, q)``, so it mixes linearly, and the randomised front of the static
weights is their upper concave hull (see ``specbench.analysis.statistics.front``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specbench.analysis.statistics import proportions
from specbench.analysis.statistics.front import lead_of_means
from specbench.analysis.statistics.intervals import Floats, Interval, mean_interval
from specbench.analysis.tables.table import with_interval
from specbench.errors import UsageError
from specbench.tasks.metrics import Metric

# Static weights measured before training, from the target to the draft.
WEIGHTS = (1.0, 0.95, 0.85, 0.6, 0.3, 0.0)
NEARBY = 0.01  # distance in acceptance of the static weights that a head is compared with
ROWS_AT_ONCE = 4096  # inputs that are summed in float64 together
# A head has collapsed to a model if it is this close to it, as a share of the range of acceptance.
EXTREME = 0.02


class NothingToLearnError(UsageError):
    """A training would be in vain, and again if it were repeated."""


class InputSums(NamedTuple):
    """Sums over the inputs of a head at M tokens, ``[M, D]``."""

    tokens: int  # M
    total: Floats  # [D]
    squares: Floats  # [D]

    @classmethod
    def of(cls, inputs: Tensor) -> InputSums:
        """Sum inputs ``[M, D]``, some rows at a time, since float64 doubles their memory."""
        total = squares = inputs.new_zeros(inputs.shape[1], dtype=torch.float64)
        for rows in inputs.split(ROWS_AT_ONCE):
            total = total + rows.sum(0, dtype=torch.float64)
            squares = squares + rows.double().square().sum(0)
        return cls(len(inputs), total.cpu().numpy(), squares.cpu().numpy())

    @classmethod
    def joined(cls, parts: Iterable[InputSums]) -> InputSums:
        """Return the sums over the inputs of all parts."""
        return cls(*(sum(sums) for sums in zip(*parts, strict=True)))

    def mean_and_spread(self) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation of each input, ``[D]``."""
        mean = self.total / self.tokens
        variance = (self.squares / self.tokens - mean**2).clip(0)
        return mean, np.sqrt(variance * self.tokens / max(1, self.tokens - 1))


class Point(NamedTuple):
    """A head or a static weight, measured on n held-out prompts."""

    weight: float  # mean over tokens
    quality: Floats  # [n] score of each prompt's texts, 0 to 1
    acceptance: Floats  # [n] mean over each prompt's texts of 1 - w TV(p, q)
    inputs: InputSums  # over the tokens of all texts

    def lists(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint; see ``from_lists``."""
        tokens, total, squares = self.inputs
        return {
            "weight": self.weight,
            "quality": self.quality.tolist(),
            "acceptance": self.acceptance.tolist(),
            "inputs": [tokens, total.tolist(), squares.tolist()],
        }

    @classmethod
    def from_lists(cls, values: dict[str, Any]) -> Point:
        """Return the point of ``lists``."""
        tokens, total, squares = values["inputs"]
        inputs = InputSums(tokens, np.array(total), np.array(squares))
        quality, acceptance = (np.array(values[name]) for name in ("quality", "acceptance"))
        return cls(values["weight"], quality, acceptance, inputs)

    def joined(self, other: Point) -> Point:
        """Return a point on the prompts of both, with the weight of the other."""
        return Point(
            other.weight,
            np.concatenate([self.quality, other.quality]),
            np.concatenate([self.acceptance, other.acceptance]),
            InputSums.joined([self.inputs, other.inputs]),
        )

    @classmethod
    def mean(cls, points: Sequence[Point]) -> Point:
        """Return the mean of points on the same prompts."""
        return cls(
            float(np.mean([point.weight for point in points])),
            np.mean([point.quality for point in points], axis=0),
            np.mean([point.acceptance for point in points], axis=0),
            InputSums.joined(point.inputs for point in points),
        )

    def described(self) -> dict[str, Any]:
        """Return the figures with their intervals, for ``head.json``."""
        figures: dict[str, Any] = {"weight": self.weight}
        for name, values in (("quality", self.quality), ("acceptance", self.acceptance)):
            is_binary = name == "quality" and proportions.is_binary(values)
            interval = proportions.proportion_interval if is_binary else mean_interval
            mean = interval(values, np.arange(len(values)))
            figures |= {name: mean.value, f"{name}_interval": [mean.low, mean.high]}
        return figures


class Worth(NamedTuple):
    """A trained head on prompts that were not used to choose it, beside static weights."""

    head: Point
    static: Sequence[Point]  # the target, the weights around the head's acceptance, the draft

    @property
    def distance(self) -> Interval:
        """The head's quality minus that of the randomised static front at its acceptance."""
        return distance(self.head, self.static)

    @property
    def collapsed(self) -> str | None:
        """The model that the head imitates, ``target`` or ``draft``, or None."""
        target, draft = self.static[0].acceptance.mean(), self.static[-1].acceptance.mean()
        share = (self.head.acceptance.mean() - target) / (draft - target)
        return "draft" if share > 1 - EXTREME else "target" if share < EXTREME else None

    def sentence(self, metric: Metric) -> str:
        """Say in one sentence whether the head is above or below the static front, or neither."""
        distance, scale = self.distance, metric.scale
        low, high = scale * distance.low, scale * distance.high
        least = scale * distance.least
        lead = with_interval(scale * distance.value, low, high, ".1f", least=least)
        by = f"{lead} points, n = {distance.n}"
        if low > 0:
            return f"above the randomised static front ({by})"
        if high < 0:
            return f"below the randomised static front ({by})"
        detectable = metric.scale * proportions.smallest_shown(distance)
        collapse = f"; collapsed to the {self.collapsed}" if self.collapsed else ""
        return (
            f"not shown to be above the randomised static front ({by}; {detectable:.1f} points "
            f"would be shown in {100 * proportions.POWER:.0f} % of such measurements){collapse}"
        )

    def described(self, metric: Metric) -> dict[str, Any]:
        """Return all figures, for ``head.json``."""
        distance = self.distance
        names = ["target", *["static"] * (len(self.static) - 2), "draft"]
        return {
            **{"sentence": self.sentence(metric), "metric": metric.name},
            **{"better": bool(distance.low > 0), "n": distance.n, "distance": distance.value},
            "distance_least": distance.least,
            "distance_interval": [distance.low, distance.high],
            "smallest_shown": proportions.smallest_shown(distance),
            "head": self.head.described(),
            "others": [
                {"name": name, **point.described()}
                for name, point in zip(names, self.static, strict=True)
            ],
        }


def distance(head: Point, static: Sequence[Point]) -> Interval:
    """Return a head's quality minus that of the randomised static front at its acceptance."""
    points = [head, *static]
    quality = np.stack([point.quality for point in points], axis=1)
    return lead_of_means(quality, np.stack([point.acceptance for point in points], axis=1))


def slope(static: Sequence[Point]) -> float:
    """Return the quality that the static ensemble loses per unit of acceptance, end to end."""
    target, draft = static[0], static[-1]
    lost = target.quality.mean() - draft.quality.mean()
    return float(lost / (draft.acceptance.mean() - target.acceptance.mean()))


def weight_for_acceptance(acceptance: float, static: Sequence[Point]) -> float:
    """Return the static weight with this acceptance, interpolated."""
    acceptances = np.maximum.accumulate([point.acceptance.mean() for point in static])
    return float(np.interp(acceptance, acceptances, [point.weight for point in static]))


def weight_for_quality(quality: float, static: Sequence[Point]) -> float:
    """Return the smallest static weight with this quality, interpolated."""
    falling = np.minimum.accumulate([point.quality.mean() for point in static])
    return float(np.interp(quality, falling[::-1], [point.weight for point in static][::-1]))


def weights_around(head: Point, static: Sequence[Point]) -> list[float]:
    """Return static weights to compare a head with: both models, and those of its acceptance."""
    accepted = head.acceptance.mean()
    near = (weight_for_acceptance(accepted + sign * NEARBY, static) for sign in (-1, 1))
    return [1.0, *sorted({weight for weight in near if 0 < weight < 1}, reverse=True), 0.0]


def require_trade(static: Sequence[Point], task: str, metric: Metric) -> None:
    """Raise ``NothingToLearnError`` unless the target is measurably better than the draft."""
    target, draft = static[0], static[-1]
    gained = proportions.unit_difference(target.quality, draft.quality)
    if gained.low > 0 and draft.acceptance.mean() > target.acceptance.mean():
        return
    scale = metric.scale
    p_mean, q_mean = scale * target.quality.mean(), scale * draft.quality.mean()
    interval = (
        f"{scale * gained.value:+.1f} [{scale * gained.low:+.1f}, {scale * gained.high:+.1f}]"
    )
    longer = "" if p_mean else ", or longer texts (--max-new-tokens)"
    raise NothingToLearnError(
        f"{task}: the target is not measurably better than the draft ({metric.unit} {p_mean:.1f} "
        f"against {q_mean:.1f}, difference {interval} on {gained.n} "
        f"held-out prompts), so there is nothing to protect: choose another metric or draft{longer}"
    )
