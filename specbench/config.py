"""Options; each field defines its type, default, bounds and help once.

Command-line options (``specbench.cli.options``), their validation and ``config.json`` are derived
from such models. Those of sampling and drafting are here, and the rooms declare the others. Nothing
here imports PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specbench.errors import none_of
from specbench.schema import StrictModel, quoted, refusal

EngineName = Literal["auto", "eager", "compile", "graph", "llamacpp"]
ENGINES: tuple[str, ...] = get_args(EngineName)
AUTO, EAGER, COMPILE, GRAPH, LLAMACPP = ENGINES  # the last runs GGUF files, and nothing else does
TRANSFORMERS = "transformers"  # the engine of Transformers' own loops
LOWEST_TEMPERATURE = 1e-5  # lower ones only amplify rounding errors; 1e-46 is 0 in float32
DRAFT_LENGTH = 5

Group = TypeVar("Group", bound="Options")


def option(
    default: Any,
    help: str,
    *,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    shown: str | None = None,
    choices: Iterable[str] = (),
    complete: Callable[[], Iterable[str]] | None = None,
    panel: str | None = None,
    repeats: bool = False,
    whole: bool = False,
    needs: Mapping[str, str] = {},
    conflicts: Mapping[str, str] = {},
    **bounds: Any,
) -> Any:
    """Return a field that is a command-line option.

    Args:
        default: Default value.
        help: One sentence for the user.
        flags: Option names; by default derived from the field's name.
        metavar: Placeholder for the value in the help.
        shown: Replaces the default in the help, if None has a meaning.
        choices: Allowed values, or allowed items of a list; listed in the help.
        complete: Returns names for shell completion; by default the choices.
        panel: Help panel; by default the group's panel.
        repeats: Whether a name that is given twice counts twice.
        whole: Whether commas are part of a value, which is then given once per option.
        needs: Fields without which the option means nothing, each with the refusal, in which ``{}``
            stands for the option.
        conflicts: Fields that exclude the option, in the same way.
        **bounds: Bounds for pydantic's ``Field``.
    """
    if choices:
        help = f"{help} One of {', '.join(choices)}.".strip()
    cli: Any = {"flags": flags, "metavar": metavar, "shown": shown, "panel": panel, "whole": whole}
    cli |= {"choices": tuple(choices), "complete": complete, "repeats": repeats}
    cli |= {"needs": needs, "conflicts": conflicts}
    return Field(default, description=help, json_schema_extra=cli, **bounds)


class Options(StrictModel):
    """A group of command-line options with defaults and bounds.

    Raises:
        UsageError: A value is not allowed; the message names the option.
    """

    # Most groups are only shown in help and never instantiated.
    model_config = ConfigDict(defer_build=True)

    panel: ClassVar[str] = "Options"  # help panel

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(type(self), error, name=self._flag) from error

    @field_validator("*")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        choices = cls.about(str(info.field_name)).get("choices")
        for name in value if isinstance(value, list) else [value]:
            if choices and name is not None and name not in choices:
                raise ValueError(none_of(name, choices))
        return value

    @model_validator(mode="after")
    def _go_together(self: Group) -> Group:
        for name in filter(self.has, type(self).model_fields):
            about = self.about(name)
            texts = [text for n, text in about.get("needs", {}).items() if not self.has(n)]
            texts += [text for n, text in about.get("conflicts", {}).items() if self.has(n)]
            for text in texts:
                raise ValueError(text.format(self.flags(name)[0]))
        return self

    def has(self, name: str) -> bool:
        """Return whether a value was given for a field, even if it is the default."""
        is_blank = any(getattr(self, name) is blank for blank in (None, False))
        return name in self.model_fields_set and not is_blank

    @classmethod
    def about(cls, name: str) -> dict[str, Any]:
        """Return the command-line metadata of a field, as given to ``option``."""
        extra: Any = cls.model_fields[name].json_schema_extra
        return extra or {}

    @classmethod
    def flags(cls, name: str) -> tuple[str, ...]:
        """Return the option names of a field, the long one first."""
        return cls.about(name).get("flags") or (f"--{name.replace('_', '-')}",)

    @classmethod
    def ordered_fields(cls) -> list[str]:
        """Return the fields in help order: own fields before inherited ones."""
        return sorted(cls.model_fields, key=lambda name: cls.__mro__.index(cls.owner(name)))

    @classmethod
    def owner(cls, name: str) -> Any:
        """Return the group that defines a field."""
        bases = reversed(cls.__mro__)
        return next(base for base in bases if name in getattr(base, "model_fields", ()))

    @classmethod
    def _flag(cls, key: str) -> str:
        name = key.partition("[")[0]
        return cls.flags(name)[0] if name in cls.model_fields else quoted(key)

    def part(self, group: type[Group]) -> Group:
        """Return the subset of options that belong to a group."""
        return group(**{name: getattr(self, name) for name in group.model_fields})

    def updated(self: Group, **values: Any) -> Group:
        """Return a copy with some values replaced; replaced values count as typed."""
        typed = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(typed | values))

    def retyped(self) -> list[str]:
        """Return the options that differ from their defaults as command-line arguments."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in self.ordered_fields()}
        return self.arguments({n: v for n, v in values.items() if v != fields[n].default})

    @classmethod
    def arguments(cls, values: Mapping[str, Any]) -> list[str]:
        """Return values by field as command-line arguments."""
        parts: list[str] = []
        for name, value in values.items():
            flag = cls.flags(name)[0]
            for element in value if isinstance(value, list) else [value]:
                parts += [flag] if element is True else [flag, str(element)]
        return parts


def _finite(temperature: float) -> float:
    if temperature != 0 and not LOWEST_TEMPERATURE <= temperature < math.inf:
        raise ValueError(
            f"must be 0 or more, and above 0 at least {LOWEST_TEMPERATURE:g}, not {temperature:g}"
        )
    return temperature


Temperature = Annotated[float, AfterValidator(_finite)]
Count = Annotated[int, Field(ge=1)]


class Filters(Options):
    """Which tokens may be sampled."""

    panel = "Sampling"

    top_k: int | None = option(None, "Sample from the k likeliest tokens.", ge=1, shown="off")
    top_p: float | None = option(
        None, "Sample from the likeliest tokens of this probability.", gt=0, le=1, shown="off"
    )
    min_p: float | None = option(
        None, "Drop tokens below this share of the likeliest token's.", gt=0, le=1, shown="off"
    )


class OneTemperature(Options):
    """The temperature of all texts."""

    temperature: Temperature = option(1.0, "0 is greedy.")


class SamplingOptions(OneTemperature, Filters):
    """How to turn logits into a sampling distribution."""


class Seeded(Options):
    """The seed of all random numbers."""

    seed: int = option(
        0, "Random seed for choosing prompts and for sampling.", ge=0, le=2**53, panel="Sampling"
    )


class DraftLength(Options):
    """How many tokens a round drafts."""

    draft_length: int = option(DRAFT_LENGTH, "Tokens drafted per round.", ge=1, metavar="N")


class DraftLengths(Options):
    """How many tokens a round drafts, for several settings."""

    draft_length: list[Count] = option(
        [DRAFT_LENGTH],
        "Tokens drafted per round; several values are all measured.",
        metavar="N[,N...]",
    )
