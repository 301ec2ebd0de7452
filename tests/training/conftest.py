"""Measurements of a training without models."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from specbench.decoding.heads.head import Head
from specbench.training import verifier
from specbench.training.front import Point

PROMPTS = 12


def made_point(weight: float, quality: float | None = None, prompts: int = PROMPTS) -> Point:
    """A point whose quality falls and whose acceptance rises evenly from target to draft."""
    quality = 0.4 + 0.4 * weight if quality is None else quality
    return Point(weight, np.full(prompts, quality), np.full(prompts, 1 - 0.3 * weight))


def measured_by_weight(training: Any, heads: list[Head], material: Any, *_: Any) -> list[Point]:
    """Stands in for ``Training.measure``: points on the static ensemble's line."""
    prompts = len(material.examples)
    return [made_point(head.summary.bias.softmax(0)[1].item(), prompts=prompts) for head in heads]


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all measurements of trainings."""
    monkeypatch.setattr(verifier.Training, "measure", measured_by_weight)


@pytest.fixture(scope="module", autouse=True)
def few_statistics() -> Iterator[None]:
    """Take the spread of the inputs from fewer texts of the target."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "STATISTICS", 8)
        yield
