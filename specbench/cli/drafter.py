"""``specbench train-draft`` trains a head that drafts for a pair's target."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from specbench.cli.generate import grouped
from specbench.cli.options import DEFAULT_PAIR, Models, Progress, Tasks, output_option
from specbench.cli.output import Interrupted, note
from specbench.config import Options, option
from specbench.errors import UsageError
from specbench.files import check_writable
from specbench.training.recipe import DrafterRecipe

HEADS = Path("results/drafters")
LINE_EVERY = 50  # steps per printed line without a terminal


class DrafterFolder(Options):
    """Where the head goes, and whether to resume."""

    output: Path | None = output_option("Folder for the head.", "results/drafters/PAIR")
    resume: bool = option(False, "Resume an interrupted training.")


@grouped
def train_draft(
    data: Tasks,
    models: Annotated[Models, ("pair", "target", "draft", "device", "dtype")],
    recipe: DrafterRecipe,
    to: DrafterFolder,
    shown: Progress,
) -> None:
    """Train an EAGLE-3 or MTP head on the target's own texts, for `run --drafter FOLDER`."""
    spec, tasks = models.spec(), data.tasks()
    models.require_here(spec)
    folder = to.output or HEADS / spec.name.replace("/", "-")
    check_writable(folder)
    unfinished = (folder / "checkpoint.pt").exists()
    if (folder / "config.json").exists() and not unfinished:
        raise UsageError(f"{folder} already contains a head: name another folder with --output")
    if unfinished and not to.resume:
        raise UsageError(
            f"{folder} contains an unfinished training: add --resume, or name another folder with "
            "--output"
        )
    for task in tasks:
        task.examples("train", 1)

    from specbench.engine.loading import load_pair
    from specbench.experiment.progress import quiet_libraries, training_bar
    from specbench.training.drafter import DrafterTraining
    from specbench.training.drafter_session import carry_out

    quiet_libraries(downloads=not shown.no_progress)
    training = DrafterTraining(load_pair(spec, models.loading()), tasks, recipe)
    if unfinished:
        training.restore(folder)
    bars = not shown.no_progress
    try:
        if not training.texts:
            with training_bar(f"texts of {spec.name}", training.batches(), bars) as report:
                training.sample(folder, report)
        title = f"{recipe.kind} head of {spec.name}"
        with training_bar(title, recipe.steps, bars, LINE_EVERY) as report:
            description = carry_out(training, folder, report)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted: if {folder} contains checkpoint.pt, add --resume to the same command to "
            "resume"
        ) from error
    note(f"{folder}: {description['held_out']['sentence']}")
    chosen = ["--pair", models.pair or DEFAULT_PAIR, *data.retyped()]
    print("use it: specbench run --method sd --drafter", shlex.join([str(folder), *chosen]))
