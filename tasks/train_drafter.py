"""Train a module of a pair that drafts; after a kill, the same command resumes.

``run --drafter FOLDER`` drafts with it. The page *training* describes the training, and the page
*methods* has the commands of the bundled modules:

    python tasks/train_drafter.py --pair mini -t mini-math --kind mtp --output results/drafters/mini
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from drafters.recipe import DrafterRecipe
from drafters.session import carry_out
from drafters.training import DrafterTraining

from specbench.cli.generate import grouped
from specbench.cli.options import Models, Progress, Tasks, output_option
from specbench.cli.output import Interrupted, note
from specbench.config import Options
from specbench.engine.hub import quiet_libraries
from specbench.engine.loading import load_pair
from specbench.errors import SpecbenchError, UsageError
from specbench.experiment.progress import training_bar
from specbench.files import check_writable
from specbench.training.recipe import CHECKPOINT

PARENT = Path("results/drafters")
LINE_EVERY = 50  # steps per printed line without a terminal


class DrafterFolder(Options):
    """Where the module goes."""

    output: Path | None = output_option("Folder for the module.", "results/drafters/PAIR")


@grouped
def train_drafter(
    data: Tasks,
    models: Annotated[Models, ("pair", "target", "draft", "device", "dtype")],
    recipe: DrafterRecipe,
    to: DrafterFolder,
    shown: Progress,
) -> None:
    """Train an EAGLE-3 or MTP module on the target's own texts, for `run --drafter FOLDER`."""
    spec, tasks = models.spec(), data.tasks()
    models.require_here(spec)
    folder = to.output or PARENT / spec.name.replace("/", "-")
    check_writable(folder)
    unfinished = (folder / CHECKPOINT).exists()
    if (folder / "config.json").exists() and not unfinished:
        raise UsageError(f"{folder} already contains a module: name another folder with --output")
    for task in tasks:
        task.examples("train", 1)
    quiet_libraries(downloads=not shown.no_progress)
    training = DrafterTraining(load_pair(spec, models.loading()), tasks, recipe)
    if unfinished:
        training.restore(folder)
    bars = not shown.no_progress
    try:
        if not training.texts:
            with training_bar(f"texts of {spec.name}", training.batches(), bars) as report:
                training.sample(folder, report)
        title = f"{recipe.kind} module of {spec.name}"
        with training_bar(title, recipe.steps, bars, LINE_EVERY) as report:
            description = carry_out(training, folder, report)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: the same command resumes from {folder}") from error
    note(f"{folder}: {description['held_out']['sentence']}")
    chosen = [*models.retyped(), *data.retyped()]
    print("use it: specbench run --method sd --drafter", shlex.join([str(folder), *chosen]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the module that the command line describes."""
    command = typer.Typer(add_completion=False)
    command.command()(train_drafter)
    try:
        command(arguments)
    except SpecbenchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
