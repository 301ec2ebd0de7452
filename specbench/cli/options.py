"""The options of commands beside the settings of ``specbench.config``, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from pydantic import create_model, model_validator

from specbench.config import (
    DUMMY,
    Count,
    DataOptions,
    Loading,
    Options,
    RunSettings,
    Settings,
    option,
)
from specbench.errors import UsageError
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.variants import ANCHORS, Variant, method_variants
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
NEWEST = "the newest under results/"

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...", help="Folders of runs, or of many runs.", show_default=NEWEST
    ),
]
FinishedRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def output_option(help: str, shown: str, metavar: str | None = None) -> Any:
    """Return the option that says where a command writes."""
    return option(None, help, flags=("--output", "-o"), shown=shown, metavar=metavar)


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
        "How answers to --prompts are scored.",
        metavar="NAME",
        shown=f"{DEFAULT_REFERENCE_METRIC} where there are references",
        choices=REFERENCE_METRICS,
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
        if self.metric is not None and not scored:
            raise UsageError(
                f"{task.path} has no `reference` column, which --metric {self.metric} needs"
            )
        return replace(task, metrics=(self.metric or DEFAULT_REFERENCE_METRIC,) if scored else ())


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
        """Return the pair the user means: named, perhaps with another draft, or of two models."""
        if self.target is None:
            spec = get_pair(self.pair or DEFAULT_PAIR)
            spec = spec if self.draft is None else with_draft(spec, self.draft)
        elif self.pair is not None:
            raise UsageError("--pair and --target name the target twice: give one of the two")
        elif self.draft is None:
            raise UsageError("--draft is missing: --target goes with a draft")
        else:
            spec = custom_pair(self.target, self.draft)
        self._require_hub(spec)
        return spec

    def _require_hub(self, spec: PairSpec) -> None:
        """Refuse the revision of a model that does not come from the hub."""
        for role in ROLES:
            if getattr(self, f"{role}_revision") is None:
                continue
            if self.load_format == DUMMY and role in spec.architecture:
                raise UsageError(
                    f"--{role}-revision goes with a model that is read, not with --load-format "
                    f"{DUMMY}: leave one out"
                )
            if Path(model := getattr(spec, role)).exists():
                raise UsageError(
                    f"--{role}-revision goes with a model on the hub, and {model} is a folder "
                    "here: leave it out"
                )

    def loading(self) -> Loading:
        """Return how it is to be loaded."""
        return self.part(Loading)


def _methods(purpose: str, default: str) -> Any:
    return option(
        None,
        f"{purpose}; repeat or separate by commas: {', '.join(METHODS)}; paper for the first "
        "six, or all.",
        flags=("--method", "-m"),
        metavar="NAME",
        shown=default,
        complete=lambda: [*METHODS, *METHOD_GROUPS],
    )


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


class Methods(_Parameters):  # type: ignore[misc]
    """Which methods, with an option for the values of each parameter in their registry."""

    default: ClassVar[Iterable[str]] = PAPER_METHODS

    method: list[str] | None = _methods("Methods to measure", PAPER)

    @cached_property
    def names(self) -> list[str]:
        """The methods to run."""
        return _members(self.method, METHOD_GROUPS) if self.method else list(self.default)

    @cached_property
    def optional(self) -> set[str]:
        """Those of them that the user did not ask for by name."""
        return set(self.names) - set(self.method or ())

    def given(self) -> dict[str, Any]:
        """Return the values by parameter, None where nothing was typed."""
        values: dict[str, Any] = self.model_dump(exclude={"method"})
        heads = values["head"]
        return values | {"head": heads and [one for each in heads for one in expand_family(each)]}

    def variants(self) -> list[Variant]:
        """Return each method with every combination of the values that it takes."""
        return method_variants(self.names, self.given())


class SweptMethods(Methods):
    """The methods of a sweep."""

    default = ANCHORS

    method: list[str] | None = _methods(
        "Methods to measure; those that take what is swept are swept", ",".join(ANCHORS)
    )


class Workers(Options):
    """How many workers there are, and where."""

    panel = "Workers"

    workers: int | None = option(
        None,
        "Share the work between N processes, one per GPU, or without GPUs one per core; needs "
        "Ray, specbench's extra of that name.",
        ge=1,
        metavar="N",
        shown="this process alone",
    )
    ray_address: str | None = option(
        None,
        "Ray's cluster to take workers from: auto, or HOST:PORT.",
        metavar="ADDRESS",
        shown="this machine",
    )

    @model_validator(mode="after")
    def _address_of_workers(self) -> Workers:
        if self.ray_address is not None and self.workers is None:
            raise ValueError("--ray-address goes with --workers N: say how many")
        return self


class Progress(Options):
    """What is shown meanwhile."""

    panel = "Results"

    no_progress: bool = option(False, "Show no progress bar.")


class NewFolder(Progress):
    """Where results go that are written at once."""

    output: Path | None = output_option(
        "Folder to write, new or empty.", "results/<time>-<command>-<pair>"
    )


class RunFolder(Progress):
    """Where a run goes, and whether it runs at all."""

    output: Path | None = output_option(
        "Output folder; resumes a run with the same settings.",
        "results/<time>-<command>-<pair>, or the newest unfinished of the same plan",
    )
    fresh: bool = option(False, "Start anew; a run in the folder is moved aside, never deleted.")
    dry_run: bool = option(
        False, "Print the plan: cells, samples, memory, and an estimated duration."
    )


class Measurement(Prompts, Models, RunSettings, RunFolder, Workers, CodeExecution):
    """The options of every command that measures."""

    def plan(self, variants: Iterable[Variant], optional: Iterable[str] = ()) -> Plan:
        """Lay out a run; ``optional`` methods are left out on tasks without a head."""
        spec = self.spec()
        return build_plan(
            spec,
            self.tasks(),
            list(variants),
            self.draft_length,
            self.part(Settings),
            loading=self.loading(),
            limit=self.limit,
            may_execute=self.allowed(spec),
            optional=set(optional),
        )


class Rows(Options):
    """Which tasks, methods and draft lengths of finished runs a command reads."""

    panel = "Part of the runs"

    task: list[str] | None = option(
        None,
        "Only these tasks of the runs.",
        flags=("--task", "-t"),
        metavar="NAME[,NAME...]",
        shown=ALL,
    )
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

    def selection(self) -> Selection:
        """Return what is to be read."""
        from specbench.analysis.frames import Selection

        tasks, methods = (
            None if names is None or ALL in names else names for names in (self.task, self.method)
        )
        return Selection(tasks, methods, self.draft_length)


def _members(names: Iterable[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Replace the name of a group by its members."""
    return list(dict.fromkeys(inner for name in names for inner in groups.get(name, (name,))))
