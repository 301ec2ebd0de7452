"""The options of the commands, each written once: same name, help and default everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.experiment.plan import DEFAULT_DRAFT_LENGTH, DEFAULT_LIMIT
from specbench.experiment.variants import ANCHORS, WEIGHTS
from specbench.methods.registry import METHODS
from specbench.metrics import METRICS
from specbench.pairs.registry import pairs
from specbench.tasks.task import task_names

ALL = "all"
DEFAULT_PAIR = "mini"
REFERENCE_METRICS = [metric.name for metric in METRICS.values() if metric.needs == "reference"]


def numbers(values: Iterable[float]) -> str:
    """Write numbers as a comma list."""
    return ",".join(f"{value:g}" for value in values)


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes the last name of a comma list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


def _rule_option(method: str, name: str) -> Any:
    """An option for a rule's parameter, with the help and the default of the registry."""
    entries = [known for known in METHODS[method].parameters if known.name == name]
    first = entries[0]
    several = "; range and default depend on the rule, see `specbench list methods`"
    return typer.Option(
        f"--{name}",
        help=f"{method}: {first.help if len(entries) == 1 else name + several}.",
        show_default=False if first.default is None else f"{first.default}",
        autocompletion=completer(lambda: first.choices),
        rich_help_panel="Parameters of methods",
    )


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help=f"Methods to measure; repeat or separate by commas: {', '.join(METHODS)}, or all.",
        show_default=ALL,
        autocompletion=completer(lambda: [*METHODS, ALL]),
    ),
]
Anchors = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="Methods to measure beside the weights; repeat or separate by commas, or all.",
        show_default=",".join(ANCHORS),
        autocompletion=completer(lambda: [*METHODS, ALL]),
    ),
]
Weights = Annotated[
    str,
    typer.Option("--weights", metavar="W[,W...]", help="Weights on the target, from 0 to 1."),
]
DEFAULT_WEIGHTS = numbers(WEIGHTS)
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        "-t",
        metavar="NAME",
        help="Tasks, or TOML files of tasks; repeat or separate by commas, or all.",
        show_default=ALL,
        autocompletion=completer(lambda: [*task_names(), ALL]),
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help="Instead of tasks: a .jsonl, .csv or .txt file with a `prompt` column and, to "
        "measure quality too, a `reference`.",
        show_default=False,
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help=f"How answers to --prompts are scored: {', '.join(REFERENCE_METRICS)}.",
        show_default="rouge2 where there are references",
        autocompletion=completer(lambda: REFERENCE_METRICS),
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        help="Examples per task.",
        show_default=f"{DEFAULT_LIMIT} of a bundled task, all of a file",
    ),
]

Pair = Annotated[
    str | None,
    typer.Option(
        "--pair",
        metavar="NAME",
        help=f"Target and draft by one name: {', '.join(pairs())}.",
        show_default=DEFAULT_PAIR,
        autocompletion=completer(pairs),
        rich_help_panel="Models",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="ID_OR_FOLDER",
        help="Instead of a pair: the target model, a Hugging Face id or a folder.",
        show_default=False,
        rich_help_panel="Models",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="ID_OR_FOLDER",
        help="The draft that goes with --target, or one in the place of the pair's own.",
        show_default=False,
        rich_help_panel="Models",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one.",
        rich_help_panel="Models",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="float32, bfloat16 or float16; auto suits pair and device.",
        rich_help_panel="Models",
    ),
]

Temperature = Annotated[
    float,
    typer.Option("--temperature", help="0 is greedy.", rich_help_panel="Sampling"),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        help="Sample from the k likeliest tokens.",
        show_default="off",
        rich_help_panel="Sampling",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        help="Sample from the likeliest tokens that hold this probability together.",
        show_default="off",
        rich_help_panel="Sampling",
    ),
]
DraftLengths = Annotated[
    str,
    typer.Option(
        "--draft-length",
        metavar="N[,N...]",
        help="Tokens drafted per round; each of several is measured.",
        rich_help_panel="Sampling",
    ),
]
DEFAULT_DRAFT_LENGTHS = str(DEFAULT_DRAFT_LENGTH)
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        help="Longest answer.",
        show_default="the task's own",
        rich_help_panel="Sampling",
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", help="Decides the examples and every draw.", rich_help_panel="Sampling"),
]
Repeats = Annotated[
    int,
    typer.Option(
        "--repeats",
        help="Times each example is decoded, with fresh draws.",
        rich_help_panel="Sampling",
    ),
]

Weight = Annotated[float | None, _rule_option("static", "weight")]
Lenience = Annotated[float | None, _rule_option("lossy", "lenience")]
Rule = Annotated[str | None, _rule_option("speccascade", "rule")]
Alpha = Annotated[float | None, _rule_option("speccascade", "alpha")]
Head = Annotated[list[str] | None, _rule_option("diversed", "head")]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder to write, new or empty.",
        show_default="results/<time>-<command>-<pair>",
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
