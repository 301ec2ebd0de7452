"""The subcommands, each loaded when it is called.

The help of ``specbench`` needs no more of a command than a line, and loading all of them would take
longer than everything else that it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Listed(NamedTuple):
    """What is known of a command before it is loaded."""

    module: str
    purpose: str  # the first line of its docstring
    example: str  # a command line


#: Command ``a-b`` is the function ``a_b`` of its module, or the module's ``app`` of several.
COMMANDS = {
    "run": Listed(
        "run",
        "Measure methods on tasks: quality, acceptance and speed, interleaved in one run.",
        "run -m sd,static --weight 0.7 -t mini-math",
    ),
    "sweep-weights": Listed(
        "run",
        "Measure the static ensemble at each weight, with the methods to compare it with.",
        "sweep-weights --draft-length 3,5,7",
    ),
    "sweep": Listed(
        "run",
        "Measure methods at each value of a parameter, with the methods to compare them with.",
        "sweep --parameter budget --values 0.01,0.1",
    ),
    "train": Listed(
        "train",
        "Train DIVERSED heads: for each task, a weight on the target at every token.",
        "train --task mini-math --target-acceptance 0.85",
    ),
    "finetune-draft": Listed(
        "train",
        "Fine-tune a pair's draft on a task's training split, for `run --draft FOLDER`.",
        "finetune-draft --task mini-math",
    ),
    "transfer": Listed(
        "run",
        "Measure every head on every task, with sd as the row without a head.",
        "transfer --limit 100",
    ),
    "suite": Listed(
        "suite",
        "Carry out a file of runs: train the heads, then measure, each run in a folder of its own.",
        "suite paper --dry-run",
    ),
    "score": Listed(
        "runs",
        "Score the texts of a finished run again; no model and no data are needed.",
        "score results/my-run --metric rouge1,rougeL",
    ),
    "bench": Listed(
        "bench",
        "Time methods on engines: parts of a round, tokens/s, share of the bandwidth limit.",
        "bench --batch-size 1,8 --acceptance 0.6,0.8",
    ),
    "check": Listed(
        "check",
        "Check that a pair is decoded as the methods say; exit code 1 where it is not.",
        "check --pair mini -m sd,diversed",
    ),
    "compare": Listed(
        "tables",
        "Compare methods with SD, and with the static front at equal acceptance, time and quality.",
        "compare results/reference --at quality",
    ),
    "plot": Listed(
        "plot",
        "Draw a figure of finished runs or of heads, as PNG, SVG and PDF, with its data as CSV.",
        "plot pareto results/reference",
    ),
    "theory": Listed(
        "tables",
        "Print what theory predicts of finished runs beside what was measured, with differences.",
        "theory results/my-run --front-gap 20",
    ),
    "table": Listed(
        "tables",
        "Print the paper's main table from finished runs: methods down, tasks across.",
        "table results/my-run --against paper",
    ),
    "summary": Listed(
        "tables",
        "Put the tables of finished runs into one, with every figure and its 95 % interval.",
        "summary results/ --output all.parquet",
    ),
    "trace": Listed(
        "runs",
        "Show one sample token by token: agreed, mismatched, rejected and corrected tokens.",
        "trace results/my-run --sample test-0 -m sd",
    ),
    "report": Listed(
        "runs",
        "Make one HTML file of finished runs: table, figures, traces and how to run it again.",
        "report results/my-run --output report.html",
    ),
    "list": Listed(
        "list",
        "List methods, pairs, tasks or columns of tables, with descriptions.",
        "list methods",
    ),
    "pairs": Listed(
        "pairs", "Retrain a bundled pair from its recipe.", "pairs build mini --part heads"
    ),
}


class Commands(TyperGroup):
    """The group of all subcommands: a line of each, and the whole of the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        """Know what help, completion and suggestions show; these cannot be called."""
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=listed.purpose) for name, listed in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command that is called, itself and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(command.name)), rest


def load(name: str) -> Any:
    """Return a command with all its options."""
    plain = name.replace("-", "_")
    known = vars(import_module(f"{__package__}.{COMMANDS[name].module}"))
    app = known.get("app")
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        example = f"Example: [bold]specbench {COMMANDS[name].example}[/bold]"
        # What would hide a builtin ends in a line.
        app.command(name, epilog=example)(known.get(plain) or known[f"{plain}_"])
    command = typer.main.get_command(app)
    command.name = name
    return command
