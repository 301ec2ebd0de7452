"""Servers as arms of a run, before anything is sent to them."""

from __future__ import annotations

from typing import NamedTuple

#: How prompts are sent: as token ids, as text without a template, or as messages.
TOKENS, TEXT, CHAT = SENT = ("tokens", "text", "chat")

#: What names the rule of a request to vLLM with specbench's plugin; and the rules that its server
#: starts with, of which the first is that of all other requests.
ARGUMENT, VARIABLE, SEPARATOR = "specbench_rule", "SPECBENCH_VLLM_RULE", ";"
VLLM = "vllm"  # vLLM's own verification
#: What names the key by which a request's rounds are read, and the route that tells them.
ROUNDS, MOST_KEY = "specbench_rounds", 64


class Arm(NamedTuple):
    """A server that a run measures."""

    name: str  # given by the user; the method of its samples
    url: str
    model: str  # the server's name of its model
    prompts: str  # how they are sent: ``TOKENS``, ``TEXT`` or ``CHAT``
    rule: str = ""  # by which vLLM with specbench's plugin verifies; empty for the server's own

    @property
    def described(self) -> dict[str, str]:
        """The arm in plain values, without its address, which does not change a text."""
        rule = {"rule": self.rule} if self.rule else {}
        return {"name": self.name, "model": self.model, "prompts": self.prompts, **rule}
