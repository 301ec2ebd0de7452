"""What the tests of ``specbench train`` share: a tiny recipe, and rewards that are made up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from specbench.training.folder import LOG

TINY = [
    "train",
    "-t",
    "mini-headline",
    "--steps",
    "3",
    "--prompts-per-step",
    "2",
    "--rollouts",
    "2",
    "--seed",
    "5",
]
HEAD = Path("results/heads/mini/mini-headline")


def rewards(*steps: Any) -> Callable[..., torch.Tensor]:
    """Stand for ``verifier.reward``: per step the reward of all texts, or what is raised."""
    left: Iterator[Any] = iter(steps)

    def reward(rollouts: Any, *_: Any) -> torch.Tensor:
        value = next(left, 0.5)
        if isinstance(value, BaseException):
            raise value
        return torch.full((len(rollouts.texts),), float(value))

    return reward


def logged_steps(folder: Path) -> list[str]:
    return [line.split(",")[0] for line in (folder / LOG).read_text().splitlines()[1:]]


def errors(result: Any) -> list[str]:
    return [line for line in result.err.splitlines() if line.startswith("error: ")]
