"""``specbench train`` trains DIVERSED heads."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from specbench.analysis.tables.table import Column, Table, with_interval
from specbench.cli import options as groups
from specbench.cli.generate import grouped
from specbench.cli.output import Interrupted, needed_memory, note, note_loading, print_table
from specbench.config import Filters, option
from specbench.decoding.heads.registry import is_head, read_description, trained_heads
from specbench.engine.pairs import Loading, PairSpec
from specbench.errors import RunError, SpecbenchError, UsageError, require
from specbench.experiment.progress import step_status, training_bar
from specbench.runs.configuration import Settings
from specbench.runs.labels import VARIANTS, recipe_of
from specbench.tasks.metrics import get_metric
from specbench.tasks.task import Task
from specbench.training.recipe import HeadRecipe, check_folder, head_recipe

if TYPE_CHECKING:
    from specbench.training.objective import TrainingStep
    from specbench.training.verifier import Training

NEAR = 0.02  # tolerated difference between held-out acceptance and its target


class HeadJob(NamedTuple):
    """One head to train: its task, recipe and folder."""

    task: Task
    recipe: HeadRecipe
    folder: Path

    def __str__(self) -> str:
        target, loss = self.recipe.target_acceptance, self.recipe.max_quality_loss
        goal = f" at acceptance {target:g}" if target is not None else ""
        goal = f" within {loss:g} points" if loss is not None else goal
        seed = f", seed {self.recipe.seed}" if recipe_of(str(self.folder)) else ""
        return f"{self.task.name}{goal}{seed}"


class HeadOptions(groups.DryRun):
    """How many heads to train, where they go, and whether to resume."""

    target_acceptance: list[float] | None = option(
        None, str(HeadRecipe.model_fields["target_acceptance"].description), metavar="A[,A...]"
    )
    max_quality_loss: list[float] | None = option(
        None, str(HeadRecipe.model_fields["max_quality_loss"].description), metavar="POINTS[,...]"
    )
    seed: list[int] | None = option(
        None, str(HeadRecipe.model_fields["seed"].description), metavar="SEED[,...]", shown="0"
    )
    output: Path | None = groups.output_option(
        "Folder for the heads, one subfolder per task; several target acceptances, quality "
        "losses or seeds have one subfolder each above those.",
        "results/heads/PAIR",
    )
    resume: bool = option(False, "Resume an interrupted training.")


@grouped
def train(
    data: groups.Tasks,
    models: groups.Models,
    options: HeadOptions,
    recipe: Annotated[dict[str, Any], HeadRecipe],
    code: groups.CodeExecution,
    shown: groups.Progress,
    part: Annotated[Settings, ("shard",)],
) -> None:
    """Train one DIVERSED head per task; it predicts the weight on the target at every token."""
    spec = models.spec()
    if part.shard is not None:
        names = data.names[part.shard_slice]
        require(bool(names), f"there are too few tasks for --shard {part.shard}")
        data = data.updated(task=names)
    models.require_here(spec)
    root = options.output or trained_heads(spec.name)
    tasks = data.tasks()
    variants = {name: getattr(options, name) or [None] for name in VARIANTS}
    jobs = _jobs(spec, tasks, recipe, variants, root)
    may_execute = code.allowed(spec)
    waiting = [job for job in jobs if _waits(job, options.resume, may_execute)]
    note(*(f"{job.folder} is already trained" for job in jobs if job not in waiting))
    if options.dry_run:
        _print_plan(waiting, spec, models.loading())
        return
    refused: Mapping[Path, SpecbenchError] = {}
    if waiting:
        loading = models.loading()
        refused = _train_all(spec, loading, waiting, options.resume, not shown.no_progress)
    if trained := [job for job in jobs if job.folder not in refused]:
        _show(trained, spec, root)
        typed = dict(zip((task.name for task in tasks), data.names, strict=True))

        def command(jobs: Sequence[HeadJob], methods: str, *last: str) -> str:
            chosen = data.updated(task=list(dict.fromkeys(typed[job.task.name] for job in jobs)))
            parts = ["specbench", "run", "--method", methods, *models.retyped()]
            sampled = ("drafter", "temperature", *Filters.model_fields)
            parts += HeadRecipe(**{n: getattr(jobs[0].recipe, n) for n in sampled}).retyped()
            return shlex.join([*parts, *chosen.retyped(), *code.retyped(), *last])

        _advise(trained, root, command)
    if refused:
        failed = any(isinstance(error, RunError) for error in refused.values())
        sentence = "; ".join(dict.fromkeys(map(str, refused.values())))
        raise RunError(sentence) if failed else UsageError(sentence)


def _jobs(
    spec: PairSpec,
    tasks: Sequence[Task],
    typed: Mapping[str, Any],
    variants: Mapping[str, Sequence[Any]],
    root: Path,
) -> list[HeadJob]:
    """Return one job per goal, seed and task, each with its own folder."""
    jobs: list[HeadJob] = []
    for values in product(*variants.values()):
        variant = dict(zip(variants, values, strict=True))
        several = [name for name in variants if len(variants[name]) > 1]
        folders = [f"{VARIANTS[name]}{variant[name]:g}" for name in several]
        for task in tasks:
            recipe = head_recipe(spec, task, {**typed, **variant})
            folder = root.joinpath(*folders, task.name)
            if any(folder == job.folder for job in jobs):
                raise UsageError(f"two heads would be written to {folder}: train them one by one")
            jobs.append(HeadJob(task, recipe, folder))
    return jobs


def _waits(job: HeadJob, resume: bool, may_execute: bool) -> bool:
    """Return whether a job is pending; raise usage errors before models load."""
    if (metric := job.recipe.metric_for(job.task)) is None:
        raise UsageError(
            f"{job.task.name} has no metric, which training needs as its reward: add --reward "
            "agreement"
        )
    if not may_execute and get_metric(metric).executes:
        raise UsageError(
            f"the reward on {job.task.name} requires executing generated code: add "
            "--allow-code-execution, or choose another task"
        )
    job.task.examples("train", 1)
    return check_folder(job.folder, resume)


def _print_plan(jobs: Sequence[HeadJob], spec: PairSpec, loading: Loading) -> None:
    """Print the steps, the reward and the folder of each head, and the memory that one needs."""
    from specbench.engine.device import choose_device
    from specbench.engine.hardware import available_memory

    for job in jobs:
        recipe = job.recipe
        texts = recipe.steps * recipe.prompts_per_step * recipe.rollouts
        print(
            f"{job} on {spec.name}: {recipe.head_kind} head, {recipe.steps} steps of "
            f"{recipe.prompts_per_step} prompts with {recipe.rollouts} text"
            f"{'s' * (recipe.rollouts > 1)} each ({texts:,} texts "
            f"of up to {recipe.text_tokens(job.task)} tokens), reward "
            f"{recipe.metric_for(job.task)}; {job.folder}"
        )
    if jobs:
        needed = _needed_bytes(spec, loading, jobs)
        free = available_memory(choose_device(loading.device), loading.device_map is not None)
        print(needed_memory(needed, free))


def _needed_bytes(spec: PairSpec, loading: Loading, jobs: Sequence[HeadJob]) -> float:
    """Return the bytes that training any of these heads needs; raise if they are not free."""
    from specbench.engine.memory import check_memory, estimate_tokens
    from specbench.training.rollouts import AT_ONCE

    prompt_tokens = 0
    for task, recipe, _ in jobs:
        examples = task.examples("train", recipe.steps * recipe.prompts_per_step, recipe.seed)
        longest = estimate_tokens(example.prompt for example in examples)
        prompt_tokens = max(prompt_tokens, min(longest, recipe.max_prompt_tokens))
    new_tokens = max(job.recipe.text_tokens(job.task) for job in jobs)
    rows = max(AT_ONCE, *(job.recipe.rollouts for job in jobs))
    return check_memory(
        spec, loading, prompt_tokens, new_tokens, rows=rows, purpose="to train a head"
    )


def _train_all(
    spec: PairSpec, loading: Loading, jobs: Sequence[HeadJob], resume: bool, shown: bool
) -> dict[Path, SpecbenchError]:
    """Train all heads; return why a head was not trained, by its folder."""
    note_loading(spec.models)

    from specbench.engine.hub import quiet_libraries
    from specbench.engine.loading import load_pair
    from specbench.training.session import prepare

    quiet_libraries(downloads=shown)
    _needed_bytes(spec, loading, jobs)
    trainings = {}
    with step_status(shown) as show:
        show("loading the models")
        pair = load_pair(spec, loading)
        # Prepare all trainings first, so that errors appear now and not hours later.
        for job in jobs:
            show(f"{job}: reading the prompts")
            trainings[job.folder] = prepare(pair, job.task, job.recipe, job.folder, resume)
    notes: dict[str, None] = {}  # distinct: all heads of a family skip the same examples
    for job in jobs:
        left_out, limit = trainings[job.folder].materials.left_out(), job.recipe.max_prompt_tokens
        skipped = f"{left_out['train']} training and {left_out['held-out']} held-out examples"
        reason = f"longer than --max-prompt-tokens {limit}, without a passage that can be cut"
        if any(left_out.values()):
            notes[f"{job.task.name}: {skipped} are skipped: {reason}"] = None
    note(*notes)
    refused, by_folder = dict[Path, SpecbenchError](), {job.folder: job for job in jobs}
    while trainings:
        first = next(iter(trainings.values()))
        together = {f: t for f, t in trainings.items() if first.shares_front_with(t)}
        trainings = {f: t for f, t in trainings.items() if f not in together}
        refused |= _train_together(spec, by_folder, together, shown)
    return refused


def _train_together(
    spec: PairSpec, jobs: Mapping[Path, HeadJob], trainings: Mapping[Path, Training], shown: bool
) -> dict[Path, SpecbenchError]:
    """Train heads that share a front and the batches of a step; see ``_train_all``."""
    from specbench.training.session import carry_out, start

    refused: dict[Path, SpecbenchError] = {}
    begun: dict[Path, Training] = {}
    try:
        for folder, training in trainings.items():
            try:
                with step_status(shown) as show:
                    start(training, folder, trainings, show)
                begun[folder] = training
            except UsageError as error:  # of this goal or task; others may be trained
                refused[folder] = error
        if not begun:
            return refused
        job, *others = (jobs[folder] for folder in begun)
        title = f"{job} on {spec.name}, {job.recipe.head_kind} head"
        if others:
            title = f"{1 + len(others)} {job.recipe.head_kind} heads on {spec.name}"
        done = min(len(training.history) for training in begun.values())
        with training_bar(title, job.recipe.steps, shown, done=done) as draw:

            def report(folder: Path, progress: TrainingStep) -> None:
                head = f"{jobs[folder]}: " if others else ""
                draw(progress.step, f"{head}{progress}")

            descriptions = carry_out(begun, report)
    except KeyboardInterrupt as error:
        steps_in = f"every finished step is in {', '.join(map(str, begun or trainings))}"
        raise Interrupted(f"interrupted: {steps_in}; add --resume to the same command") from error
    except (UsageError, RunError) as error:  # as a loss that is not finite
        left = (folder for folder in trainings if folder not in refused)
        return refused | {folder: error for folder in left if not is_head(folder)}
    for folder, description in zip(begun, descriptions, strict=True):
        note(*_remarks(jobs[folder], description))
    return refused


def _remarks(job: HeadJob, description: Mapping[str, Any]) -> Iterator[str]:
    worth = description["worth"]
    yield f"{job}: {worth['sentence']}"
    if silent := description["steps_without_gradient"]:
        yield (
            f"{job}: all rollouts had the same reward in {silent} of {job.recipe.steps} steps, so "
            "it gave no gradient there; if those are most steps, change --initial-weight or "
            "increase --rollouts"
        )
    target, reached = job.recipe.target_acceptance, worth["head"]["acceptance"]
    if target is not None and abs(target - reached) > NEAR:
        strict = worth["others"][0]["acceptance"]
        why = (
            f"strict verification already accepts about {strict:.3f}, the minimum for any head"
            if target < strict
            else "more --steps may help"
        )
        yield f"{job}: held-out acceptance is {reached:.3f}, target {target:g}: {why}"


def _advise(jobs: Sequence[HeadJob], root: Path, command: Callable[..., str]) -> None:
    """Print how to use the heads above the static front (by ``command``), and name the others."""
    worths = {job.folder: read_description(job.folder).get("worth") or {} for job in jobs}
    useful = [job for job in jobs if worths[job.folder].get("better") is not False]
    if useful:
        head = str(useful[0].folder if len(useful) == 1 else root)
        print(f"use it: {command(useful, 'sd,diversed', '--head', head)}")
    for job in jobs:
        if job not in useful:
            compared = command([job], "sd,static,typical", "--set", "weight=0")
            print(f"{job.folder} is not shown to beat mixtures of sd and the draft: {compared}")


def _choice(steps: int, description: Mapping[str, Any], scale: float) -> str:
    """Say which step's head was kept, how noisy its choice was, and if more steps may help."""
    best = description["best_step"]
    sentence = f"the head of step {best} of {steps}, {description['seconds']:.0f} s of steps"
    if not description.get("best_distance"):
        return sentence
    distances = {int(s): scale * d for s, d in description["measured_distances"].items()}
    value, low, high = (scale * end for end in description["best_distance"])
    lead = with_interval(value, low, high, ".1f")
    others = [f"{value:+.1f} at step {step}" for step, value in distances.items() if step != best]
    sentence += f"; {lead} points above the front, beside {', '.join(others) or 'no other step'}"
    if best == max(distances) and len(distances) > 1:
        return f"{sentence}: the best was the last one measured, so more --steps may help"
    return f"{sentence}: more --steps are not shown to help"


def _show(jobs: Sequence[HeadJob], spec: PairSpec, root: Path) -> None:
    """Print each trained head beside both models and the static ensemble."""
    rows: list[list[str]] = []
    chosen: list[str] = []
    for job in jobs:
        description, folder = read_description(job.folder), str(job.folder.relative_to(root))
        metric, worth = get_metric(job.recipe.metric_for(job.task) or ""), description.get("worth")
        if description.get("best_step"):
            chosen.append(f"{folder}: {_choice(job.recipe.steps, description, metric.scale)}")
        if worth is None:  # trained by an earlier version
            continue
        for name, point in (("head", worth["head"]), *((o["name"], o) for o in worth["others"])):
            figures = []
            for figure, scale in (("acceptance", 100), ("quality", metric.scale)):
                low, high = (scale * end for end in point[f"{figure}_interval"])
                figures.append(with_interval(scale * point[figure], low, high, ".1f"))
            rows.append([folder, name, f"{point['weight']:.2f}", *figures, metric.unit])
    headings = ("head", "verified by", "mean w", "acceptance (%)", "quality", "metric")
    print_table(
        Table(
            f"Heads of {spec.name} in {root}, on held-out prompts",
            [Column(heading) for heading in headings],
            rows,
            notes=["acceptance is per position, like expected_acceptance of a run", *chosen],
            stub=2,
        )
    )
