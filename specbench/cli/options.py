"""The options of commands beside the settings of ``specbench.config``, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import create_model

from specbench.cli.generate import completer, flag, split
from specbench.config import (
    DUMMY,
    Count,
    DataOptions,
    Loading,
    Options,
    Results,
    RunSettings,
    Settings,
    Workers,
    option,
)
from specbench.errors import UsageError
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.variants import ANCHORS, Variant
from specbench.heads.registry import expand_family
from specbench.methods.registry import METHODS, PARAMETERS
from specbench.methods.registry import PAPER as PAPER_METHODS
from specbench.metrics import METRICS
from specbench.pairs.registry import ROLES, PairSpec, custom_pair, get_pair, pairs, with_draft
from specbench.tasks.dataset import Dataset, go_offline
from specbench.tasks.prompts import prompts_task
from specbench.tasks.task import Task, default_task_names, load_task, task_names

if TYPE_CHECKING:
    from specbench.analysis.frames import Selection

ALL, PAPER = "all", "paper"
METHOD_GROUPS = {PAPER: PAPER_METHODS, ALL: tuple(METHODS)}
DEFAULT_PAIR = "mini"
REFERENCE_METRICS = [metric.name for metric in METRICS.values() if metric.needs == "reference"]
DEFAULT_REFERENCE_METRIC = "rouge2"


def _methods(purpose: str, default: str) -> Any:
    return typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help=f"{purpose}; repeat or separate by commas: {', '.join(METHODS)}; paper for the first "
        "six, or all.",
        show_default=default,
        autocompletion=completer(lambda: [*METHODS, *METHOD_GROUPS]),
    )


Methods = Annotated[list[str] | None, _methods("Methods to measure", PAPER)]
OtherMethods = Annotated[
    list[str] | None, _methods("Methods to measure besides the weights", ",".join(ANCHORS))
]
SweptMethods = Annotated[
    list[str] | None,
    _methods("Methods to measure; those that take what is swept are swept", ",".join(ANCHORS)),
]

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Folders of runs, or of many runs.",
        show_default="the newest under results/",
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder to write, new or empty.",
        show_default="results/<time>-<command>-<pair>",
    ),
]
NoProgress = Annotated[bool, flag(Results, "no_progress", rich_help_panel=None)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class CodeExecution(Options):
    """Whether programs that a model wrote are run."""

    panel = "Data"

    allow_code_execution: bool = option(
        False,
        "Run programs written by models other than the bundled ones, in a sandbox, to score them.",
    )

    def allowed(self, pair: PairSpec) -> bool:
        """Tell whether programs of a pair's models may be run."""
        return self.allow_code_execution or pair.bundled


class Tasks(DataOptions):
    """Which tasks, and where their examples come from."""

    task: list[str] | None = option(
        None,
        "Tasks, or TOML files of tasks; repeat or separate by commas, or all.",
        flags=("--task", "-t"),
        metavar="NAME",
        shown=ALL,
        complete=lambda: [*task_names(), ALL],
        panel="Options",
    )

    def model_post_init(self, context: Any) -> None:
        """Go offline now, before any model's library is imported: it counts for models too."""
        if self.offline:
            go_offline()

    def tasks(self) -> list[Task]:
        """Return the tasks the user means, by default the bundled ones."""
        chosen = _members(self.task, {ALL: task_names()}) if self.task else default_task_names()
        tasks = [load_task(name, self) for name in chosen]
        sets = {task.source.repository for task in tasks if isinstance(task.source, Dataset)}
        for name in ("folder", "revision"):
            if getattr(self, name) is not None and not sets:
                raise UsageError(
                    f"{self.flags(name)[0]} goes with a task that has a data set: choose one by "
                    "--task"
                )
        if self.revision is not None and len(sets) > 1:
            raise UsageError(
                f"--data-revision is of one data set, not of {', '.join(sorted(sets))}: run their "
                "tasks one by one"
            )
        return tasks


class PromptFiles(Tasks):
    """Tasks, or files of prompts in their place; nothing is scored."""

    prompts: list[Path] | None = option(
        None,
        "Instead of tasks: a .jsonl, .csv or .txt file with a `prompt` column and, to measure "
        "quality too, a `reference`; repeat for several.",
        panel="Options",
    )

    def tasks(self) -> list[Task]:
        """Return the tasks the user means, or those made of the prompt files."""
        if not self.prompts:
            return super().tasks()
        if self.task:
            raise UsageError("--prompts takes the place of --task: give one of the two")
        for name in ("folder", "revision", "shots"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{self.flags(name)[0]} goes with tasks, not with --prompts: leave it out"
                )
        return [prompts_task(path) for path in self.prompts]


class Prompts(PromptFiles):
    """Tasks, or files of prompts in their place, with the metric of those."""

    metric: str | None = option(
        None,
        f"How answers to --prompts are scored: {', '.join(REFERENCE_METRICS)}.",
        metavar="NAME",
        shown=f"{DEFAULT_REFERENCE_METRIC} where there are references",
        complete=lambda: REFERENCE_METRICS,
        panel="Options",
    )

    def tasks(self) -> list[Task]:
        """Return the tasks, those made of prompt files with their metric."""
        if self.metric is not None and not self.prompts:
            raise UsageError("--metric belongs to --prompts: a task has metrics of its own")
        tasks = super().tasks()
        return [self._scored(task) for task in tasks] if self.prompts else tasks

    def _scored(self, task: Task) -> Task:
        scored = any(row.reference for row in task.examples("test", None))
        if self.metric is None:
            return replace(task, metrics=(DEFAULT_REFERENCE_METRIC,) if scored else ())
        if self.metric not in REFERENCE_METRICS:
            known = ", ".join(REFERENCE_METRICS)
            raise UsageError(f"unknown --metric {self.metric!r}: give one of {known}")
        if not scored:
            raise UsageError(
                f"{task.path} has no `reference` column, which --metric {self.metric} needs"
            )
        return replace(task, metrics=(self.metric,))


class Models(Loading):
    """Which models, and how they are loaded."""

    pair: str | None = option(
        None,
        f"Target and draft by one name: {', '.join(pairs())}, or FILE.toml[:NAME] with pairs of "
        "yours.",
        metavar="NAME",
        shown=DEFAULT_PAIR,
        complete=pairs,
    )
    target: str | None = option(
        None,
        "Instead of a pair: the target model, a Hugging Face id or a folder.",
        metavar="ID_OR_FOLDER",
    )
    draft: str | None = option(
        None,
        "The draft that goes with --target, or one in the place of the pair's own.",
        metavar="ID_OR_FOLDER",
    )

    def spec(self) -> PairSpec:
        """Return the pair the user means; refuse a revision of a model that has none."""
        spec = choose_pair(self.pair, self.target, self.draft)
        dummies = spec.architecture if self.load_format == DUMMY else ()
        for role in ROLES:
            revision = getattr(self, f"{role}_revision")
            if revision is not None and role in dummies:
                raise UsageError(
                    f"--{role}-revision goes with a model that is read, not with --load-format "
                    f"{DUMMY}: leave one out"
                )
            require_hub(role, spec, revision)
        return spec

    def loading(self) -> Loading:
        """Return how it is to be loaded."""
        return self.part(Loading)


def choose_pair(name: str | None, target: str | None, draft: str | None) -> PairSpec:
    """Return the pair of that name, perhaps with another draft, or one of two models."""
    if target is None:
        pair = get_pair(name or DEFAULT_PAIR)
        return pair if draft is None else with_draft(pair, draft)
    if name is not None:
        raise UsageError("--pair and --target name the target twice: give one of the two")
    if draft is None:
        raise UsageError("--draft is missing: --target goes with a draft")
    return custom_pair(target, draft)


def require_hub(role: str, spec: PairSpec, revision: str | None) -> None:
    """Refuse the revision of a model that is a folder here."""
    model = spec.target if role == "target" else spec.draft
    if revision is not None and Path(model).exists():
        raise UsageError(
            f"--{role}-revision goes with a model on the hub, and {model} is a folder here: leave "
            "it out"
        )


def choose_methods(
    typed: Sequence[str] | None, default: Iterable[str] = PAPER_METHODS
) -> tuple[list[str], set[str]]:
    """Return the methods to run, and those of them the user did not ask for by name."""
    names = split("--method", typed or [])
    chosen = _members(names, METHOD_GROUPS) if names else list(default)
    return chosen, set(chosen) - set(names)


def _parameter(name: str) -> tuple[Any, Any]:
    """Return type and option of a parameter, with the help and the default of the registry."""
    entries = [(m.name, p) for m in METHODS.values() for p in m.parameters if p.name == name]
    owners = ", ".join(dict.fromkeys(method for method, _ in entries))
    (_, first), *_ = entries
    several = len({entry.help for _, entry in entries}) > 1
    text = f"{name}; range and default depend on the rule" if several else first.help
    number = first.kind is float
    return (list[float] if number else list[str]) | None, option(
        None,
        f"{owners}: {text}; each of several is measured.",
        metavar="FLOAT[,...]" if number else "TEXT[,...]",
        shown=None if first.default is None else f"{first.default}",
        complete=(lambda: first.choices) if first.choices else None,
        panel="Parameters of methods",
    )


_Parameters: Any = create_model(
    "_Parameters",
    __base__=Options,
    **{name: _parameter(name) for name in PARAMETERS},  # type: ignore[call-overload]
)


class Rules(_Parameters):  # type: ignore[misc]
    """Values of the methods' parameters, an option for each parameter in the registry."""

    def given(self) -> dict[str, Any]:
        """Return the values by parameter, None where nothing was typed."""
        values: dict[str, Any] = self.model_dump()
        heads = values["head"]
        return values | {"head": heads and [one for each in heads for one in expand_family(each)]}


@dataclass(frozen=True)
class Measurement:
    """The options of every command that measures."""

    data: Prompts
    models: Models
    sampling: RunSettings
    results: Results
    workers: Workers
    code: CodeExecution

    def plan(self, variants: Iterable[Variant], optional: Iterable[str] = ()) -> Plan:
        """Lay out a run; ``optional`` methods are left out on tasks without a head."""
        spec = self.models.spec()
        return build_plan(
            spec,
            self.data.tasks(),
            list(variants),
            self.sampling.draft_length,
            self.sampling.part(Settings),
            loading=self.models.loading(),
            limit=self.sampling.limit,
            may_execute=self.code.allowed(spec),
            optional=set(optional),
        )


class MethodRows(Options):
    """Which methods and draft lengths of finished runs a command reads."""

    panel = "Part of the runs"

    method: list[str] | None = option(
        None,
        "Only these methods of the runs.",
        flags=("--method", "-m"),
        metavar="NAME[,NAME...]",
        shown=ALL,
    )
    draft_length: list[Count] | None = option(
        None,
        "Only these draft lengths of the runs; methods that draft nothing go with each.",
        metavar="N[,N...]",
        shown=ALL,
    )

    def of_tasks(self, tasks: list[str] | None) -> Selection:
        """Return these, of some tasks only."""
        from specbench.analysis.frames import Selection

        return Selection(_unless_all(tasks), _unless_all(self.method), self.draft_length)


class Rows(MethodRows):
    """Which tasks, methods and draft lengths of finished runs a command reads."""

    task: list[str] | None = option(
        None,
        "Only these tasks of the runs.",
        flags=("--task", "-t"),
        metavar="NAME[,NAME...]",
        shown=ALL,
    )

    def selection(self) -> Selection:
        """Return what is to be read."""
        return self.of_tasks(self.task)


def _unless_all(names: list[str] | None) -> list[str] | None:
    return None if names is None or ALL in names else names


def _members(names: Iterable[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Replace the name of a group by its members."""
    return list(dict.fromkeys(inner for name in names for inner in groups.get(name, (name,))))
