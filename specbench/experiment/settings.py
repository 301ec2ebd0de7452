"""What all cells of a run share, and the settings that go by a name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specbench.engine.settings import AUTO, ENGINES
from specbench.errors import UsageError
from specbench.example import FORMATS

LOWEST_TEMPERATURE = 1e-5  # what it would sharpen below is rounding, and 1e-46 is 0 in float32


@dataclass(frozen=True)
class Settings:
    """What all cells of a run share.

    Attributes:
        temperature: 0 is greedy; any other is at least ``LOWEST_TEMPERATURE``.
        top_k: Keep the k likeliest tokens; None keeps all.
        top_p: Keep the likeliest tokens of this mass in total; None keeps all.
        seed: Decides the examples and every draw.
        repeats: Times each example is decoded by each cell, with fresh draws.
        max_new_tokens: Limit of an answer; None takes each task's own.
        max_prompt_tokens: Longer prompts are cut inside their passage; None cuts none.
        prompt_format: One of ``FORMATS``; None takes each task's own.
        engine: ``auto``, or one of ``ENGINES``: rounds as they are written, compiled or captured.
        engine_fallback: Go on eagerly where capturing fails.
        batch_size: Texts decoded side by side.

    Raises:
        UsageError: A value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repeats: int = 1
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None
    prompt_format: str | None = None
    engine: str = AUTO
    engine_fallback: bool = False
    batch_size: int = 1

    def __post_init__(self) -> None:
        require_temperature(self.temperature)
        require(
            self.top_p is None or 0 < self.top_p <= 1,
            f"--top-p must be above 0 and at most 1, not {self.top_p}",
        )
        require(
            self.prompt_format in (None, *FORMATS),
            f"--prompt-format cannot be {self.prompt_format!r}: choose {' or '.join(FORMATS)}",
        )
        require(
            self.engine in (AUTO, *ENGINES),
            f"--engine cannot be {self.engine!r}: choose {', '.join((AUTO, *ENGINES))}",
        )
        require_at_least(1, "--top-k", self.top_k)
        require_at_least(0, "--seed", self.seed)
        require_at_least(1, "--repeats", self.repeats)
        require_at_least(1, "--batch-size", self.batch_size)
        require_at_least(1, "--max-new-tokens", self.max_new_tokens)
        require_at_least(1, "--max-prompt-tokens", self.max_prompt_tokens)


@dataclass(frozen=True)
class Preset:
    """Values of options under one name; an option that is typed goes before it.

    Attributes:
        temperature: As in ``Settings``.
        draft_length: Tokens drafted per round, a comma list.
        limit: Examples per task; None takes the usual number.
        max_new_tokens: As in ``Settings``.
        max_prompt_tokens: As in ``Settings``.
    """

    temperature: float = 1.0
    draft_length: str = "5"
    limit: int | None = None
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.limit} examples, at most {self.max_new_tokens} new and "
            f"{self.max_prompt_tokens} prompt tokens, N = {self.draft_length}, "
            f"T = {self.temperature:g}"
        )


USUAL = Preset()
PRESETS = {
    # Section 5 and appendix of DIVERSED (arXiv:2604.07622).
    "paper": Preset(1.0, "5", limit=100, max_new_tokens=128, max_prompt_tokens=2048)
}


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def require_temperature(temperature: float) -> None:
    """Raise ``UsageError`` unless a temperature is 0 or a number that can be sampled at."""
    require(
        temperature == 0 or LOWEST_TEMPERATURE <= temperature < math.inf,
        f"--temperature must be 0 or more, and above 0 at least {LOWEST_TEMPERATURE:g}, not "
        f"{temperature:g}",
    )


def require_at_least(low: int, option: str, value: int | None) -> None:
    """Raise ``UsageError`` where a number is given and too low."""
    require(value is None or value >= low, f"{option} must be {low} or more, not {value}")
