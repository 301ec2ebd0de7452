"""The control of lambda reaches its goal on a simulated head."""

import numpy as np
import pytest

from specbench.training.price import FIRST, STRICTEST, Price


class SimulatedHead:
    """A head whose acceptance drifts with the price: toward where the marginal loss equals it.

    Acceptance is 0 for the target and 1 for the draft; the lost quality grows as its square.
    """

    def __init__(self, accepted: float, noise: float, seed: int = 0) -> None:
        self.accepted, self.noise = accepted, noise
        self.draws = np.random.default_rng(seed)

    def train(self, price: float) -> None:
        wanted = np.clip(price / 2, 0, 1)  # where the marginal loss 2 a equals the price
        self.accepted += 0.15 * (wanted - self.accepted)

    @property
    def lost(self) -> float:
        return self.accepted**2 + self.noise * self.draws.normal()

    @property
    def gained(self) -> float:
        return self.accepted + self.noise * self.draws.normal()


@pytest.mark.parametrize("asked", [0.1, 0.3, 0.6, 0.9])
def test_a_target_acceptance_is_reached_from_the_strict_side(asked: float) -> None:
    head, price, path = SimulatedHead(0.02, noise=0.02), Price(0.4), []
    for step in range(60):
        price = price.for_acceptance(head.gained, asked, (step + 1) / 60)
        head.train(price.value)
        path.append(head.accepted)
    assert np.mean(path[-10:]) == pytest.approx(asked, abs=0.03)
    assert max(path[:20]) < asked


@pytest.mark.parametrize("allowed", [0.02, 0.1, 0.4])
def test_an_allowed_quality_loss_is_used_up_but_not_exceeded(allowed: float) -> None:
    head, price, path = SimulatedHead(0.02, noise=0.03), Price(0.4), []
    for _ in range(60):
        price = price.for_quality(head.lost / allowed)
        assert price.value >= 0
        head.train(price.value)
        path.append(head.accepted**2)
    assert np.mean(path[-15:]) == pytest.approx(allowed, abs=0.03)


def test_too_much_acceptance_gives_a_negative_price() -> None:
    assert Price(0.4).for_acceptance(0.9, 0.5, 1.0).value == STRICTEST < 0
    assert Price(0.4).for_quality(9.0).value < Price(0.4).for_quality(1.0).value
    # At the goal the price is the integral part alone.
    assert Price(0.4).for_acceptance(0.5, 0.5, 1.0).value == pytest.approx(FIRST)
