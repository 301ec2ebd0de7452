"""The control of lambda reaches its goal on a simulated head."""

import numpy as np
import pytest

from specbench.training.objective import FIRST, STRICTEST, Multiplier


class SimulatedHead:
    """A head whose acceptance drifts with the multiplier: toward where the marginal loss equals it.

    Acceptance is 0 for the target and 1 for the draft; the lost quality grows as its square.
    """

    def __init__(self, accepted: float, noise: float, seed: int = 0) -> None:
        self.accepted, self.noise = accepted, noise
        self.draws = np.random.default_rng(seed)

    def train(self, multiplier: float) -> None:
        wanted = np.clip(multiplier / 2, 0, 1)  # where the marginal loss 2 a equals the multiplier
        self.accepted += 0.15 * (wanted - self.accepted)

    @property
    def lost(self) -> float:
        return self.accepted**2 + self.noise * self.draws.normal()

    @property
    def gained(self) -> float:
        return self.accepted + self.noise * self.draws.normal()


@pytest.mark.parametrize("asked", [0.1, 0.3, 0.6, 0.9])
def test_a_target_acceptance_is_reached_from_the_strict_side(asked: float) -> None:
    head, multiplier, path = SimulatedHead(0.02, noise=0.02), Multiplier(0.4), []
    for step in range(60):
        multiplier = multiplier.for_acceptance(head.gained, asked, (step + 1) / 60)
        head.train(multiplier.value)
        path.append(head.accepted)
    assert np.mean(path[-10:]) == pytest.approx(asked, abs=0.03)
    assert max(path[:20]) < asked


@pytest.mark.parametrize("allowed", [0.02, 0.1, 0.4])
def test_an_allowed_quality_loss_is_used_up_but_not_exceeded(allowed: float) -> None:
    head, multiplier, path = SimulatedHead(0.02, noise=0.03), Multiplier(0.4), []
    for _ in range(60):
        multiplier = multiplier.for_quality(head.lost / allowed)
        assert multiplier.value >= 0
        head.train(multiplier.value)
        path.append(head.accepted**2)
    assert np.mean(path[-15:]) == pytest.approx(allowed, abs=0.03)


def test_too_much_acceptance_gives_a_negative_multiplier() -> None:
    assert Multiplier(0.4).for_acceptance(0.9, 0.5, 1.0).value == STRICTEST < 0
    assert Multiplier(0.4).for_quality(9.0).value < Multiplier(0.4).for_quality(1.0).value
    # At the goal the multiplier is the integral part alone.
    assert Multiplier(0.4).for_acceptance(0.5, 0.5, 1.0).value == pytest.approx(FIRST)
