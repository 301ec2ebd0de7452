"""Options that name servers, which decode as arms of a run, and ``specbench serve``."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.generate import grouped
from specbench.cli.methods import Methods
from specbench.cli.options import DryRun, Models
from specbench.config import AUTO, Count, DraftLength, Options, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind, require_draft
from specbench.decoding.heads.registry import find_head
from specbench.engine.choice import has_gpu_driver
from specbench.engine.pairs import PairSpec
from specbench.errors import UsageError, require
from specbench.methods.method import HEAD
from specbench.methods.registry import AUTOREGRESSIVE, METHODS, get_method
from specbench.runs.configuration import Settings
from specbench.serving import arm as server_arm

if TYPE_CHECKING:
    from specbench.serving.client import Client

_NAME = re.compile(r"[\w.-]+")
NEEDS_SERVER = {"server": "{} needs --server: add one"}
PLUGINS, PLUGIN = "VLLM_PLUGINS", "specbench"  # routes are added only if they are named
# The texts are the model's own, and each answer tells its acceptance.
ALWAYS = shlex.split(
    "--generation-config vllm --no-enable-prefix-caching --enable-per-request-metrics"
)
# On a CPU, vLLM dies if it reads the prompt of a seeded request in parts.
ON_CPU = shlex.split("--max-num-batched-tokens 16384")


class Headers(Options):
    """What every request to a server has beside its body."""

    panel = "Servers"

    header: list[str] | None = option(
        None,
        "Header of every request, such as api-key=SECRET; only its name is stored.",
        metavar="NAME=VALUE",
        whole=True,
        needs=NEEDS_SERVER,
    )

    @property
    def headers(self) -> dict[str, str]:
        """The headers by name."""
        parts = [text.partition("=") for text in self.header or ()]
        require(
            all(name.strip() and value for name, _, value in parts),
            "--header must be NAME=VALUE, such as api-key=SECRET",
        )
        return {name.strip(): value for name, _, value in parts}


class Servers(Headers):
    """Servers with OpenAI's API that are measured, beside methods or alone."""

    timeout: float = option(
        300.0, "Seconds that a request to a server may take.", gt=0, allow_inf_nan=False
    )
    server: list[str] | None = option(
        None,
        "Servers with OpenAI's API to measure beside the methods that --method names, or alone: "
        "fast=http://localhost:8000, or with #MODEL behind the address.",
        metavar="NAME=URL",
    )
    concurrency: list[Count] = option(
        [1],
        "Requests in flight per server; several values are all measured.",
        metavar="C[,C...]",
        needs=NEEDS_SERVER,
    )
    send: str | None = option(
        None,
        "How servers get prompts.",
        choices=server_arm.SENT,
        shown="tokens with --pair or --target, else chat",
        metavar="FORM",
        needs=NEEDS_SERVER,
    )
    rule: list[str] | None = option(
        None,
        "Rule by which vLLM with specbench's plugin verifies for an arm, such as "
        "mixed=static:weight=0.5; see `specbench docs vllm`.",
        metavar="NAME=RULE",
        needs=NEEDS_SERVER,
    )
    alias: list[str] | None = option(
        None,
        "Another name of its model under which a server answers, such as fast=base-model; dated "
        "names need none.",
        metavar="NAME=MODEL",
        needs=NEEDS_SERVER,
    )
    set_body: list[str] | None = option(
        None,
        "What every request has beside what the run sends, or those of one server: "
        "fast:chat_template_kwargs.enable_thinking=false.",
        metavar="[NAME:]KEY[.KEY]=VALUE",
        whole=True,
        needs=NEEDS_SERVER,
    )

    @property
    def client(self) -> Client:
        """What sends the requests."""
        from specbench.serving.client import Client

        return Client(self.timeout, max(self.concurrency), headers=self.headers)

    def arms(self, pair: bool, settings: Settings) -> list[server_arm.Arm]:
        """Return the arms, whose servers answer; with a ``pair``, they get token ids."""
        arms = []
        for text in self.server or ():
            name, equals, address = text.partition("=")
            if not equals or not _NAME.fullmatch(name):
                example = "such as fast=http://localhost:8000"
                raise UsageError(f"--server cannot be '{text}': give NAME=URL, {example}")
            url, _, model = address.partition("#")
            sent = self.send or (server_arm.TOKENS if pair else server_arm.CHAT)
            arms.append(server_arm.Arm(name, url, model, sent))
        names = [arm.name for arm in arms]
        for name, number in Counter(names).items():
            require(number == 1, f"two servers are named {name}: rename one")
            advice = "is a method, choose another name"
            require(name not in METHODS, f"--server {name}=...: {name} {advice}")
        texts: list[str] = []
        for part in self.rule or ():  # a rule may have several values, after commas
            has_values = bool(texts) and ":" in texts[-1] and "=" in part and ":" not in part
            goes_on = has_values and part.partition("=")[0] not in names
            texts[len(texts) - goes_on :] = [f"{texts[-1]},{part}" if goes_on else part]
        rules = dict(_named("--rule", text, names, "static:weight=0.5") for text in texts)
        aliases = dict(_named("--alias", text, names, "base-model") for text in self.alias or ())
        arms = [
            arm._replace(
                rule=rules.get(arm.name, ""),
                alias=aliases.get(arm.name, ""),
                body=server_arm.body_of(arm, self.set_body or (), names),
            )
            for arm in arms
        ]
        require(
            pair or not any(arm.prompts == server_arm.TOKENS for arm in arms),
            "--send tokens needs the server's tokenizer: name it with --pair or --target",
        )
        by_text = [arm.name for arm in arms if arm.prompts != server_arm.TOKENS]
        require(
            not (by_text and (settings.max_prompt_tokens or settings.prompt_format)),
            "--max-prompt-tokens and --prompt-format (also by --preset) shape token ids, and whole "
            f"texts go to {', '.join(by_text)}: leave them out, or add --send tokens",
        )
        if not arms:
            return []
        from specbench.serving.server import Server

        client, reached = self.client, []
        for arm in arms:
            server = Server(arm.url, client, arm.model or None).located()
            model = str(server.describe(arm.alias)["model"])
            reached.append(arm._replace(url=server.url, model=model))
        return reached


def _named(option: str, text: str, names: Collection[str], example: str) -> tuple[str, str]:
    """Return the server that a text NAME=VALUE is about, and the value."""
    name, _, value = text.partition("=")
    require(bool(value), f"{option} cannot be '{text}': give NAME=VALUE, such as fast={example}")
    require(name in names, f"{option} {text}: there is no --server {name}=URL")
    return name, value


class ServeOptions(DraftLength, DryRun):
    """What vLLM serves, and where."""

    drafter: str = option(
        "model", "What proposes drafts: model draws from q.", choices=tuple(DRAFTERS)
    )
    vllm: str = option(
        server_arm.VLLM,
        "The vllm program of an environment that has specbench too, by `pip install --no-deps`.",
        metavar="FILE",
    )


@grouped
def serve(
    models: Annotated[Models, ["pair", "target", "draft", "models"]],
    methods: Annotated[Methods, ["method", "set_values", "head"]],
    options: ServeOptions,
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- VLLM_OPTIONS]", help="Options for vllm serve."),
    ] = None,
) -> None:
    """Start vLLM with a pair; rules of specbench verify the drafts."""
    spec = models.spec(alone=True)
    drafter = parse_kind(options.drafter, None)
    rules = _rules(methods, spec, drafter)
    command = [
        options.vllm,
        "serve",
        *_arguments(spec, options, drafter if rules else None),
        *(further or ()),
    ]
    environment = {}
    if rules and rules != [server_arm.VLLM]:
        plugins = ",".join(filter(None, [os.environ.get(PLUGINS), PLUGIN]))
        environment = {server_arm.VARIABLE: server_arm.SEPARATOR.join(rules), PLUGINS: plugins}
    if options.dry_run:
        assignments = (f"{name}={shlex.quote(value)}" for name, value in environment.items())
        print(*assignments, shlex.join(command))
        return
    if (program := shutil.which(options.vllm)) is None:
        raise UsageError(
            f"no program {options.vllm}: name vLLM's with --vllm (see `specbench docs vllm`)"
        )
    os.execve(program, command, {**os.environ, **environment})


def _rules(methods: Methods, spec: PairSpec, drafter: DrafterKind) -> list[str]:
    """Return the texts of the rules; ``vllm`` for vLLM's own, nothing for no speculation."""
    from specbench.serving.vllm.rules import reads_hidden_states, rule_of

    if methods.method in ([server_arm.VLLM], [AUTOREGRESSIVE]):
        return [server_arm.VLLM] if methods.method == [server_arm.VLLM] else []
    rules = []
    for name, parameters in methods.updated(method=methods.method or ["sd"]).variants():
        values = {key: value for key, value in parameters.items() if value is not None}
        if HEAD in get_method(name).parameters:
            head = find_head(spec, "vLLM", values.get(HEAD.name), trainable=False)
            bundled = head.path.parent == spec.heads
            values[HEAD.name] = f"{spec.name}/{head.path.name}" if bundled else head.path.resolve()
            require(
                drafter.needs_draft or not reads_hidden_states(head.path),
                f"{name} reads hidden states of the draft model: leave out --drafter",
            )
        assignments = ",".join(f"{key}={value}" for key, value in values.items())
        rules.append(f"{name}:{assignments}" if assignments else name)
        rule_of(rules[-1])
    return rules


def _arguments(spec: PairSpec, options: ServeOptions, drafter: DrafterKind | None) -> list[str]:
    arguments = [spec.target, "--served-model-name", spec.name, "--host", "127.0.0.1"]
    arguments += ALWAYS + ([] if has_gpu_driver() else ON_CPU)
    arguments += [] if spec.dtype == AUTO else ["--dtype", spec.dtype]
    if drafter is None:
        return arguments
    require_draft(spec.draft, [drafter])
    speculation = drafter.vllm(options.draft_length, spec.draft)
    require(speculation is not None, f"vLLM has no drafter like {drafter}: choose another")
    arguments += ["--speculative-config", json.dumps(speculation)]
    return [*arguments, "--per-request-spec-decode-metrics", "detailed"]
