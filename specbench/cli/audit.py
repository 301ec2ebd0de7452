"""``specbench audit``: test whether a decoder that specbench does not own is lossless."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from specbench.audit.server import ADVICE, Server
from specbench.cli.generate import grouped
from specbench.cli.options import Models, NewFolder, PromptFiles
from specbench.cli.output import new_folder, note, print_json, print_table, step_status
from specbench.client import KEY_VARIABLE, Client
from specbench.config import DRAFT_LENGTH, LLAMACPP, Options, Settings, Temperature, option
from specbench.errors import RunError
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.variants import method_variants
from specbench.methods.registry import AUTOREGRESSIVE

if TYPE_CHECKING:
    from specbench.audit.decoders import Decoder
    from specbench.engine.loading import LoadedPair

FILE = "audit.json"
TRANSFORMERS = "transformers"
MAX_NEW_TOKENS = 64  # of a greedy text
# The target's weights are taken as they are.
MODELS = [
    name for name in Models.ordered_fields() if name not in ("dtype", "load_format", "quantization")
]


class AuditSettings(Options):
    """Which decoder to audit, and how much to decode."""

    decoder: Literal["llamacpp", "transformers"] | None = option(
        None,
        "A library's own loop, with the pair's models: llama.cpp's server in this process, or "
        "Transformers' assisted generation.",
        metavar="NAME",
        shown="the server at --url",
    )
    url: str | None = option(
        None, "A server with OpenAI's completions API, such as http://localhost:8080/v1."
    )
    model: str | None = option(None, "The server's name of the target.", metavar="NAME")
    api_key: str | None = option(
        None,
        "The server's key, sent as a bearer token and never stored or printed; other users of this "
        "machine see what you type, so prefer the variable.",
        metavar="KEY",
        variable=KEY_VARIABLE,
        exclude=True,
        repr=False,
    )
    text_prompts: bool = option(False, "Send prompts as text, to a server that takes no token ids.")
    timeout: float = option(
        60.0, "Seconds that a request to the server may take.", gt=0, allow_inf_nan=False
    )
    batch_size: int = option(1, "Requests that the server gets at once.", ge=1, metavar="B")
    weight: float | None = option(
        None,
        "transformers: its assistant_ensemble_weight, which is not lossless.",
        gt=0,
        lt=1,
        shown="off",
    )
    draft_length: int = option(
        DRAFT_LENGTH, "Tokens drafted per round; set a server to the same number.", ge=1
    )
    limit: int = option(4, "Prompts per task.", ge=1, flags=("--limit", "-n"))
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
    seed: int = option(0, "Random seed for choosing examples and for sampling.", ge=0)

    @model_validator(mode="after")
    def _one_decoder(self) -> AuditSettings:
        if (self.decoder is None) == (self.url is None):
            raise ValueError(f"give one of --decoder {LLAMACPP}, --decoder {TRANSFORMERS} or --url")
        if self.weight is not None and self.decoder != TRANSFORMERS:
            raise ValueError(f"--weight needs --decoder {TRANSFORMERS}: add it")
        return self

    def server(self) -> Server | None:
        """Return the server at --url, if any."""
        if self.url is None:
            return None
        client = Client(self.timeout, self.batch_size, self.api_key, ADVICE)
        return Server(self.url, client, self.model)


@grouped
def audit(
    data: PromptFiles, models: Annotated[Models, MODELS], settings: AuditSettings, to: NewFolder
) -> None:
    """Test whether a decoder that is not specbench's is lossless; the exit code is 1 if not.

    The decoder must run the pair's target. Its greedy texts must consist of the target's first
    choices in float32 up to rounding; first tokens, prefixes and all tokens of its sampled texts
    must follow the target's exact distribution. Each test names the smallest share of wrong draws
    (here: the draft's) that it notices with 99 % probability; the verdict is too weak if it would
    not notice a text of the draft.
    """
    server = settings.server()
    spec = models.spec()
    models.require_here(spec)
    if server is not None:
        server.reach()
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

    from specbench.audit.audit import LOSSY, WEAK, AuditOptions, run_audit, verdict
    from specbench.check.check import read_prompts
    from specbench.check.findings import Finding, findings_table
    from specbench.experiment.folders import as_json
    from specbench.experiment.progress import quiet_libraries
    from specbench.experiment.runner import Loader
    from specbench.files import write_atomically

    how = AuditOptions(
        settings.samples, settings.temperature, settings.draft_length, settings.seed, settings.tie
    )
    findings: list[Finding] = []
    found: dict[str, Any] = {"verdict": "unfinished", "audit": settings.model_dump()}
    with new_folder(to.output, f"audit-{plan.pair.name}") as folder:
        quiet_libraries(downloads=not to.no_progress)
        pair = Loader().load(plan)
        contexts = [context for _, context in read_prompts(plan, pair)]
        try:
            with (
                _decoder(settings, pair, plan, folder) as decoder,
                step_status(not to.no_progress) as show_step,
            ):
                for finding in run_audit(pair, decoder, contexts, how, show_step):
                    findings.append(finding)
            found["verdict"] = verdict(findings)
        finally:  # a server may fail in the middle
            if findings:
                found["findings"] = [asdict(finding) for finding in findings]
                write_atomically(folder / FILE, as_json(found))
    if to.as_json:
        print_json({"results": str(folder / FILE), **found})
    else:
        styles = {LOSSY: "bold red", WEAK: "yellow"}
        print_table(findings_table(findings, f"Audit with {plan.pair.name}"), styles=styles)
        print(f"verdict: {found['verdict']}")
        print(f"results: {folder / FILE}")
    if found["verdict"] == WEAK:
        note("some tests would not notice a fault: try more --samples, or other --prompts")
    if lossy := [finding for finding in findings if finding.verdict == LOSSY]:
        raise RunError(f"the decoder is lossy: {len(lossy)} of {len(findings)} tests failed")


@contextmanager
def _decoder(
    settings: AuditSettings, pair: LoadedPair, plan: Plan, folder: Path
) -> Iterator[Decoder]:
    """Yield the decoder to audit; llama.cpp gets files that are exported for it if necessary."""
    from specbench.audit.libraries import Assisted, llamacpp_server
    from specbench.engine.export import export_pair

    if (server := settings.server()) is not None:
        yield replace(server, tokenizer=pair.tokenizer if settings.text_prompts else None)
    elif settings.decoder == TRANSFORMERS:
        yield Assisted(pair, settings.draft_length, settings.weight)
    else:
        files: list[Any] = [*plan.pair.models.values()]
        if not plan.pair.gguf:
            files = export_pair(plan.pair, folder, "f32")
        with llamacpp_server(*map(Path, files), draft_length=settings.draft_length) as server:
            yield server
