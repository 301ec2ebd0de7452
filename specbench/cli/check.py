"""``specbench check``: is a pair decoded as the methods say?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specbench.check.findings import FAILED
from specbench.cli.choices import choose_methods
from specbench.cli.options import common as o
from specbench.cli.options.data import PromptFiles, Prompts, Tasks
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.rules import Rules, Weight
from specbench.cli.options.sampling import EngineName, Seed
from specbench.cli.output import Interrupted, console, note
from specbench.engine.settings import AUTO
from specbench.errors import RunError
from specbench.experiment.plan import build_plan
from specbench.experiment.settings import USUAL, Settings, require_at_least
from specbench.experiment.variants import method_variants
from specbench.tasks.task import Task

if TYPE_CHECKING:
    from specbench.check.plan import Check

FILE = "check.json"
LIMIT, SAMPLES, BATCH = 4, 256, 64
MOST_NEW = 64  # tokens that follow a prompt


@dataclass(frozen=True)
class Contexts(Tasks):
    """Tasks, or files of prompts in their place; nothing is scored."""

    prompts: PromptFiles = None

    def tasks(self) -> list[Task]:
        """Return the tasks the user means, or those made of the prompt files."""
        return Prompts(**{field.name: getattr(self, field.name) for field in fields(self)}).tasks()


@grouped
def check(
    data: Contexts,
    models: Models,
    rules: Rules,
    method: o.Methods = None,
    weight: Weight = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Prompts per task.")] = LIMIT,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", help="Texts sampled of each method; more of them see smaller faults."
        ),
    ] = SAMPLES,
    draft_length: Annotated[
        int, typer.Option("--draft-length", help="Tokens drafted per round.")
    ] = int(USUAL.draft_length),
    engine: EngineName = AUTO,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Texts sampled side by side.")
    ] = BATCH,
    seed: Seed = 0,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Check that a pair is decoded as the methods say; exit code 1 where it is not.

    In float32: greedy `sd` equals the target alone; sampled drafts, acceptance, corrections and
    bonus tokens follow the exact laws that plain forward passes give; the target as its own draft
    is always accepted. Then in the format of runs: greedy again, as a report, and whether the speed
    is possible. Every test has a control that must fail; where it does not, its verdict is weak.
    """
    require_at_least(1, "--samples", samples)
    chosen, dispensable = choose_methods(method)
    plan = build_plan(
        models.spec(),
        data.tasks(),
        method_variants(chosen, {"weight": weight, **rules.given()}),
        [draft_length],
        Settings(seed=seed, engine=engine, batch_size=batch_size, max_new_tokens=MOST_NEW),
        loading=models.loading(),
        limit=limit,
        may_execute=True,  # nothing is scored, so nothing is run
        dispensable=dispensable,
    )
    for text in plan.notes:
        note(text)
    from specbench.check.plan import Check

    _carry_out(Check(plan, draft_length, samples), output, progress=not no_progress)


def _carry_out(asked: Check, output: Path | None, progress: bool) -> None:
    from specbench.check.check import describe, run_check
    from specbench.check.show import failures, tables, weaknesses
    from specbench.experiment.folders import as_json, choose_folder
    from specbench.experiment.progress import quiet_libraries
    from specbench.files import clear_errors, write_atomically

    folder = choose_folder(output, f"check-{asked.plan.pair.name}")
    quiet_libraries(downloads=progress and sys.stderr.isatty())
    began = time.perf_counter()
    try:
        with clear_errors(folder):  # now, not when all has been compared
            folder.mkdir(parents=True, exist_ok=True)
        with _status(progress) as say:
            findings = list(run_check(asked, say, note))
        found = describe(asked, findings, time.perf_counter() - began)
        write_atomically(folder / FILE, as_json(found))
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was written") from error
    finally:
        with suppress(OSError):  # it is empty where nothing came of it
            folder.rmdir()
    for shown in tables(findings):
        console().print(shown)
    if weak := weaknesses(findings):
        note(
            f"{weak} of {len(findings)} comparisons are weak: a fault there would not have shown, "
            "which more --samples may change"
        )
    print(f"results: {folder / FILE}")
    if failed := failures(findings):
        for text in failed:
            print(f"{FAILED} {text}")
        raise RunError(f"{len(failed)} of {len(findings)} comparisons failed: each is named above")


@contextmanager
def _status(shown: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr, where it is a terminal, what is done at the moment."""
    out = Console(stderr=True)
    if not (shown and out.is_terminal):
        yield lambda text: None
        return
    with out.status("") as status:
        yield status.update
