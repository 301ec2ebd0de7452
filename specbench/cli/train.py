"""``specbench train``: train the head that DIVERSED verifies with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from specbench.cli import options as o
from specbench.cli.choices import choose_pair, choose_tasks, parse_numbers
from specbench.cli.output import Interrupted, console, note
from specbench.errors import RunError, UsageError
from specbench.heads.registry import FAMILY, KINDS, is_head, trained_heads
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import Task
from specbench.training.recipe import BASELINES, HeadRecipe, head_recipe

if TYPE_CHECKING:
    from specbench.engine.loading import LoadedPair
    from specbench.training.verifier import Progress

RECIPE = "Recipe (by default that of the pair and the task)"
NEAR = 0.02  # how close held-out acceptance should come to a wish


class Job(NamedTuple):
    """One head to train: for a task, by a recipe, into a folder."""

    task: Task
    recipe: HeadRecipe
    folder: Path


def _number(name: str, text: str) -> typer.models.OptionInfo:
    """An option of the recipe."""
    option: typer.models.OptionInfo = typer.Option(
        name, help=text, show_default=False, rich_help_panel=RECIPE
    )
    return option


def train(
    task: o.Tasks = None,
    pair: o.Pair = None,
    target: o.Target = None,
    draft: o.Draft = None,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    head_kind: Annotated[
        str | None,
        typer.Option(
            "--head-kind",
            metavar="KIND",
            help="; ".join(f"{name}: {text}" for name, text in KINDS.items()) + ".",
            show_default=False,
            autocompletion=o.completer(lambda: KINDS),
            rich_help_panel=RECIPE,
        ),
    ] = None,
    steps: Annotated[int | None, _number("--steps", "Sets of roll-outs.")] = None,
    prompts_per_step: Annotated[
        int | None, _number("--prompts-per-step", "Prompts in a set.")
    ] = None,
    rollouts: Annotated[int | None, _number("--rollouts", "Texts per prompt.")] = None,
    epochs_per_rollout: Annotated[
        int | None, _number("--epochs-per-rollout", "Passes over a set.")
    ] = None,
    learning_rate: Annotated[float | None, _number("--learning-rate", "Adam's, at its peak.")] = (
        None
    ),
    acceptance_weight: Annotated[
        float | None, _number("--acceptance-weight", "lambda: what acceptance is worth in reward.")
    ] = None,
    target_acceptance: Annotated[
        str | None,
        typer.Option(
            "--target-acceptance",
            metavar="A[,A...]",
            help="Adjust lambda until held-out acceptance per position (a run's "
            "expected_acceptance) is this; several train a family of heads.",
            show_default=False,
            rich_help_panel=RECIPE,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="What a text's gain is compared with: "
            + "; ".join(f"{name}, {text}" for name, text in BASELINES.items())
            + ".",
            show_default=False,
            autocompletion=o.completer(lambda: BASELINES),
            rich_help_panel=RECIPE,
        ),
    ] = None,
    kl_weight: Annotated[
        float | None, _number("--kl-weight", "Price of a nat away from the untrained head.")
    ] = None,
    initial_weight: Annotated[
        float | None, _number("--initial-weight", "w of the untrained head.")
    ] = None,
    seed: Annotated[int | None, _number("--seed", "Decides the examples and every draw.")] = None,
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
            "--log-to", help="Folder for TensorBoard's event files too.", show_default=False
        ),
    ] = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Train DIVERSED heads: for each task, a weight on the target at every token."""
    spec = choose_pair(pair, target, draft)
    given = {
        "head_kind": head_kind,
        "steps": steps,
        "prompts_per_step": prompts_per_step,
        "rollouts": rollouts,
        "epochs_per_rollout": epochs_per_rollout,
        "learning_rate": learning_rate,
        "acceptance_weight": acceptance_weight,
        "baseline": baseline,
        "kl_weight": kl_weight,
        "initial_weight": initial_weight,
        "seed": seed,
    }
    wishes: list[float | None] = [None]
    if target_acceptance is not None:
        wishes = [*parse_numbers("--target-acceptance", target_acceptance, float)]
    root = output or trained_heads(spec.name)
    jobs = [
        Job(
            chosen,
            head_recipe(spec, chosen, {**given, "target_acceptance": wish}),
            (root / f"{FAMILY}{wish:g}" if wish and len(wishes) > 1 else root) / chosen.name,
        )
        for wish in wishes
        for chosen in choose_tasks(task, None, None)
    ]
    open_jobs = [job for job in jobs if _open(job, resume)]
    if open_jobs:
        _train_all(
            spec,
            device,
            spec.dtype if dtype == "auto" else dtype,
            open_jobs,
            resume,
            log_to,
            no_progress,
        )
    _show(jobs, spec, root)


def _open(job: Job, resume: bool) -> bool:
    """Tell whether a job is still to be done; refuse what can be refused before models load."""
    from specbench.training.folder import check_folder

    if job.task.metric is None:
        raise UsageError(f"{job.task.name} has no metric to reward texts by: choose another task")
    job.task.examples("train", 1)
    if check_folder(job.folder, resume):
        return True
    note(f"{job.folder} is trained already")
    return False


def _train_all(
    spec: PairSpec,
    device: str,
    dtype: str,
    jobs: list[Job],
    resume: bool,
    log_to: Path | None,
    no_progress: bool,
) -> None:
    from specbench.training.log import check_tensorboard

    if log_to is not None:
        check_tensorboard()

    import sys

    from specbench.engine.loading import load_pair
    from specbench.experiment.progress import quiet_libraries

    quiet_libraries(downloads=not no_progress and sys.stderr.isatty())
    pair = load_pair(spec, device, dtype)
    for job in jobs:
        try:
            _train_one(pair, job, resume, log_to, not no_progress)
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"interrupted: every finished step of {job.folder} is kept; go on with the same "
                "command and --resume"
            ) from error


def _train_one(pair: LoadedPair, job: Job, resume: bool, log_to: Path | None, shown: bool) -> None:
    from specbench.training.log import tensorboard
    from specbench.training.session import train_into
    from specbench.training.view import live_view

    events = None if log_to is None else log_to / job.folder.relative_to(job.folder.anchor)
    title = f"{job.task.name} on {pair.name}, {job.recipe.head_kind} head"
    with tensorboard(events) as write, live_view(title, job.recipe, shown) as draw:

        def report(progress: Progress) -> None:
            write(progress)
            draw(progress)

        description = train_into(pair, job.task, job.recipe, job.folder, report, resume)
    if silent := description["steps_without_gradient"]:
        note(
            f"{job.task.name}: in {silent} of {job.recipe.steps} steps all roll-outs earned the "
            "same, which teaches nothing of quality; if that is most steps, give another "
            "--initial-weight or more --rollouts"
        )
    wish, reached = job.recipe.target_acceptance, description["scores"]["acceptance"]
    if wish is not None and abs(wish - reached) > NEAR:
        strict = description["strict_acceptance"]
        why = (
            f"strict verification accepts {strict:.3f} already"
            if wish < strict
            else "train longer with more --steps"
        )
        note(f"{job.task.name}: held-out acceptance is {reached:.3f}, wished {wish:g}: {why}")


def _show(jobs: list[Job], spec: PairSpec, root: Path) -> None:
    """Print what was trained, with its scores, and how to use it."""
    from rich.table import Table

    from specbench.heads.files import read_description
    from specbench.metrics import get_metric

    table = Table(title=f"Heads of {spec.name}, held-out scores", title_justify="left")
    for header in ("task", "kind", "quality", "acceptance", "mean w", "minutes", "folder"):
        table.add_column(header, justify="left" if header in ("task", "folder") else "right")
    for job in jobs:
        if not is_head(job.folder):
            raise RunError(f"{job.folder} holds no head: train it again")
        known = read_description(job.folder)
        scores = known["scores"]
        metric = get_metric(job.task.metric or "")
        table.add_row(
            job.task.name,
            known["kind"],
            f"{scores['quality'] * metric.scale:.1f} {metric.unit}",
            f"{scores['acceptance']:.3f}",
            f"{scores['weight']:.2f}",
            f"{known['seconds'] / 60:.1f}",
            str(job.folder),
        )
    console().print(table)
    print(f"heads: {root}")
