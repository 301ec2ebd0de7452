"""How a head is trained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from specbench.cli.choices import parse_numbers
from specbench.cli.options.common import completer
from specbench.heads.registry import KINDS
from specbench.training.recipe import BASELINES

RECIPE = "Recipe (by default that of the pair and the task)"


def _number(name: str, text: str) -> typer.models.OptionInfo:
    """An option of the recipe."""
    option: typer.models.OptionInfo = typer.Option(
        name, help=text, show_default=False, rich_help_panel=RECIPE
    )
    return option


@dataclass(frozen=True)
class Recipe:
    """What the user changes of the recipe; the names are those of ``HeadRecipe``."""

    head_kind: Annotated[
        str | None,
        typer.Option(
            "--head-kind",
            metavar="KIND",
            help="; ".join(f"{name}: {text}" for name, text in KINDS.items()) + ".",
            show_default=False,
            autocompletion=completer(lambda: KINDS),
            rich_help_panel=RECIPE,
        ),
    ] = None
    steps: Annotated[int | None, _number("--steps", "Sets of roll-outs.")] = None
    prompts_per_step: Annotated[int | None, _number("--prompts-per-step", "Prompts in a set.")] = (
        None
    )
    rollouts: Annotated[int | None, _number("--rollouts", "Texts per prompt.")] = None
    rollout_parts: Annotated[
        int | None,
        _number(
            "--rollout-parts",
            "Parts that a set is decoded in, each with draws of its own: as many --workers can "
            "share it.",
        ),
    ] = None
    epochs_per_rollout: Annotated[
        int | None, _number("--epochs-per-rollout", "Passes over a set.")
    ] = None
    learning_rate: Annotated[float | None, _number("--learning-rate", "Adam's, at its peak.")] = (
        None
    )
    acceptance_weight: Annotated[
        float | None, _number("--acceptance-weight", "lambda: what acceptance is worth in reward.")
    ] = None
    target_acceptance: Annotated[
        str | None,
        typer.Option(
            "--target-acceptance",
            metavar="A[,A...]",
            help="Adjust lambda until held-out acceptance per position (a run's "
            "expected_acceptance) is this; several train a family of heads.",
            show_default=False,
            rich_help_panel=RECIPE,
        ),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="What a text's gain is compared with: "
            + "; ".join(f"{name}, {text}" for name, text in BASELINES.items())
            + ".",
            show_default=False,
            autocompletion=completer(lambda: BASELINES),
            rich_help_panel=RECIPE,
        ),
    ] = None
    kl_weight: Annotated[
        float | None, _number("--kl-weight", "Price of a nat away from the untrained head.")
    ] = None
    max_prompt_tokens: Annotated[
        int | None, _number("--max-prompt-tokens", "Longest prompt; a longer one is cut.")
    ] = None
    initial_weight: Annotated[
        float | None, _number("--initial-weight", "w of the untrained head.")
    ] = None
    seed: Annotated[int | None, _number("--seed", "Decides the examples and every draw.")] = None

    def given(self) -> dict[str, Any]:
        """Return the values by name but for the target acceptance; None where nothing was typed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["target_acceptance"]
        return values

    def wishes(self) -> list[float | None]:
        """Return the target acceptances, None where there is none: a head for each."""
        if self.target_acceptance is None:
            return [None]
        return [*parse_numbers("--target-acceptance", self.target_acceptance, float)]
