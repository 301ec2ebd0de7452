"""Options that name servers, which decode as arms of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from specbench.config import Count, Options, option
from specbench.errors import UsageError, require
from specbench.methods.registry import METHODS
from specbench.serving.arm import CHAT, SENT, TOKENS, Arm

if TYPE_CHECKING:
    from specbench.serving.client import Client

_NAME = re.compile(r"[\w.-]+")


class ServerAccess(Options):
    """How requests are sent to servers."""

    panel = "Servers"

    timeout: float = option(
        300.0, "Seconds that a request to a server may take.", gt=0, allow_inf_nan=False
    )


class Servers(ServerAccess):
    """Servers with OpenAI's API that are measured, beside methods or alone."""

    server: list[str] | None = option(
        None,
        "Servers with OpenAI's API to measure beside the methods that --method names, or alone: "
        "fast=http://localhost:8000, or with #MODEL behind the address.",
        metavar="NAME=URL",
    )
    concurrency: list[Count] = option(
        [1], "Requests in flight per server; several values are all measured.", metavar="C[,C...]"
    )
    send: str | None = option(
        None,
        "How servers get prompts.",
        choices=SENT,
        shown="tokens with --pair or --target, else chat",
        metavar="FORM",
    )

    rule: list[str] | None = option(
        None,
        "Rule by which vLLM with specbench's plugin verifies for an arm, such as "
        "mixed=static:weight=0.5; see `specbench docs servers`.",
        metavar="NAME=RULE",
    )

    @property
    def client(self) -> Client:
        """What sends the requests."""
        from specbench.serving.client import Client

        return Client(self.timeout, max(self.concurrency))

    def arms(self, pair: bool) -> list[Arm]:
        """Return the arms, whose servers answer; with a ``pair``, they get token ids.

        Raises:
            UsageError: A name or an address is wrong, or a server does not answer.
        """
        texts = self.server or []
        for name in ("concurrency", "send", "rule") if not texts else ():
            require(
                name not in self.model_fields_set, f"{self.flags(name)[0]} needs --server: add one"
            )
        arms = [_arm(text, self.send or (TOKENS if pair else CHAT)) for text in texts]
        _require_names([arm.name for arm in arms])
        rules = dict(_rule(text, {arm.name for arm in arms}) for text in self.rule or ())
        arms = [arm._replace(rule=rules.get(arm.name, "")) for arm in arms]
        require(
            pair or not any(arm.prompts == TOKENS for arm in arms),
            f"--send {TOKENS} needs the server's tokenizer: name it with --pair or --target",
        )
        if not arms:
            return []
        from specbench.serving.server import Server

        client, reached = self.client, []
        for arm in arms:
            server = Server(arm.url, client, arm.model or None)
            server.reach()
            reached.append(arm._replace(model=str(server.told()["model"])))
        return reached


def _arm(text: str, prompts: str) -> Arm:
    name, equals, address = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(
            f"--server cannot be '{text}': give NAME=URL, such as fast=http://localhost:8000"
        )
    url, _, model = address.partition("#")
    return Arm(name, url, model, prompts)


def _rule(text: str, names: Collection[str]) -> tuple[str, str]:
    name, _, rule = text.partition("=")
    require(
        bool(rule), f"--rule cannot be '{text}': give NAME=RULE, such as fast=static:weight=0.5"
    )
    require(name in names, f"--rule {text}: there is no --server {name}=URL")
    return name, rule


def _require_names(names: Sequence[str]) -> None:
    """Refuse names that two servers share, or that are those of methods."""
    for name, number in Counter(names).items():
        require(number == 1, f"two servers are named {name}: rename one")
        require(
            name not in METHODS, f"--server {name}=...: {name} is a method, choose another name"
        )
