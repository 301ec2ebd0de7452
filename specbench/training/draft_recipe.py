"""How a draft is fine-tuned.

Nothing here imports torch, so that a wrong number is refused at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from specbench.errors import UsageError
from specbench.training.schedule import MAX_PROMPT_TOKENS, warm_up_cosine

# Learning rates of models narrower than this and of the others, where the user gives none.
SMALL_WIDTH, SMALL_RATE, LARGE_RATE = 512, 3e-3, 1e-5


@dataclass(frozen=True)
class DraftRecipe:
    """How a draft is fine-tuned; the names are those of the options.

    Attributes:
        steps: Batches.
        batch_size: Examples in a batch; none is seen twice where the task has enough of them.
        learning_rate: AdamW's, after a short warm-up and before a cosine to zero; None takes what
            suits the model's width.
        max_prompt_tokens: Longer prompts are cut inside their passage.
        seed: Decides the examples.

    Raises:
        UsageError: A value is out of range.
    """

    steps: int = 1000
    batch_size: int = 16
    learning_rate: float | None = None
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("steps", self.steps >= 1, "1 or more")
        self._require("batch_size", self.batch_size >= 1, "1 or more")
        self._require("max_prompt_tokens", self.max_prompt_tokens >= 1, "1 or more")
        rate = self.learning_rate
        self._require("learning_rate", rate is None or 0 < rate < math.inf, "above 0")
        self._require("seed", self.seed >= 0, "0 or more")

    def for_width(self, width: int) -> DraftRecipe:
        """Return the recipe with a learning rate, for a model of some hidden size."""
        usual = SMALL_RATE if width < SMALL_WIDTH else LARGE_RATE
        return replace(self, learning_rate=self.learning_rate or usual)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step counted from 0; the peak must be known."""
        assert self.learning_rate is not None
        return self.learning_rate * warm_up_cosine(step, self.steps)

    def _require(self, name: str, fulfilled: bool, permitted: str) -> None:
        if not fulfilled:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} must be {permitted}, not {getattr(self, name)}")
