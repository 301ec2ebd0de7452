"""The progress of a training: a row per step, and the best head so far."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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


class Checked(NamedTuple):
    """The head after a step, with its measurement on held-out prompts."""

    step: int
    merit: list[float]  # the best head has the largest
    weights: dict[str, Tensor]
