"""``specbench audit``: test whether a decoder that specbench does not own has a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from specbench.cli.generate import grouped
from specbench.cli.options import CheckSize, Models, NewFolder, PromptFiles
from specbench.cli.output import Interrupted, new_folder, note, print_findings
from specbench.cli.servers import ServerAccess
from specbench.config import LLAMACPP, TRANSFORMERS, Options, Seeded, Temperature, option
from specbench.errors import RunError, UsageError
from specbench.experiment.cells import method_variants
from specbench.experiment.folders import as_json
from specbench.experiment.plan import Plan
from specbench.experiment.planning import build_plan
from specbench.experiment.progress import step_status
from specbench.files import write_atomically
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.configuration import Settings
from specbench.runs.run import RESULTS
from specbench.serving.client import Client
from specbench.serving.server import ADVICE, NEUTRAL_START, Server

if TYPE_CHECKING:
    from specbench.engine.pair import LoadedPair
    from specbench.validation import audit as audits

FILE = "audit.json"
UNFINISHED = "unfinished"
UNRELATED = {"timeout", "concurrency"}  # settings that do not change a text
LIBRARIES = (LLAMACPP, TRANSFORMERS)
MAX_NEW_TOKENS = 64  # of a greedy text
# The target's weights are taken as they are.
MODELS = [
    name for name in Models.ordered_fields() if name not in ("dtype", "load_format", "quantization")
]


class AuditSettings(ServerAccess, CheckSize, Seeded):
    """Which decoder to audit, and how much to decode."""

    panel = Options.panel

    decoder: str = option(
        ...,
        f"{LLAMACPP} or {TRANSFORMERS}, a library's own loop with the pair's models, or a server "
        "with OpenAI's completions API, such as http://localhost:8080/v1, with #MODEL behind the "
        "address; it must draft as many tokens as --draft-length says.",
        metavar="NAME|URL",
        complete=lambda: LIBRARIES,
    )
    text_prompts: bool = option(False, "Send prompts as text, to a server that takes no token ids.")
    concurrency: int = option(1, "Requests that the server gets at once.", ge=1, metavar="C")
    weight: float | None = option(
        None,
        "transformers: its assistant_ensemble_weight, which is not lossless.",
        gt=0,
        lt=1,
        shown="off",
    )
    samples: int = option(
        512, "Texts sampled per temperature; more texts detect smaller faults.", ge=1
    )
    temperature: list[Annotated[Temperature, Field(gt=0)]] = option(
        [1.0, 0.7],
        "Temperatures of sampled texts, besides greedy ones; several values are all tested.",
        metavar="FLOAT[,...]",
    )
    tie: float = option(
        1e-3,
        "Greedy texts fork by rounding where the target's logits differ by no more than this.",
        ge=0,
    )

    @model_validator(mode="after")
    def _weight_needs_transformers(self) -> AuditSettings:
        if self.weight is not None and self.decoder != TRANSFORMERS:
            raise ValueError(f"--weight needs --decoder {TRANSFORMERS}: add it")
        return self

    def server(self) -> Server | None:
        """Return the server to audit; None for a library."""
        if self.decoder in LIBRARIES:
            return None
        url, _, model = self.decoder.partition("#")
        client = Client(self.timeout, self.concurrency, advice=ADVICE)
        return Server(url, client, model or None)


@grouped
def audit(
    data: PromptFiles, models: Annotated[Models, MODELS], settings: AuditSettings, to: NewFolder
) -> None:
    """Test whether a decoder other than specbench has a fault; the exit code is 1 if it has.

    The decoder must run the pair's target. Its greedy texts must consist of the target's first
    choices in float32 up to rounding. Its sampled texts are tested for draws from the draft, for
    another temperature and for filters left on. The result names the smallest faults that would
    have been seen with 99 % probability. The same command resumes an interrupted audit. The exit
    code is 0 if no fault was found, 1 if one was found, and 2 if the audit was too weak to judge.
    """
    server = settings.server()
    spec = models.spec()
    models.require_here(spec)
    if server is not None:
        server = server.located()
    plan = build_plan(
        spec,
        data.tasks(),
        method_variants([AUTOREGRESSIVE], {}),
        [settings.draft_length],
        Settings(seed=settings.seed, max_new_tokens=MAX_NEW_TOKENS),
        loading=models.loading().updated(dtype="float32"),
        limit=settings.limit,
        may_execute=True,  # nothing is scored, so no generated code runs
    )
    note(*plan.notes)

    described = {"audit": settings.model_dump(exclude=UNRELATED), "pair": plan.describe()["pair"]}
    described = json.loads(as_json(described))
    result: dict[str, Any] = {"verdict": UNFINISHED, **described}
    with _folder(to.output, f"audit-{plan.pair.name}", described) as folder:
        from specbench.engine.hub import quiet_libraries
        from specbench.experiment.loader import Loader
        from specbench.validation import audit as audits
        from specbench.validation.check import read_prompts
        from specbench.validation.findings import Finding, failures, findings_table

        options = audits.AuditOptions(**settings.model_dump(include={*audits.AuditOptions._fields}))
        findings: list[Finding] = []
        quiet_libraries(downloads=not to.no_progress)
        with step_status(not to.no_progress) as show_step:
            show_step("loading the models")
            pair = Loader().load(plan)
        contexts = [context for _, context in read_prompts(plan, pair)]
        texts = audits.StoredTexts(folder / audits.TEXTS)
        if len(texts):
            note(f"resuming {folder}: {len(texts)} texts are done")
        try:
            with (
                _decoder(settings, pair, plan, folder, contexts[0].prompt) as decoder,
                step_status(not to.no_progress) as show_step,
            ):
                if isinstance(decoder, Server) and (refused := decoder.unset):
                    result["options_refused"] = refused
                show_step.expect(audits.most_steps(len(contexts), options), "prompts")
                # A process that is killed leaves an audit that goes on.
                write_atomically(folder / FILE, as_json(result))
                for finding in audits.run_audit(pair, decoder, contexts, options, show_step, texts):
                    findings.append(finding)
            result |= {
                "verdict": audits.verdict(findings),
                "visible": audits.visible_faults(findings),
            }
        except KeyboardInterrupt as error:
            if not len(texts):
                raise
            raise Interrupted(
                f"interrupted: {len(texts)} texts are in {folder}; run the same command to resume"
            ) from error
        finally:  # a server may fail in the middle
            if len(texts):
                result["findings"] = list(map(asdict, findings))
                write_atomically(folder / FILE, as_json(result))
    refusal = ""
    if names := ", ".join(result.get("options_refused", ())):
        refusal = f"the server refuses {names}, so its own values apply: {NEUTRAL_START}"
    visible = f"; {result['visible']} (99 % confidence)" if result["visible"] else ""
    lines = [f"verdict: {result['verdict']}{visible}", refusal, f"results: {folder / FILE}"]
    print_findings(
        to.as_json,
        {"results": str(folder / FILE), **result},
        findings_table(findings, f"Audit with {plan.pair.name}"),
        after=lines,
    )
    if result["verdict"] == audits.TOO_WEAK:
        raise UsageError(
            "the audit is too weak to judge, since texts of the draft alone might pass: "
            "raise --samples, or give other --prompts"
        )
    if result["verdict"] == audits.FAULT:
        faults = f"the decoder has a fault: {failures(findings)} tests failed"
        raise RunError("; ".join(filter(None, (faults, refusal))))


def _folder(
    output: Path | None, label: str, described: Mapping[str, Any]
) -> AbstractContextManager[Path]:
    """Return the folder of the same audit, if one was begun, or a new one."""
    begun = [output] if output else sorted(RESULTS.glob(f"*-{label}*"), reverse=True)
    for folder in begun:
        audit = _stored(folder / FILE)
        same = all(audit.get(name) == value for name, value in described.items())
        if same and (output or audit.get("verdict") == UNFINISHED):
            return nullcontext(folder)
    return new_folder(output, label)


def _stored(path: Path) -> dict[str, Any]:
    """Return the content of an earlier audit's file; empty if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def _decoder(
    settings: AuditSettings, pair: LoadedPair, plan: Plan, folder: Path, prompt: Sequence[int]
) -> Iterator[audits.Decoder]:
    """Yield the decoder to audit; llama.cpp gets files that are exported for it if necessary.

    A server is asked by ``prompt`` which options it takes.
    """
    from specbench.engine.export import export_pair
    from specbench.engine.hub import gguf_path
    from specbench.experiment.assisted import Assisted
    from specbench.validation.libraries import llamacpp_server

    if (server := settings.server()) is not None:
        tokenizer = pair.tokenizer if settings.text_prompts else None
        yield replace(server, tokenizer=tokenizer).learned(prompt)
    elif settings.decoder == TRANSFORMERS:
        yield Assisted(pair, settings.draft_length, settings.weight)
    else:
        if plan.pair.gguf:
            files = [gguf_path(plan.pair, role, plan.loading) for role in plan.pair.models]
        else:
            files = export_pair(plan.pair, folder, "f32")
        with llamacpp_server(*files, draft_length=settings.draft_length) as server:
            yield server
