"""Which tasks, and where their examples come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.choices import ALL, REFERENCE_METRICS, choose_prompts, choose_tasks
from specbench.cli.options.common import completer
from specbench.cli.options.groups import changed
from specbench.errors import UsageError
from specbench.tasks.dataset import Sourcing
from specbench.tasks.hub import go_offline
from specbench.tasks.task import Task, task_names

_option: Any = partial(typer.Option, rich_help_panel="Data")

TaskNames = Annotated[
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

PromptFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--prompts",
        help="Instead of tasks: a .jsonl, .csv or .txt file with a `prompt` column and, to "
        "measure quality too, a `reference`; repeat for several.",
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

Data = Annotated[
    Path | None,
    _option(
        "--data",
        metavar="FOLDER",
        help="Take examples from FOLDER/TASK/SPLIT.jsonl (or .csv, .parquet; plain or .gz), not "
        "from the hub.",
        show_default=False,
    ),
]

Offline = Annotated[
    bool,
    _option(
        "--offline",
        help="Use what earlier runs fetched from the hub, and no network.",
    ),
]

DataRevision = Annotated[
    str | None,
    _option(
        "--data-revision",
        metavar="REVISION",
        help="Branch, tag or commit of the dataset on the hub.",
        show_default="the task's own",
    ),
]

Shots = Annotated[
    int | None,
    _option(
        "--shots",
        metavar="K",
        help="Worked examples before each prompt, from the training split.",
        show_default="the task's own",
    ),
]

AllowCodeExecution = Annotated[
    bool,
    _option(
        "--allow-code-execution",
        help="Run the programs that models other than the bundled ones wrote, in a sandbox, to "
        "score them.",
    ),
]


OF_DATA_SETS = ("--data", "--data-revision", "--shots")


@dataclass(frozen=True)
class Tasks:
    """Which tasks, and where their examples come from."""

    task: TaskNames = None
    data: Data = None
    offline: Offline = False
    data_revision: DataRevision = None
    shots: Shots = None

    def __post_init__(self) -> None:
        if self.offline:
            go_offline()  # now, before any model's library is imported: it counts for models too

    def sourcing(self) -> Sourcing:
        """Return where examples come from."""
        return Sourcing(self.data, self.offline, self.data_revision, self.shots)

    def tasks(self) -> list[Task]:
        """Return the tasks the user means."""
        return choose_tasks(self.task, self.sourcing())


@dataclass(frozen=True)
class Prompts(Tasks):
    """Tasks, or files of prompts in their place."""

    prompts: PromptFiles = None
    metric: MetricName = None

    def tasks(self) -> list[Task]:
        """Return the tasks the user means, or those made of the prompt files."""
        if self.prompts is None and self.metric is None:
            return super().tasks()
        ignored = [option for option in changed(self) if option in OF_DATA_SETS]
        if self.prompts is not None and ignored:
            raise UsageError(f"{ignored[0]} goes with tasks, not with --prompts: leave it out")
        return choose_prompts(self.task, self.prompts, self.metric)
