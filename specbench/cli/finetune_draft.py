"""``specbench finetune-draft``: the paper's other baseline, a draft trained on the task."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.choices import DEFAULT_PAIR, choose_pair
from specbench.cli.options import common as o
from specbench.cli.options.data import Tasks
from specbench.cli.options.groups import grouped, retyped
from specbench.cli.options.models import Device, Draft, DraftRevision, Pair, require_hub
from specbench.cli.output import Interrupted, note
from specbench.errors import UsageError
from specbench.files import cannot_write
from specbench.training.draft_recipe import LARGE_RATE, SMALL_RATE, SMALL_WIDTH, DraftRecipe

DRAFTS = Path("results/drafts")
LINE_EVERY = 50  # steps, where there is no terminal


@grouped
def finetune_draft(
    data: Tasks,
    pair: Pair = None,
    draft: Draft = None,
    draft_revision: DraftRevision = None,
    device: Device = "auto",
    steps: Annotated[int, typer.Option("--steps", help="Batches.")] = DraftRecipe.steps,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Examples in a batch.")
    ] = DraftRecipe.batch_size,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            help="AdamW's, at its peak.",
            show_default=f"{SMALL_RATE:g} for models narrower than {SMALL_WIDTH}, "
            f"else {LARGE_RATE:g}",
        ),
    ] = None,
    max_prompt_tokens: Annotated[
        int,
        typer.Option("--max-prompt-tokens", help="Longest prompt; a longer one is cut."),
    ] = DraftRecipe.max_prompt_tokens,
    seed: Annotated[int, typer.Option("--seed", help="Decides the examples.")] = DraftRecipe.seed,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Gets a folder per task.", show_default="results/drafts/PAIR"
        ),
    ] = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Fine-tune a pair's draft on a task's training split, for `run --draft FOLDER`."""
    recipe = DraftRecipe(steps, batch_size, learning_rate, max_prompt_tokens, seed)
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

    quiet_libraries(downloads=not no_progress and sys.stderr.isatty())
    for chosen, folder in zip(tasks, folders, strict=True):
        try:
            with _progress(f"{spec.name} draft on {chosen.name}", steps, not no_progress) as report:
                said = finetune(spec.draft, chosen, recipe, folder, device, report, revision)
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted: {folder} was not written") from error
        if left_out := sum(said["left_out"].values()):
            note(
                f"{chosen.name}: {left_out} examples are left out, longer than --max-prompt-tokens "
                f"{max_prompt_tokens} and without a passage that may be cut"
            )
        loss = said["held_out_loss"]
        print(
            f"{folder}: held-out loss {loss['before']:.3f} before, {loss['after']:.3f} after "
            f"(nats per token, n = {loss['n']})"
        )
    choices = ["--pair", pair or DEFAULT_PAIR, "--draft", str(folders[-1])]
    choices += retyped(replace(data, task=None))
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


@contextmanager
def _progress(title: str, steps: int, shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A bar on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not shown:
        yield lambda step, loss: None
    elif not console.is_terminal:
        yield (
            lambda step, loss: (
                print(f"{title}: step {step}, loss {loss:.3f}", file=sys.stderr)
                if step % LINE_EVERY == 0
                else None
            )
        )
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            line = bar.add_task(title, total=steps)
            yield lambda step, loss: bar.update(
                line, completed=step, description=f"{title}, loss {loss:.3f}"
            )
