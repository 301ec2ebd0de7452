"""``specbench check``: verify that a pair is decoded correctly."""

from __future__ import annotations

import time
from typing import Annotated

from specbench.cli.generate import grouped
from specbench.cli.methods import Methods
from specbench.cli.options import CheckSize, Models, NewFolder, PromptFiles, RunSettings
from specbench.cli.output import new_folder, note, note_loading, print_findings
from specbench.config import option
from specbench.decoding.drafters.registry import DRAFTERS, parse_drafter
from specbench.errors import RunError
from specbench.experiment.folders import as_json
from specbench.experiment.planning import build_plan
from specbench.experiment.progress import step_status
from specbench.files import write_atomically
from specbench.runs.configuration import Settings
from specbench.validation.findings import FAILED, WEAK, conclusion, failures

FILE = "check.json"
MAX_NEW_TOKENS = 256  # of greedy texts, which should end before


class CheckSettings(CheckSize):
    """How much the check decodes."""

    samples: int = option(256, "Texts sampled per method; more texts detect smaller faults.", ge=1)
    batch_size: int = option(64, "Texts sampled in one batch.", ge=1)
    drafter: list[str] | None = option(
        None,
        f"What proposes drafts: {', '.join(DRAFTERS)}, or a module by its name or folder.",
        metavar="NAME[,NAME...]",
        shown=",".join(DRAFTERS),
        complete=lambda: DRAFTERS,
    )


@grouped
def check(
    data: PromptFiles,
    models: Models,
    methods: Methods,
    settings: CheckSettings,
    run: Annotated[RunSettings, ("engine", "seed")],
    to: NewFolder,
) -> None:
    """Check that a pair is decoded correctly; the exit code is 1 if it is not.

    In float32: greedy `sd` must equal the target alone; drafts, acceptance, corrections and bonus
    tokens must follow the exact distributions computed from plain forward passes; the target as its
    own draft must always be accepted. Then, in the dtype of runs: greedy decoding again (reported
    only), and whether the measured speed is possible. Every test has a negative control; if the
    control passes, the verdict is weak.
    """
    spec = models.spec()
    drafters = [parse_drafter(name, spec.drafters) for name in settings.drafter or DRAFTERS]
    models.require_here(spec, run.engine)
    plan = build_plan(
        spec,
        data.tasks(),
        methods.variants(),
        [settings.draft_length],
        Settings(
            seed=run.seed,
            engine=run.engine,
            batch_size=settings.batch_size,
            max_new_tokens=MAX_NEW_TOKENS,
        ),
        loading=models.loading(),
        limit=settings.limit,
        may_execute=True,  # nothing is scored, so no generated code runs
        optional=methods.optional,
        drafters=drafters,
    )
    note(*plan.notes)
    note_loading(plan.pair.models)

    with new_folder(to.output, f"check-{plan.pair.name}") as folder:
        from specbench.engine.hub import quiet_libraries
        from specbench.validation.check import Check, describe, run_check, tables

        task = Check(plan, settings.draft_length, settings.samples, MAX_NEW_TOKENS)
        quiet_libraries(downloads=not to.no_progress)
        began = time.perf_counter()
        with step_status(not to.no_progress) as show_step:
            findings = list(run_check(task, show_step))
        result = describe(task, findings, time.perf_counter() - began)
        write_atomically(folder / FILE, as_json(result))
    failed = failures(findings)
    answer = "" if failed else conclusion(findings, "decoded correctly", "fault")
    content = {"results": str(folder / FILE), "conclusion": answer, **result}
    is_weak = any(finding.verdict == WEAK for finding in findings)
    meaning = f"{WEAK}: the negative control passed too, so a fault would not have been seen"
    lines = [meaning if is_weak else "", f"results: {folder / FILE}", answer]
    print_findings(to.as_json, content, *tables(findings), after=lines)
    for finding in () if to.as_json else findings:
        if finding.verdict == FAILED:
            print(f"{FAILED} {finding.subject}: {finding.name}: {finding.sentence}")
    if failed:
        raise RunError(f"not decoded correctly: {failed} comparisons failed: see above")
