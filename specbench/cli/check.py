"""``specbench check``: is a pair decoded as the methods say?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from rich.console import Console

from specbench.cli.generate import flag, grouped
from specbench.cli.options import (
    Methods,
    Models,
    NoProgress,
    Output,
    PromptFiles,
    Rules,
    choose_methods,
)
from specbench.cli.output import Interrupted, note, print_table
from specbench.config import AUTO, DRAFT_LENGTH, Options, RunSettings, Settings, option
from specbench.errors import RunError
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.variants import method_variants

FILE = "check.json"
MAX_NEW_TOKENS = 64  # that follow a prompt


class CheckSettings(Options):
    """How much is decoded."""

    limit: int = option(4, "Prompts per task.", ge=1, flags=("--limit", "-n"))
    samples: int = option(
        256, "Texts sampled of each method; more of them detect smaller faults.", ge=1
    )
    draft_length: int = option(DRAFT_LENGTH, "Tokens drafted per round.", ge=1)
    batch_size: int = option(64, "Texts sampled side by side.", ge=1)


@grouped
def check(
    data: PromptFiles,
    models: Models,
    rules: Rules,
    settings: CheckSettings,
    method: Methods = None,
    engine: Annotated[str, flag(RunSettings, "engine")] = AUTO,
    seed: Annotated[int, flag(RunSettings, "seed")] = 0,
    output: Output = None,
    no_progress: NoProgress = False,
) -> None:
    """Check that a pair is decoded as the methods say; exit code 1 where it is not.

    In float32: greedy `sd` equals the target alone; sampled drafts, acceptance, corrections and
    bonus tokens follow the exact laws that plain forward passes give; the target as its own draft
    is always accepted. Then in the format of runs: greedy again, as a report, and whether the speed
    is possible. Every test has a control that must fail; where it does not, the verdict is weak.
    """
    chosen, optional = choose_methods(method)
    plan = build_plan(
        models.spec(),
        data.tasks(),
        method_variants(chosen, rules.given()),
        [settings.draft_length],
        Settings(
            seed=seed,
            engine=engine,  # type: ignore[arg-type]
            batch_size=settings.batch_size,
            max_new_tokens=MAX_NEW_TOKENS,
        ),
        loading=models.loading(),
        limit=settings.limit,
        may_execute=True,  # nothing is scored, so nothing is run
        optional=optional,
    )
    for text in plan.notes:
        note(text)
    _carry_out(plan, settings, output, progress=not no_progress)


def _carry_out(plan: Plan, settings: CheckSettings, output: Path | None, progress: bool) -> None:
    from specbench.check.check import Check, describe, run_check, tables
    from specbench.check.findings import FAILED, WEAK
    from specbench.experiment.folders import as_json, choose_folder
    from specbench.experiment.progress import quiet_libraries
    from specbench.files import clear_errors, write_atomically

    check = Check(plan, settings.draft_length, settings.samples)
    folder = choose_folder(output, f"check-{plan.pair.name}")
    quiet_libraries(downloads=progress and sys.stderr.isatty())
    began = time.perf_counter()
    try:
        with clear_errors(folder):  # now, not when all has been compared
            folder.mkdir(parents=True, exist_ok=True)
        with _status(progress) as say:
            findings = list(run_check(check, say))
        found = describe(check, findings, time.perf_counter() - began)
        write_atomically(folder / FILE, as_json(found))
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was written") from error
    finally:
        with suppress(OSError):  # not empty where something was written
            folder.rmdir()
    print_table(*tables(findings), styles={FAILED: "bold red", WEAK: "yellow"})
    if weak := sum(finding.verdict == WEAK for finding in findings):
        note(
            f"{weak} of {len(findings)} comparisons are weak: they would not have detected a "
            "fault; more --samples may change that"
        )
    print(f"results: {folder / FILE}")
    if failed := [finding for finding in findings if finding.verdict == FAILED]:
        for finding in failed:
            print(f"{FAILED} {finding.subject}: {finding.name}: {finding.says}")
        raise RunError(f"{len(failed)} of {len(findings)} comparisons failed: each is named above")


@contextmanager
def _status(shown: bool) -> Iterator[Callable[[str], None]]:
    """Show the current step on stderr, where it is a terminal."""
    out = Console(stderr=True)
    if not (shown and out.is_terminal):
        yield lambda text: None
        return
    with out.status("") as status:
        yield status.update
