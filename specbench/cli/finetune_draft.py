"""``specbench finetune-draft``: the paper's other baseline, a draft trained on the task."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.generate import flag, grouped
from specbench.cli.options import DEFAULT_PAIR, Models, NoProgress, Tasks, choose_pair, require_hub
from specbench.cli.output import Interrupted, note
from specbench.cli.train import describe_left_out
from specbench.config import AUTO
from specbench.errors import UsageError
from specbench.files import cannot_write
from specbench.training.recipe import DraftRecipe

DRAFTS = Path("results/drafts")
LINE_EVERY = 50  # steps, where there is no terminal


@grouped
def finetune_draft(
    data: Tasks,
    recipe: DraftRecipe,
    pair: Annotated[str | None, flag(Models, "pair")] = None,
    draft: Annotated[str | None, flag(Models, "draft")] = None,
    draft_revision: Annotated[str | None, flag(Models, "draft_revision")] = None,
    device: Annotated[str, flag(Models, "device")] = AUTO,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Gets a folder per task.", show_default="results/drafts/PAIR"
        ),
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Fine-tune a pair's draft on a task's training split, for `run --draft FOLDER`."""
    spec, tasks = choose_pair(pair, None, draft), data.tasks()
    require_hub("draft", spec, draft_revision)
    revision = draft_revision or spec.draft_revision
    root = output or DRAFTS / spec.name.replace("/", "-")
    folders = [root / chosen.name for chosen in tasks]
    for chosen, folder in zip(tasks, folders, strict=True):
        chosen.examples("train", 1)
        _require_empty(folder)

    from specbench.experiment.progress import quiet_libraries
    from specbench.training.finetune import finetune_draft as finetune
    from specbench.training.folder import progress_bar

    quiet_libraries(downloads=not no_progress and sys.stderr.isatty())
    for chosen, folder in zip(tasks, folders, strict=True):
        title = f"{spec.name} draft on {chosen.name}"
        try:
            with progress_bar(title, recipe.steps, not no_progress, LINE_EVERY) as report:
                said = finetune(spec.draft, chosen, recipe, folder, device, report, revision)
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted: {folder} was not written") from error
        limit = recipe.max_prompt_tokens
        if left_out := describe_left_out(chosen.name, said["left_out"], limit):
            note(left_out)
        loss = said["held_out_loss"]
        print(
            f"{folder}: held-out loss {loss['before']:.3f} before, {loss['after']:.3f} after "
            f"(nats per token, n = {loss['n']})"
        )
    choices = ["--pair", pair or DEFAULT_PAIR, "--draft", str(folders[-1])]
    choices += data.updated(task=None).retyped()
    print("use it: specbench run --method sd --task", tasks[-1].name, shlex.join(choices))


def _require_empty(folder: Path) -> None:
    try:
        taken = any(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(cannot_write(folder, error)) from error
    if taken:
        raise UsageError(f"{folder} is not empty: name another folder with --output")
