"""``specbench serve``: start vLLM with a pair, its drafts verified by rules of specbench."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import Annotated

import typer

from specbench.cli.generate import grouped
from specbench.cli.methods import Methods
from specbench.cli.options import Models
from specbench.config import DraftLength, DryRun, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind, require_draft
from specbench.decoding.heads.registry import find_head
from specbench.engine.pairs import PairSpec
from specbench.errors import UsageError, require
from specbench.methods.method import HEAD
from specbench.methods.registry import AUTOREGRESSIVE, get_method
from specbench.serving.arm import SEPARATOR, VARIABLE, VLLM

PLUGINS, PLUGIN = "VLLM_PLUGINS", "specbench"  # routes are added only if they are named
# The texts are the model's own, and each answer tells its acceptance.
ALWAYS = shlex.split(
    "--generation-config vllm --no-enable-prefix-caching --enable-per-request-metrics"
)


class ServeOptions(DraftLength, DryRun):
    """What vLLM serves, and where."""

    drafter: str = option(
        "model", "What proposes drafts: model draws from q.", choices=tuple(DRAFTERS)
    )
    vllm: str = option(
        VLLM,
        "The vllm program of an environment that has specbench too, by `pip install --no-deps`.",
        metavar="FILE",
    )


@grouped
def serve(
    models: Annotated[Models, ["pair", "target", "draft"]],
    methods: Annotated[Methods, ["method", "set_values", "head"]],
    asked: ServeOptions,
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- VLLM_OPTIONS]", help="Options for vllm serve."),
    ] = None,
) -> None:
    """Start vLLM with a pair; rules of specbench verify the drafts."""
    spec = models.spec(alone=True)
    drafter = parse_kind(asked.drafter, None)
    rules = _rules(methods, spec, drafter)
    command = [
        asked.vllm,
        "serve",
        *_arguments(spec, asked, drafter if rules else None),
        *(further or ()),
    ]
    environment = {}
    if rules and rules != [VLLM]:
        plugins = ",".join(filter(None, [os.environ.get(PLUGINS), PLUGIN]))
        environment = {VARIABLE: SEPARATOR.join(rules), PLUGINS: plugins}
    if asked.dry_run:
        assignments = (f"{name}={shlex.quote(value)}" for name, value in environment.items())
        print(*assignments, shlex.join(command))
        return
    if (program := shutil.which(asked.vllm)) is None:
        raise UsageError(
            f"no program {asked.vllm}: name vLLM's with --vllm (see `specbench docs servers`)"
        )
    os.execve(program, command, {**os.environ, **environment})


def _rules(methods: Methods, spec: PairSpec, drafter: DrafterKind) -> list[str]:
    """Return the texts of the rules; ``vllm`` for vLLM's own, nothing for no speculation.

    Raises:
        UsageError: vLLM cannot use one of them.
    """
    from specbench.serving.vllm.rules import reads_hidden_states, rule_of

    if methods.method in ([VLLM], [AUTOREGRESSIVE]):
        return [VLLM] if methods.method == [VLLM] else []
    rules = []
    for name, options in methods.updated(method=methods.method or ["sd"]).variants():
        values = {key: value for key, value in options.items() if value is not None}
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


def _arguments(spec: PairSpec, asked: ServeOptions, drafter: DrafterKind | None) -> list[str]:
    """Return the arguments of ``vllm serve``."""
    arguments = [spec.target, "--served-model-name", spec.name, "--host", "127.0.0.1"]
    arguments += ALWAYS
    if drafter is None:
        return arguments
    require_draft(spec.draft, [drafter])
    speculation = drafter.vllm(asked.draft_length, spec.draft)
    require(speculation is not None, f"vLLM has no drafter like {drafter}: choose another")
    arguments += ["--speculative-config", json.dumps(speculation)]
    return [*arguments, "--per-request-spec-decode-metrics", "detailed"]
