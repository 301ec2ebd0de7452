"""How many examples are decoded, and how."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any

import typer

from specbench.cli.choices import parse_numbers
from specbench.cli.options.common import completer
from specbench.engine.settings import AUTO, ENGINES
from specbench.errors import UsageError
from specbench.example import FORMATS
from specbench.experiment.plan import DEFAULT_LIMIT
from specbench.experiment.settings import PRESETS, USUAL, Preset, Settings

_option: Any = partial(typer.Option, rich_help_panel="Sampling")

Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        help="Examples per task.",
        show_default=f"{DEFAULT_LIMIT} of a task, all of a prompt file",
    ),
]

PresetName = Annotated[
    str | None,
    _option(
        "--preset",
        metavar="NAME",
        help="Settings under one name: "
        + "; ".join(f"{name}, {preset}" for name, preset in PRESETS.items())
        + ". What is typed goes before it.",
        show_default=False,
        autocompletion=completer(lambda: PRESETS),
    ),
]

Temperature = Annotated[
    float | None,
    _option(
        "--temperature",
        help="0 is greedy.",
        show_default=f"{USUAL.temperature:g}",
    ),
]

TopK = Annotated[
    int | None,
    _option(
        "--top-k",
        help="Sample from the k likeliest tokens.",
        show_default="off",
    ),
]

TopP = Annotated[
    float | None,
    _option(
        "--top-p",
        help="Sample from the likeliest tokens that hold this probability together.",
        show_default="off",
    ),
]

DraftLengths = Annotated[
    str | None,
    _option(
        "--draft-length",
        metavar="N[,N...]",
        help="Tokens drafted per round; each of several is measured.",
        show_default=USUAL.draft_length,
    ),
]

MaxNewTokens = Annotated[
    int | None,
    _option(
        "--max-new-tokens",
        help="Longest answer.",
        show_default="the task's own",
    ),
]

MaxPromptTokens = Annotated[
    int | None,
    _option(
        "--max-prompt-tokens",
        help="Longest prompt; a longer one is cut at the end of its article.",
        show_default="what the models take",
    ),
]

PromptFormat = Annotated[
    str | None,
    _option(
        "--prompt-format",
        metavar="FORMAT",
        help="chat puts the prompt into the model's own template, plain gives it as it is.",
        show_default="the task's own",
        autocompletion=completer(lambda: FORMATS),
    ),
]

Seed = Annotated[
    int,
    _option("--seed", help="Decides the examples and every draw."),
]

EngineName = Annotated[
    str,
    _option(
        "--engine",
        metavar="NAME",
        help="eager runs a round as it is written; graph captures its parts in CUDA graphs; "
        "compile makes code of it, which takes one to three minutes per method the first time, is "
        "kept on disk, and then halves the time on a CPU. auto is graph on a GPU, else eager.",
        autocompletion=completer(lambda: (AUTO, *ENGINES)),
    ),
]

EngineFallback = Annotated[
    bool,
    _option(
        "--engine-fallback",
        help="Where a graph cannot be captured, say so and go on eagerly instead of stopping.",
    ),
]

BatchSize = Annotated[
    int,
    _option(
        "--batch-size",
        metavar="B",
        help="Texts decoded side by side. A text has the same draws in any batch, and is the same "
        "text but for rounding: rarely another in float32, at times in bfloat16. Its time is its "
        "share.",
    ),
]

Repeats = Annotated[
    int,
    _option(
        "--repeats",
        help="Times each example is decoded, with fresh draws.",
    ),
]


@dataclass(frozen=True)
class Sampling:
    """How each example is decoded."""

    limit: Limit = None
    preset: PresetName = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    draft_length: DraftLengths = None
    max_new_tokens: MaxNewTokens = None
    max_prompt_tokens: MaxPromptTokens = None
    prompt_format: PromptFormat = None
    seed: Seed = 0
    repeats: Repeats = 1
    engine: EngineName = AUTO
    engine_fallback: EngineFallback = False
    batch_size: BatchSize = 1

    def chosen(self) -> Preset:
        """Return what was typed, and where nothing was, what the preset says."""
        if self.preset is None:
            named = USUAL
        elif self.preset in PRESETS:
            named = PRESETS[self.preset]
        else:
            raise UsageError(f"no --preset {self.preset!r}: choose one of {', '.join(PRESETS)}")
        typed = {field.name: getattr(self, field.name) for field in fields(Preset)}
        return replace(named, **{name: v for name, v in typed.items() if v is not None})

    def draft_lengths(self) -> list[int]:
        """Return the numbers of tokens to draft per round."""
        return parse_numbers("--draft-length", self.chosen().draft_length, int)

    def settings(self) -> Settings:
        """Return what all cells of a run share."""
        chosen = self.chosen()
        return Settings(
            temperature=chosen.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            repeats=self.repeats,
            max_new_tokens=chosen.max_new_tokens,
            max_prompt_tokens=chosen.max_prompt_tokens,
            prompt_format=self.prompt_format,
            engine=self.engine,
            engine_fallback=self.engine_fallback,
            batch_size=self.batch_size,
        )
