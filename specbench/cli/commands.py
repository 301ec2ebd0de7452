"""The subcommands; each is imported when it is called.

``specbench --help`` shows one line per command. Importing all commands would dominate its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

HELP: Any = {"help_option_names": ["-h", "--help"]}


class Listed(NamedTuple):
    """What is known about a command before it is imported."""

    module: str
    panel: str  # the group of commands in help
    example: str  # a command line
    purpose: str  # the first line of its docstring


# fmt: off
#: Command ``a-b`` is the function ``a_b`` of its module.
COMMANDS = {
    "run": Listed("run", "Measure", "run -m sd,static --set weight=0.7 -t mini-math",
        "Measure methods, servers or both on tasks, interleaved: quality, acceptance and speed."),
    "sweep-weights": Listed("run", "Measure", "sweep-weights --draft-length 3,5,7",
        "Measure the static ensemble at each weight, together with baseline methods."),
    "decide": Listed("decide", "Measure", "decide --pair python -t python-line -n 100",
        "Decide whether to speculate: with which drafter, how many drafts, up to which batch."),
    "price": Listed("price", "Measure", "price --pair mini -t mini-math -n 100",
        "Price drafting without decoding: tokens per round for every N, drafter and policy."),
    "bench": Listed("run", "Measure", "bench --batch-size 1,8 --acceptance 0.6,0.8",
        "Time methods on engines: time per round by part, tokens/s, share of the bandwidth limit."),
    "serve": Listed("servers", "Measure", "serve --pair mini -m static --set weight=0.5 --dry-run",
        "Start vLLM with a pair; rules of specbench verify the drafts."),
    "table": Listed("tables", "Inspect", "table results/my-run --paper",
        "Print the paper's main table from finished runs: methods as rows, tasks as columns."),
    "compare": Listed("tables", "Inspect", "compare results/reference --at quality",
        "Compare methods with SD and with the static front: a verdict per task and method."),
    "plot": Listed("plot", "Inspect", "plot pareto results/reference",
        "Draw a figure of finished runs or heads as PNG, SVG and PDF, with its data as CSV."),
    "trace": Listed("runs", "Inspect", "trace results/my-run -t mini-math -m diversed",
        "Show one sample token by token: agreed, mismatched, rejected and corrected tokens."),
    "report": Listed("runs", "Inspect", "report results/my-run --output report.html",
        "Write one HTML file about finished runs: tables, figures, traces, commands."),
    "check": Listed("check", "Validate", "check --pair mini -m sd,diversed",
        "Check that a pair, or a server, decodes correctly; the exit code is 1 if it does not."),
    "verify": Listed("runs", "Validate", "verify results/reference -n 1",
        "Check that a run's files follow from its samples, and decode some samples again."),
    "score": Listed("runs", "Validate", "score results/my-run --metric rouge1,rougeL",
        "Score the texts of a finished run again, without models or data."),
    "train": Listed("train", "Train", "train --task mini-math --target-acceptance 0.85",
        "Train one DIVERSED head per task; it predicts the weight on the target at every token."),
    "list": Listed("lookup", "Look up", "list methods",
        "List methods, drafters, pairs, heads, tasks, metrics, figures or columns of tables."),
    "docs": Listed("lookup", "Look up", "docs training",
        "Print a page of the documentation, or list the pages with their questions."),
}
# fmt: on

#: What the last version took away, as it was called, and what to call instead.
REMOVED: dict[str, str] = {
    "bench --json": "there is no --json: `specbench table RUN --json` has the numbers",
    "table --frame": "there is no --frame: in Python, specbench.load(RUNS).summary is the frame of "
    "all figures, with to_csv and to_parquet",
    "plot --head": "there is no --head: `python tasks/measure/learned.py HEAD --output FOLDER` "
    "draws what a head learned",
    "finetune-draft": "there is no finetune-draft: `python tasks/finetune_draft.py` of a clone "
    "trains a draft on a task, for run --draft FOLDER",
    "audit": "there is no audit: it is now specbench check --server URL",
    "check --decoder": "there is no --decoder: give --server URL",
    "check --tie": "there is no --tie: give the server's --dtype, by whose rounding texts may fork",
    "check --text-prompts": "there is no --text-prompts: texts are checked by their token ids",
    "check --concurrency": "there is no --concurrency: a server gets 8 requests at once",
    "check --timeout": "there is no --timeout: a request may take 5 minutes",
    "check --weight": "there is no --weight: give --server URL of a server that has it",
    "bench --no-transformers": "there is no --no-transformers: bench times specbench's engines "
    "only, and tasks/measure/transformers_speed.py Transformers' loops",
    **{
        f"{name} --inside": "there is no --inside: a rule applies to the whole text, so omit it"
        for name in ("run", "sweep-weights", "bench", "check")
    },
    **{
        f"{name} --probe": "there is no --probe: start the run; its progress says the time left"
        for name in ("run", "sweep-weights")
    },
    **{
        f"train {option}": f"there is no {option} here: start train --shard I/K for each part"
        for option in ("--workers", "--ray-address")
    },
    **{
        f"decide {option}": "decide is about lossless speculation: measure a lossy method by "
        "specbench run -m sd,METHOD, and judge it by compare --against sd --margin POINTS"
        for option in ("-m", "--method", "--set", "--head")
    },
    "price --texts": "there is no --texts: name a run with texts, or the target writes them",
    "list --validate": "there is no --validate: run -t my-task.toml --dry-run names its mistakes",
    "train --minutes": "there is no --minutes: give --steps; the log says the seconds of a step",
}


def replacement(arguments: Sequence[str]) -> str:
    """Return what to call in place of a removed command or option, or nothing."""
    command, *words = arguments or [""]
    calls = [command, *(f"{command} {word.partition('=')[0]}" for word in words)]
    return next((REMOVED[call] for call in calls if call in REMOVED), "")


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
