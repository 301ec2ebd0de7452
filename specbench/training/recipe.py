"""Training recipes of heads: defaults, bounds and learning rates.

Recipes and the folder of a training are checked before anything is loaded, so without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from specbench.config import Filters, Temperature, option
from specbench.decoding.drafters.registry import DRAFTERS, MODEL, parse_drafter, recorded_drafter
from specbench.decoding.heads.kinds import FEATURES, KINDS, LINEAR
from specbench.decoding.heads.registry import is_head
from specbench.engine.pairs import PairSpec
from specbench.errors import UsageError
from specbench.files import check_writable
from specbench.schema import quoted, validated
from specbench.tasks.metrics import AGREEMENT
from specbench.tasks.task import RESERVED_SEEDS, Task

CHECKPOINT = "checkpoint.pt"  # of a training, in its folder
METRIC = "metric"
REWARDS = {
    METRIC: "the task's first metric",
    AGREEMENT: "agreement with the target's own greedy text",
}
WARM_UP = 0.05  # share of the steps
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS = 512, 128  # as in the paper (arXiv:2604.07622)

LONGEST_PROMPT = "Longest prompt; a longer one is cut in its passage, or skipped without one."


class HeadRecipe(Filters):
    """The training of a head; ``specbench train`` has an option for most fields."""

    panel = "Recipe (defaults depend on the pair and the task)"

    head_kind: Literal["linear", "features"] = option(
        FEATURES,
        "; ".join(f"{name}: {kind.description}" for name, kind in KINDS.items()) + ".",
        metavar="KIND",
        complete=lambda: KINDS,
    )
    drafter: str = option(
        str(MODEL),
        "What drafts: model, greedy, or, for a head of kind features, a folder with an EAGLE-3 or "
        "MTP module.",
        metavar="NAME",
        complete=lambda: [name for name, declared in DRAFTERS.items() if declared.kind.needs_draft],
    )
    steps: int = option(60, "Steps, each with a set of roll-outs.", ge=1)
    prompts_per_step: int = option(16, "Prompts per step.", ge=1)
    # The return of a text is compared with the mean of its prompt's texts, or with that of all
    # texts of the step where a prompt has only one, as in the paper.
    rollouts: int = option(4, "Texts per prompt.", ge=1)
    epochs_per_rollout: int = Field(4, ge=1)  # passes over each set; no option, but in files
    memory: int = Field(4, ge=1)  # steps whose texts an update reads; likewise
    checks: int = Field(6, ge=1)  # measurements, of which the best is kept; 1: the last step is
    # After a short warm-up and before a cosine to zero.
    learning_rate: float = option(
        0.02, "Peak learning rate of Adam; lower for heads with many inputs.", gt=0
    )
    target_acceptance: float | None = option(
        None,
        "Adjust lambda to reach this acceptance per position (a run's expected_acceptance); "
        "several values train a family of heads.",
        metavar="A[,A...]",
        gt=0,
        lt=1,
    )
    max_quality_loss: float | None = option(
        None,
        "Adjust lambda to accept as much as possible while the quality stays within this many "
        "points of the target's; several values train a family of heads.",
        metavar="POINTS[,...]",
        gt=0,
    )
    reward: Literal["metric", "agreement"] = option(
        METRIC,
        "; ".join(f"{name}: {text}" for name, text in REWARDS.items()) + ".",
        metavar="NAME",
        complete=lambda: REWARDS,
    )
    acceptance_weight: float = option(
        0.8,
        "lambda: reward per unit of acceptance, relative to what the static ensemble pays for it "
        "from target to draft.",
        ge=0,
    )
    # The release starts at 0.5. On some tasks, texts at w = 0.5 earn no reward to learn from.
    initial_weight: float | None = option(
        None,
        "w of the untrained head.",
        gt=0,
        lt=1,
        shown="the lowest that keeps most of the target's quality",
    )
    temperature: Temperature = option(1.0, "Temperature of the texts.")
    max_prompt_tokens: int = option(MAX_PROMPT_TOKENS, LONGEST_PROMPT, ge=1)
    max_new_tokens: int = option(
        MAX_NEW_TOKENS,
        "Most tokens of a text in training; runs with the head may write longer ones.",
        ge=1,
    )
    seed: int = option(
        0,
        f"Seed of the examples and all draws; those from {RESERVED_SEEDS} on draw the prompts that "
        "are held out.",
        ge=0,
    )

    @field_validator("drafter")
    @classmethod
    def _drafts_all(cls, drafter: str, info: ValidationInfo) -> str:
        spec = recorded_drafter(drafter)
        if spec.kind.copies or spec.policy:
            raise ValueError(f"must be a model or a module that always drafts, not {drafter}")
        if info.data.get("head_kind") == LINEAR and spec.kind.has_weights:
            raise ValueError(
                f"a linear head reads the draft model's states, and {drafter} has others: add "
                "--head-kind features"
            )
        return drafter

    @field_validator("seed")
    @classmethod
    def _trained_on(cls, seed: int) -> int:
        if seed >= RESERVED_SEEDS:
            raise ValueError(
                f"must be below {RESERVED_SEEDS}, not {seed}, since seeds from there on draw the "
                "prompts that are held out: give another"
            )
        return seed

    @field_validator("rollouts")
    @classmethod
    def _compared(cls, rollouts: int, info: ValidationInfo) -> int:
        if rollouts * info.data.get("prompts_per_step", 2) < 2:
            raise ValueError("must be 2 or more with one prompt per step: texts are compared")
        return rollouts

    @field_validator("temperature")
    @classmethod
    def _sampled(cls, temperature: float) -> float:
        # There the ensemble takes the likeliest token, which a small change of w does not change.
        if temperature == 0:
            raise ValueError(
                "must be above 0, since greedy texts give no gradient: train at 1, which serves "
                "temperature 0 too"
            )
        return temperature

    @field_validator("max_quality_loss")
    @classmethod
    def _one_goal(cls, loss: float | None, info: ValidationInfo) -> float | None:
        if loss is not None and info.data.get("target_acceptance") is not None:
            raise ValueError("cannot be combined with --target-acceptance: omit one of them")
        return loss

    def text_tokens(self, task: Task) -> int:
        """Return the most tokens of a text: those of the recipe or, if fewer, of the task."""
        return min(task.max_new_tokens, self.max_new_tokens)

    def metric_for(self, task: Task) -> str | None:
        """Return the name of the metric that measures quality in this training."""
        return AGREEMENT if self.reward == AGREEMENT else task.metric

    def rate(self, step: int) -> float:
        """Return the learning rate of a step counted from 0."""
        return self.learning_rate * warm_up_cosine(step, self.steps)


def head_recipe(pair: PairSpec, task: Task, chosen: Mapping[str, Any]) -> HeadRecipe:
    """Return the recipe for a pair and a task.

    The user's values (None: not given) override the pair's ``[<pair>.training]`` in ``pairs.toml``,
    which overrides the task's ``[training]``, which overrides the defaults.
    """
    values, pairs_own = dict(task.training), f"{pair.name}.training."
    validated(HeadRecipe, values, str(task.path), lambda key: quoted(f"training.{key}"))
    values |= pair.training
    validated(HeadRecipe, values, str(pair.file), lambda key: quoted(pairs_own + key))
    values |= {name: value for name, value in chosen.items() if value is not None}
    recipe = HeadRecipe(**values)
    return recipe.updated(drafter=str(parse_drafter(recipe.drafter, pair.drafters)))


def warm_up_cosine(step: int, steps: int) -> float:
    """Return the factor on the peak rate at a step from 0: linear warm-up, cosine to zero."""
    warm_up = max(1, round(WARM_UP * steps))
    return min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / steps)) / 2


def check_folder(folder: Path, resume: bool) -> bool:
    """Return whether training is needed: False if ``resume`` finds a finished head."""
    check_writable(folder)
    if is_head(folder):
        if resume:
            return False
        raise UsageError(f"{folder} already contains a head: choose another folder with --output")
    if (folder / CHECKPOINT).exists() and not resume:
        raise UsageError(
            f"{folder} contains an unfinished training: add --resume, or choose another folder "
            "with --output"
        )
    return True
