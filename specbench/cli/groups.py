"""Options that belong together, as dataclasses: a command takes a group, its user types options.

A field of a group is an option of ``options.py``; a method turns what was typed into what the
command works with. Adding an option to every measuring command is adding a field here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from specbench.cli import options as o
from specbench.cli.choices import choose_heads, choose_pair, choose_tasks, parse_numbers
from specbench.experiment.plan import Settings
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import Task


@dataclass(frozen=True)
class Models:
    """Which models, and how they are loaded."""

    pair: o.Pair = None
    target: o.Target = None
    draft: o.Draft = None
    device: o.Device = "auto"
    dtype: o.Dtype = "auto"

    def spec(self) -> PairSpec:
        """Return the pair the user means."""
        return choose_pair(self.pair, self.target, self.draft)

    def typed(self) -> list[str]:
        """Return the options that name the pair, to be typed again in another command."""
        named = {"--pair": self.pair, "--target": self.target, "--draft": self.draft}
        return [part for name, value in named.items() if value for part in (name, value)]


@dataclass(frozen=True)
class Tasks:
    """Which tasks, and where their examples come from."""

    task: o.Tasks = None

    def tasks(self) -> list[Task]:
        """Return the tasks the user means."""
        return choose_tasks(self.task, None, None)


@dataclass(frozen=True)
class Prompts(Tasks):
    """Tasks, or a file of prompts in their place."""

    prompts: o.Prompts = None
    metric: o.MetricName = None

    def tasks(self) -> list[Task]:
        """Return the tasks the user means, or the one made of the prompt file."""
        return choose_tasks(self.task, self.prompts, self.metric)


@dataclass(frozen=True)
class Sampling:
    """How each example is decoded."""

    temperature: o.Temperature = 1.0
    top_k: o.TopK = None
    top_p: o.TopP = None
    draft_length: o.DraftLengths = o.DEFAULT_DRAFT_LENGTHS
    max_new_tokens: o.MaxNewTokens = None
    seed: o.Seed = 0
    repeats: o.Repeats = 1

    def draft_lengths(self) -> list[int]:
        """Return the numbers of tokens to draft per round."""
        return parse_numbers("--draft-length", self.draft_length, int)

    def settings(self, models: Models) -> Settings:
        """Return what all cells of a run share."""
        return Settings(
            self.temperature,
            self.top_k,
            self.top_p,
            self.seed,
            self.repeats,
            models.device,
            models.dtype,
        )


@dataclass(frozen=True)
class Rules:
    """Parameters of the rules, but for the weight, which ``sweep-weights`` goes through."""

    lenience: o.Lenience = None
    rule: o.Rule = None
    alpha: o.Alpha = None
    head: o.Head = None

    def given(self) -> dict[str, Any]:
        """Return the parameters by name, as typed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"head": choose_heads(self.head)}


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Put the fields of its groups in the place of a command's parameters that are groups.

    Typer reads a command's options from its signature, so the function returned has one parameter
    per option; what is typed is gathered into the groups again before ``function`` is called.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += _options(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**typed: Any) -> None:
        for name, group in groups.items():
            typed[name] = group(**{field.name: typed.pop(field.name) for field in fields(group)})
        function(**typed)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
