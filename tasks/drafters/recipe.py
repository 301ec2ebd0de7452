"""Recipe of the training of a module that drafts: defaults, bounds and learning rates."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from specbench.config import Options, option
from specbench.training.recipe import LONGEST_PROMPT, MAX_PROMPT_TOKENS, warm_up_cosine


class DrafterRecipe(Options):
    """The training of a module that drafts; ``tasks/train_drafter.py`` has an option per field."""

    panel = "Recipe"

    kind: Literal["eagle3", "mtp", "block"] = option(
        "eagle3",
        "eagle3: reads several layers of the target; mtp: multi-token prediction, reads the last "
        "layer and shares the target's embedding and output head; block: like mtp, and all drafts "
        "of a round take one pass.",
    )

    texts: int = option(4000, "Texts that the target samples, over all tasks.", ge=1)
    steps: int = option(3000, "Number of batches.", ge=1)
    batch_size: int = option(8, "Texts per batch.", ge=1)
    depths: int = option(5, "Drafts from every position: depths of the unrolled chain.", ge=1)
    # After a short warm-up and before a cosine to zero.
    learning_rate: float = option(1e-2, "Peak learning rate of AdamW.", gt=0)
    layers: list[int] | None = option(
        None,
        "Layers of the target after which the module reads states; 0 is the embedding.",
        metavar="K[,K...]",
        shown="2, the middle one and the last but two",
    )
    hidden_size: int | None = option(
        None,
        "Width of the module, which then has an embedding of its own.",
        ge=1,
        shown="the target's",
    )
    intermediate_size: int | None = option(
        None, "Width of the module's MLP.", ge=1, shown="3 times the module's"
    )
    start: Literal["layer", "linear"] = option(
        "layer",
        "layer: begin with weights of the target's or draft's last layer; linear: with a linear "
        "prediction of the target's next state.",
    )
    # The target has read the prompts anyway, so p is known there, too.
    prompts: bool = option(False, "Learn on the tokens of prompts, too.")
    # Few rounds reach the deep ones.
    depth_weight: float = option(
        1.0, "Weight of each depth, relative to the one before it.", gt=0, le=1
    )
    max_prompt_tokens: int = option(MAX_PROMPT_TOKENS, LONGEST_PROMPT, ge=1)
    seed: int = option(0, "Seed of the examples, texts and weights.", ge=0)

    @model_validator(mode="after")
    def _shares_the_target(self) -> DrafterRecipe:
        if self.kind != "eagle3" and (self.layers or self.hidden_size):
            raise ValueError(
                f"a module of kind {self.kind} is as wide as the target and reads its last layer: "
                "omit --layers and --hidden-size"
            )
        if self.start == "linear" and self.hidden_size:
            raise ValueError(
                "a linear start needs a module as wide as the target: omit --hidden-size"
            )
        return self

    def depths_at(self, step: int) -> int:
        """Return the depths of a step counted from 0: about half of the steps have all of them.

        A module that cannot yet draft one token learns slowly from its own states.
        """
        return min(self.depths, 1 + 3 * step * self.depths // (2 * self.steps))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step counted from 0."""
        return self.learning_rate * warm_up_cosine(step, self.steps)
