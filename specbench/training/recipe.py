"""How a head is trained: usual values, what a task and a pair change, what the user changes.

Nothing here imports torch, so that a wrong number is refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from specbench.errors import UsageError
from specbench.heads.registry import KINDS, LINEAR
from specbench.pairs.registry import PairSpec
from specbench.tasks.definition import Problem
from specbench.tasks.task import RESERVED_SEEDS, Task
from specbench.training.schedule import MAX_PROMPT_TOKENS, warm_up_cosine
from specbench.words import meant, shown

BASELINES = {
    "batch": "the mean of the step, as in REINFORCE++",
    "group": "the mean of the roll-outs of the same prompt",
    "ema": "a running mean over steps",
}


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained; the names are those of the options of ``specbench train``.

    Attributes:
        head_kind: Key of ``specbench.heads.registry.KINDS``.
        steps: Sets of roll-outs.
        prompts_per_step: Prompts in a set.
        rollouts: Texts per prompt.
        rollout_parts: Parts that a set is decoded in, each with draws of its own; as many workers
            can share a set. It decides the draws, the workers do not.
        epochs_per_rollout: Passes over a set.
        learning_rate: Adam's, after a short warm-up and before a cosine to zero.
        acceptance_weight: lambda, what acceptance is worth in reward.
        target_acceptance: Mean acceptance to reach; lambda, then a multiplier that starts at
            ``acceptance_weight``, is adjusted until it is reached. None keeps lambda as it is.
        baseline: Key of ``BASELINES``: what a text's gain is compared with.
        kl_weight: Price of a nat that v moves away from the untrained head's.
        initial_weight: w of the untrained head, above 0 and below 1. The release starts at 0.5;
            where half-way texts earn next to nothing, a strict start lets rewards be seen.
        max_prompt_tokens: Longer prompts are cut inside their passage; the paper's limit.
        seed: Seed of examples and draws.

    Raises:
        UsageError: A value is out of range.
    """

    head_kind: str = LINEAR
    steps: int = 60
    prompts_per_step: int = 16
    rollouts: int = 8
    rollout_parts: int = 1
    epochs_per_rollout: int = 4
    learning_rate: float = 0.01
    acceptance_weight: float = 0.4
    target_acceptance: float | None = None
    baseline: str = "group"
    kl_weight: float = 0.0
    initial_weight: float = 0.5
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (
            "steps",
            "prompts_per_step",
            "rollouts",
            "epochs_per_rollout",
            "max_prompt_tokens",
        )
        for name in counts:
            self._require(name, getattr(self, name) >= 1, "1 or more")
        parted = 1 <= self.rollout_parts <= self.prompts_per_step
        prompts = f"from 1 to the {self.prompts_per_step} prompts of a step"
        self._require("rollout_parts", parted, prompts)
        reserved = f"from 0 to {RESERVED_SEEDS - 1}"
        self._require("seed", 0 <= self.seed < RESERVED_SEEDS, reserved)
        self._require("learning_rate", 0 < self.learning_rate < math.inf, "above 0")
        for name in ("acceptance_weight", "kl_weight"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "0 or more")
        self._require("initial_weight", 0 < self.initial_weight < 1, "between 0 and 1")
        wish = self.target_acceptance
        self._require("target_acceptance", wish is None or 0 < wish < 1, "between 0 and 1")
        # A multiplier that starts at 0 would stay there.
        priced = wish is None or self.acceptance_weight > 0
        self._require("acceptance_weight", priced, "above 0 with a target acceptance")
        for name, known in (("head_kind", KINDS), ("baseline", BASELINES)):
            self._require(name, getattr(self, name) in known, f"one of {', '.join(known)}")
        group = self.baseline == "group"
        texts = self.rollouts if group else self.prompts_per_step * self.rollouts
        self._require("rollouts", texts > 1, "2 or more" + " with the group baseline" * group)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step counted from 0: warm-up, then a cosine to zero."""
        return self.learning_rate * warm_up_cosine(step, self.steps)

    def _require(self, name: str, fulfilled: bool, permitted: str) -> None:
        if not fulfilled:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} must be {permitted}, not {getattr(self, name)}")


def head_recipe(pair: PairSpec, task: Task, given: Mapping[str, Any]) -> HeadRecipe:
    """Return the recipe for a pair and a task.

    What the user gave goes before the pair's ``[<pair>.training]`` in ``pairs.toml``, that before
    the task's ``[training]`` in its file, and that before the usual values.

    Args:
        pair: The pair.
        task: The task.
        given: Values by name; None means not given.

    Raises:
        UsageError: A value out of range, or an unknown name or a wrong type in one of the files.
    """
    for problem in wrong_training(task.training):
        raise UsageError(f"{task.path}: {problem}")
    for problem in wrong_training(pair.training, task.training):
        raise UsageError(f"{pair.file}: {pair.name}.{problem}")
    chosen = {name: value for name, value in given.items() if value is not None}
    return HeadRecipe(**{**task.training, **pair.training, **chosen})


def wrong_training(
    training: Mapping[str, Any], beneath: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Problem]:
    """Find unknown names, values of the wrong type, and the first value out of range.

    Args:
        training: The ``training`` table of a file.
        beneath: Values that hold where it has none, before the usual ones.
    """
    # Where the default is None, the value is a number.
    known = {f.name: float if f.default is None else type(f.default) for f in fields(HeadRecipe)}
    sound: dict[str, Any] = {}
    for name, value in training.items():
        if name not in known:
            yield Problem(f"training.{name}", f"unknown key; {meant(name, known)}")
        # Exact types: to isinstance, true is an integer.
        elif type(value) is not known[name] and (type(value), known[name]) != (int, float):
            kind = {str: "a string", int: "an integer", float: "a number"}[known[name]]
            yield Problem(f"training.{name}", f"must be {kind}, not {shown(repr(value))}")
        else:
            sound[name] = value
    try:
        HeadRecipe(**{**beneath, **sound})
    except UsageError as error:
        option, _, what = str(error).partition(" ")
        yield Problem(f"training.{option[2:].replace('-', '_')}", what)
