"""``specbench check``: verify that a pair is decoded correctly."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field

from specbench.cli.generate import grouped
from specbench.cli.methods import Methods
from specbench.cli.options import Models, NewFolder, PromptFiles, RunSettings
from specbench.cli.output import new_folder, note, note_loading, print_findings
from specbench.cli.servers import NEEDS_SERVER, Headers
from specbench.config import DraftLength, Options, Temperature, option
from specbench.decoding.drafters.registry import DRAFTERS, parse_drafter
from specbench.errors import RunError, UsageError, require
from specbench.experiment.cells import method_variants
from specbench.experiment.folders import as_json
from specbench.experiment.planning import Systems, build_plan
from specbench.experiment.progress import step_status
from specbench.files import write_atomically
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.configuration import Settings
from specbench.serving.client import Client
from specbench.serving.server import ADVICE, Server
from specbench.validation.findings import FAILED, WEAK, conclusion, failures

FILE = "check.json"
MAX_NEW_TOKENS = 256  # of greedy texts, which should end before
TIMEOUT, CONCURRENCY = 300.0, 8  # seconds of a request to a server, and requests at once
SAMPLES, OF_SERVER = 256, 512  # texts


class CheckSettings(DraftLength, Headers):
    """How much the check decodes."""

    panel = Options.panel

    limit: int = option(4, "Prompts per task.", ge=1, flags=("--limit", "-n"))
    server: str | None = option(
        None,
        "A server with OpenAI's completions API to check in place of the pair, such as "
        "http://localhost:8000, with #MODEL behind the address; it runs the pair's target in "
        "--dtype, and drafts --draft-length tokens.",
        metavar="URL",
        conflicts={
            "drafter": "--drafter is the server's own: leave it out",
            "batch_size": "--batch-size is the server's own: leave it out",
        },
    )
    temperature: list[Annotated[Temperature, Field(gt=0)]] = option(
        [1.0, 0.7],
        "Temperatures of a server's sampled texts, besides greedy ones; all are tested.",
        metavar="FLOAT[,...]",
        panel=Headers.panel,
        needs=NEEDS_SERVER,
    )
    samples: int | None = option(
        None,
        "Texts sampled per method, or per temperature of a server; more detect smaller faults.",
        ge=1,
        shown=f"{SAMPLES}, of a server {OF_SERVER}",
    )
    batch_size: int = option(64, "Texts sampled in one batch.", ge=1)
    drafter: list[str] | None = option(
        None,
        f"What proposes drafts: {', '.join(DRAFTERS)}, or a module by its name or folder.",
        metavar="NAME[,NAME...]",
        shown=",".join(DRAFTERS),
        complete=lambda: DRAFTERS,
    )

    def located(self) -> Server | None:
        """Return the server, once it answers; None without one."""
        if self.server is None:
            return None
        url, _, model = self.server.partition("#")
        client = Client(TIMEOUT, CONCURRENCY, advice=ADVICE, headers=self.headers)
        return Server(url, client, model or None).located()


@grouped
def check(
    data: PromptFiles,
    models: Models,
    methods: Methods,
    settings: CheckSettings,
    run: Annotated[RunSettings, ("engine", "seed")],
    to: NewFolder,
) -> None:
    """Check that a pair, or a server, decodes correctly; the exit code is 1 if it does not.

    In float32: greedy `sd` must equal the target alone; drafts, acceptance, corrections and bonus
    tokens must follow the exact distributions computed from plain forward passes; the target as its
    own draft must always be accepted. Then, in the dtype of runs: greedy decoding again (reported
    only), and whether the measured speed is possible. A server's greedy texts must be the target's
    first choices, and its sampled ones must follow the target's distribution. Tests of draws
    and ends have a negative control; if it passes, the verdict is weak. The exit code is 2 if texts
    of a server's draft alone might pass.
    """
    if settings.server is not None:
        groups = (methods, run)
        flags = [group.flags(n)[0] for group in groups for n in group.model_fields_set - {"seed"}]
        sentence = "--server is compared with the target alone: leave out"
        require(not flags, f"{sentence} {', '.join(sorted(flags))}")
    spec = models.spec()
    drafters = [parse_drafter(name, spec.drafters) for name in settings.drafter or DRAFTERS]
    models.require_here(spec, run.engine)
    server = settings.located()
    variants = method_variants([AUTOREGRESSIVE], {}) if server else methods.variants()
    systems = Systems(variants, [settings.draft_length], drafters, methods.optional)
    sizes: dict[str, Any] = {"batch_size": settings.batch_size, "max_new_tokens": MAX_NEW_TOKENS}
    plan = build_plan(
        *(spec, data.tasks(), systems, Settings(seed=run.seed, engine=run.engine, **sizes)),
        loading=models.loading(),
        limit=settings.limit,
        may_execute=True,  # nothing is scored, so no generated code runs
    )
    note(*plan.notes)
    note_loading(plan.pair.models)

    with new_folder(to.output, f"check-{plan.pair.name}") as folder:
        from specbench.engine.hub import quiet_libraries
        from specbench.validation.check import Check, content_of, run_check, tables
        from specbench.validation.server import too_weak

        texts = settings.samples or (OF_SERVER if server else SAMPLES)
        temperatures = settings.temperature if server else ()
        task = Check(plan, settings.draft_length, texts, MAX_NEW_TOKENS, server, temperatures)
        quiet_libraries(downloads=not to.no_progress)
        began = time.perf_counter()
        with step_status(not to.no_progress) as show_step:
            findings = list(run_check(task, show_step))
        result = content_of(task, findings, time.perf_counter() - began)
        write_atomically(folder / FILE, as_json(result))
    failed, weak = failures(findings), too_weak(findings) if server else False
    answer = "" if failed or weak else conclusion(findings, "decoded correctly", "fault")
    if answer and not server and {name for name, _ in variants} - {"sd", AUTOREGRESSIVE}:
        answer += "; at T = 0 only sd was decoded, no other rule"
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
    if weak:
        raise UsageError(
            "too weak to judge, since texts of the draft alone might pass: raise --samples, or "
            "give other --prompts"
        )
