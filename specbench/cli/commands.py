"""The subcommands; each is imported when it is called.

``specbench --help`` shows one line per command. Importing all commands would dominate its time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

HELP: Any = {"help_option_names": ["-h", "--help"]}


class Listed(NamedTuple):
    """What is known about a command before it is imported."""

    module: str
    panel: str  # the group of commands in help
    purpose: str  # the first line of its docstring
    example: str  # a command line


#: Command ``a-b`` is the function ``a_b`` of its module.
COMMANDS = {
    "run": Listed(
        "run",
        "Measure",
        "Measure methods, servers or both on tasks, interleaved: quality, acceptance and speed.",
        "run -m sd,static --set weight=0.7 -t mini-math",
    ),
    "sweep-weights": Listed(
        "run",
        "Measure",
        "Measure the static ensemble at each weight, together with baseline methods.",
        "sweep-weights --draft-length 3,5,7",
    ),
    "decide": Listed(
        "decide",
        "Measure",
        "Decide whether to speculate: with which drafter, how many drafts, up to which batch.",
        "decide --pair python -t python-line -n 100",
    ),
    "price": Listed(
        "price",
        "Measure",
        "Price drafting without decoding: tokens per round for every N, drafter and policy.",
        "price --pair mini -t mini-math -n 100",
    ),
    "bench": Listed(
        "bench",
        "Measure",
        "Time methods on engines: time per round by part, tokens/s, share of the bandwidth limit.",
        "bench --batch-size 1,8 --acceptance 0.6,0.8",
    ),
    "serve": Listed(
        "servers",
        "Measure",
        "Start vLLM with a pair; rules of specbench verify the drafts.",
        "serve --pair mini -m static --set weight=0.5 --dry-run",
    ),
    "table": Listed(
        "tables",
        "Inspect",
        "Print the paper's main table from finished runs: methods as rows, tasks as columns.",
        "table results/my-run --paper",
    ),
    "compare": Listed(
        "tables",
        "Inspect",
        "Compare methods with SD and with the static front: a verdict per task and method.",
        "compare results/reference --at quality",
    ),
    "plot": Listed(
        "plot",
        "Inspect",
        "Draw a figure of finished runs or heads as PNG, SVG and PDF, with its data as CSV.",
        "plot pareto results/reference",
    ),
    "trace": Listed(
        "runs",
        "Inspect",
        "Show one sample token by token: agreed, mismatched, rejected and corrected tokens.",
        "trace results/my-run -t mini-math -m diversed",
    ),
    "report": Listed(
        "runs",
        "Inspect",
        "Write one HTML file about finished runs: tables, figures, traces, commands.",
        "report results/my-run --output report.html",
    ),
    "check": Listed(
        "check",
        "Validate",
        "Check that a pair is decoded correctly; the exit code is 1 if it is not.",
        "check --pair mini -m sd,diversed",
    ),
    "audit": Listed(
        "audit",
        "Validate",
        "Test whether a decoder that is not specbench's has a fault; the exit code is 1 if it has.",
        "audit --decoder transformers",
    ),
    "verify": Listed(
        "runs",
        "Validate",
        "Check that a run's files follow from its samples, and decode some samples again.",
        "verify results/reference -n 1",
    ),
    "score": Listed(
        "runs",
        "Validate",
        "Score the texts of a finished run again, without models or data.",
        "score results/my-run --metric rouge1,rougeL",
    ),
    "train": Listed(
        "train",
        "Train",
        "Train one DIVERSED head per task; it predicts the weight on the target at every token.",
        "train --task mini-math --target-acceptance 0.85",
    ),
    "finetune-draft": Listed(
        "train",
        "Train",
        "Fine-tune the draft on a task's training split, for `run --draft FOLDER`.",
        "finetune-draft --task mini-math",
    ),
    "list": Listed(
        "lookup",
        "Look up",
        "List methods, drafters, pairs, tasks, metrics, figures or columns of tables.",
        "list methods",
    ),
    "docs": Listed(
        "lookup",
        "Look up",
        "Print a page of the documentation, or list the pages with their questions.",
        "docs training",
    ),
}


class Commands(TyperGroup):
    """The group of all subcommands; it imports only the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        """Create placeholder commands for help, completion and suggestions."""
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=listed.purpose, rich_help_panel=listed.panel)
            for name, listed in COMMANDS.items()
        }

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, with no type behind flags in help."""
        return _without_types(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the called command's name, the command and its arguments."""
        name, command, arguments = super().resolve_command(ctx, args)
        return name, command and load(str(command.name)), arguments


def _without_types(parameters: Any) -> Any:
    """Let help show no type behind flags."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def load(name: str) -> Any:
    """Return a command with all its options."""
    plain = name.replace("-", "_")
    contents = vars(import_module(f"{__package__}.{COMMANDS[name].module}"))
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    example = f"Example: [bold]specbench {COMMANDS[name].example}[/bold]"
    # A function whose name would shadow a builtin ends in an underscore.
    app.command(name, epilog=example)(contents.get(plain) or contents[f"{plain}_"])
    command = typer.main.get_command(app)
    command.name = name
    _without_types(command.get_params(typer.Context(command, **HELP)))
    return command
