"""``specbench train``: train the head that DIVERSED verifies with."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from specbench.cli.measure import pool
from specbench.cli.options import common as o
from specbench.cli.options.cluster import Cluster
from specbench.cli.options.data import AllowCodeExecution, Tasks
from specbench.cli.options.groups import grouped, retyped
from specbench.cli.options.models import Models
from specbench.cli.options.recipe import Recipe
from specbench.cli.output import Interrupted, console, note
from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.heads.registry import FAMILY, trained_heads
from specbench.metrics import get_metric
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import Task
from specbench.training.recipe import HeadRecipe, head_recipe

if TYPE_CHECKING:
    from specbench.cluster.ray_pool import Pool
    from specbench.engine.loading import LoadedPair
    from specbench.training.parts import RollOut
    from specbench.training.session import Training
    from specbench.training.verifier import Progress

NEAR = 0.02  # how close held-out acceptance should come to a wish


class Job(NamedTuple):
    """One head to train: for a task, by a recipe, into a folder."""

    task: Task
    recipe: HeadRecipe
    folder: Path
    log: Path | None  # for TensorBoard

    def __str__(self) -> str:
        wish = self.recipe.target_acceptance
        return self.task.name if wish is None else f"{self.task.name} at acceptance {wish:g}"


@grouped
def train(
    data: Tasks,
    models: Models,
    recipe: Recipe,
    cluster: Cluster,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Gets a folder per task, and one level above it per target acceptance where there "
            "are several.",
            show_default="results/heads/PAIR",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier training was stopped.")
    ] = False,
    log_to: Annotated[
        Path | None,
        typer.Option(
            "--log-to",
            metavar="FOLDER",
            help="Write TensorBoard's event files too, into FOLDER/PAIR/TASK.",
            show_default=False,
        ),
    ] = None,
    allow_code_execution: AllowCodeExecution = False,
    no_progress: o.NoProgress = False,
) -> None:
    """Train DIVERSED heads: for each task, a weight on the target at every token."""
    spec = models.spec()
    root = output or trained_heads(spec.name)
    logs = None if log_to is None else log_to / trained_heads(spec.name).name
    jobs = _jobs(spec, data.tasks(), recipe, root, logs)
    _require_parts(cluster, jobs)
    may_execute = allow_code_execution or spec.bundled
    waiting = [job for job in jobs if _waits(job, resume, may_execute)]
    for job in jobs:
        if job not in waiting:
            note(f"{job.folder} is trained already")
    if waiting:
        _train_all(spec, models.loading(), waiting, resume, not no_progress, cluster)
    _show(jobs, spec, root)
    head = str(jobs[0].folder if len(jobs) == 1 else root)
    command = ["specbench", "run", "--method", "sd,diversed", *retyped(models, data)]
    command += ["--allow-code-execution"] * allow_code_execution + ["--head", head]
    print(f"use it: {shlex.join(command)}")


def _jobs(
    spec: PairSpec,
    tasks: Sequence[Task],
    typed: Recipe,
    root: Path,
    logs: Path | None,
) -> list[Job]:
    """Lay out a head per target acceptance and task, each in a folder of its own."""
    jobs: list[Job] = []
    for wish in typed.wishes():
        family = f"{FAMILY}{wish:g}" if len(typed.wishes()) > 1 else ""
        for task in tasks:
            recipe = head_recipe(spec, task, {**typed.given(), "target_acceptance": wish})
            folder = root / family / task.name
            if any(folder == job.folder for job in jobs):
                raise UsageError(f"two heads would go to {folder}: train one after the other")
            jobs.append(Job(task, recipe, folder, logs and logs / family / task.name))
    return jobs


def _require_parts(cluster: Cluster, jobs: Sequence[Job]) -> None:
    """Refuse more workers than there are parts for them."""
    for job in jobs:
        parts, workers = job.recipe.rollout_parts, cluster.workers
        if workers is not None and workers > parts:
            raise UsageError(
                f"--workers {workers} needs as many parts of a step, and --rollout-parts is "
                f"{parts}: give --rollout-parts {workers}, or fewer workers"
            )


def _waits(job: Job, resume: bool, may_execute: bool) -> bool:
    """Tell whether a job is still to be done; refuse what can be refused before models load."""
    from specbench.training.folder import check_folder
    from specbench.training.log import check_log

    if not may_execute and any(get_metric(name).executes for name in job.task.metrics):
        raise UsageError(
            f"the reward on {job.task.name} comes from running what the models write: add "
            "--allow-code-execution, or choose another task"
        )
    job.task.examples("train", 1)
    if job.log is not None:
        check_log(job.log)
    return check_folder(job.folder, resume)


def _train_all(
    spec: PairSpec,
    loading: Loading,
    jobs: Sequence[Job],
    resume: bool,
    shown: bool,
    cluster: Cluster,
) -> None:
    from specbench.experiment.progress import quiet_libraries
    from specbench.training.session import prepare

    quiet_libraries(downloads=shown and sys.stderr.isatty())
    with pool(cluster, loading, tensors=True) as workers:
        pair, roll_out = _ready(spec, loading, _sizes(jobs), workers)
        # What cannot be trained is refused now, not hours later when its turn comes.
        trainings = [prepare(pair, job.task, job.recipe, job.folder, resume) for job in jobs]
        for text in dict.fromkeys(text for each in trainings for text in _left_out(each)):
            note(text)
        for job, training in zip(jobs, trainings, strict=True):
            try:
                description = _train_one(job, training, roll_out, shown)
            except KeyboardInterrupt as error:
                raise Interrupted(
                    f"interrupted: every finished step of {job.folder} is kept; go on with the "
                    "same command and --resume"
                ) from error
            for text in _remarks(job, description):
                note(text)


def _ready(
    spec: PairSpec, loading: Loading, sizes: tuple[int, int, int], workers: Pool | None
) -> tuple[LoadedPair, RollOut]:
    """Load the pair that a head is updated for, and return it with what decodes."""
    from specbench.engine.loading import load_pair
    from specbench.engine.memory import check_training_memory
    from specbench.training.parts import here

    if workers is None:
        check_training_memory(spec, loading, *sizes)
        pair = load_pair(spec, loading)
        return pair, here(pair)

    from specbench.cluster.together import beside, together
    from specbench.heads.files import fingerprints

    own = beside(spec, loading, workers.gpus)
    check_training_memory(spec, own, 0, 0, 0)  # the weights alone
    pair = load_pair(spec, own)
    hire = workers.for_roll_outs(spec, loading, sizes)
    return pair, together(hire, workers.size, fingerprints(pair), note)


def _sizes(jobs: Sequence[Job]) -> tuple[int, int, int]:
    """Return what there must be memory for: prompt tokens, new tokens and texts at once."""
    from specbench.engine.memory import likely_tokens
    from specbench.training.rollouts import AT_ONCE

    def prompt_tokens(task: Task, recipe: HeadRecipe) -> int:
        examples = task.examples("train", recipe.steps * recipe.prompts_per_step, recipe.seed)
        longest = likely_tokens(example.prompt for example in examples)
        return min(longest, recipe.max_prompt_tokens)

    return (
        max(prompt_tokens(job.task, job.recipe) for job in jobs),
        max(job.task.max_new_tokens for job in jobs),
        max(AT_ONCE, *(job.recipe.rollouts for job in jobs)),
    )


def _left_out(training: Training) -> Iterator[str]:
    """Say how many examples are not used, if any."""
    number = training.materials.left_out()
    if any(number.values()):
        yield (
            f"{training.task.name}: {number['train']} training and {number['held-out']} held-out "
            f"examples are left out, longer than --max-prompt-tokens "
            f"{training.recipe.max_prompt_tokens} and without a passage that may be cut"
        )


def _train_one(job: Job, training: Training, roll_out: RollOut, shown: bool) -> dict[str, Any]:
    from specbench.training.log import tensorboard
    from specbench.training.session import carry_out
    from specbench.training.view import live_view

    title = f"{job} on {training.pair.name}, {job.recipe.head_kind} head"
    with tensorboard(job.log) as write, live_view(title, job.recipe, shown) as draw:

        def report(progress: Progress) -> None:
            write(progress)
            draw(progress)

        return carry_out(training, report, roll_out)


def _remarks(job: Job, description: Mapping[str, Any]) -> Iterator[str]:
    """Say what did not go as it should, and what may help."""
    if silent := description["steps_without_gradient"]:
        yield (
            f"{job}: the reward was the same for all roll-outs in {silent} of {job.recipe.steps} "
            "steps: no gradient came from it there; if that is most steps, give another "
            "--initial-weight or more --rollouts"
        )
    wish, reached = job.recipe.target_acceptance, description["scores"]["acceptance"]
    if wish is not None and abs(wish - reached) > NEAR:
        strict = description["strict_acceptance"]
        why = (
            f"strict verification accepts about {strict:.3f}, and no head accepts less"
            if wish < strict
            else "more --steps may help"
        )
        yield f"{job}: held-out acceptance is {reached:.3f}, wished {wish:g}: {why}"


def _show(jobs: Sequence[Job], spec: PairSpec, root: Path) -> None:
    """Print what was trained, with its scores."""
    from rich.table import Table

    from specbench.heads.files import read_description

    table = Table(
        title=f"Heads of {spec.name} in {root}, held-out scores",
        caption="acceptance is per position: expected_acceptance of a run",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("head", no_wrap=True)
    table.add_column("kind")
    for header in ("quality", "acceptance", "mean w", "minutes"):
        table.add_column(header, justify="right")
    for job in jobs:
        known = read_description(job.folder)
        scores = known["scores"]
        metric = get_metric(job.task.metric or "")
        table.add_row(
            str(job.folder.relative_to(root)),
            known["kind"],
            f"{scores['quality'] * metric.scale:.1f} {metric.unit}",
            f"{scores['acceptance']:.3f}",
            f"{scores['weight']:.2f}",
            f"{known['seconds'] / 60:.1f}",
        )
    console().print(table)
