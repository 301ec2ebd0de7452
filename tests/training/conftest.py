"""Measurements of a training without models."""

from typing import Any

import numpy as np
import pytest
import torch

from specbench.decoding.heads.head import Head
from specbench.training import verifier
from specbench.training.front import InputSums, Point

PROMPTS = 12


def made_point(weight: float, quality: float | None = None, prompts: int = PROMPTS, width: int = 1):
    """A point whose quality falls and whose acceptance rises evenly from target to draft."""
    quality = 0.4 + 0.4 * weight if quality is None else quality
    inputs = InputSums.of(torch.randn(50, width, generator=torch.Generator().manual_seed(0)))
    return Point(weight, np.full(prompts, quality), np.full(prompts, 1 - 0.3 * weight), inputs)


def measured_by_weight(training: Any, heads: list[Head], material: Any, *_: Any) -> list[Point]:
    """Stands in for ``Training.measure``: points on the static ensemble's line."""
    sizes = {"prompts": len(material.examples), "width": heads[0].width}
    return [made_point(head.summary.bias.softmax(0)[1].item(), **sizes) for head in heads]


@pytest.fixture
def unmeasured(monkeypatch) -> None:
    monkeypatch.setattr(verifier.Training, "measure", measured_by_weight)
