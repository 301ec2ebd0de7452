"""Rules by their text, such as ``static:weight=0.5``, as a variable or a request names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specbench.decoding.heads.bind import bind
from specbench.decoding.heads.kinds import KINDS
from specbench.decoding.heads.registry import HeadFile, bundled_heads, read_description
from specbench.errors import require
from specbench.methods import Rule
from specbench.methods.method import BOTH_MODELS, HEAD
from specbench.methods.registry import get_method
from specbench.plugins import in_file
from specbench.serving.arm import ARGUMENT, MOST_KEY, ROUNDS, VLLM, named_values

BUNDLED = "python/python-line"  # an example


def checked_rule(extra_args: Mapping[str, Any] | None, allowed: Sequence[str]) -> str:
    """Return the text of a request's rule: its own, or the first one that is allowed.

    A request may leave out the parameters of an allowed rule.
    """
    arguments = extra_args or {}
    rule, key = arguments.get(ARGUMENT, allowed[0]), arguments.get(ROUNDS, "")
    require(isinstance(rule, str), f"{ARGUMENT} must be a text, such as static:weight=0.5")
    rule = next((text for text in allowed if f"{text}:".startswith(f"{rule}:")), rule)
    require(
        isinstance(key, str) and len(key) <= MOST_KEY,
        f"{ROUNDS} must be a text of at most {MOST_KEY} characters",
    )
    if rule not in (VLLM, *allowed):
        name, values = named_values(rule)
        head = bundled_heads().get(values.get("head", BUNDLED))
        require(
            not in_file(name) and head is not None and not reads_hidden_states(head),
            "a request cannot name a file of the server's machine, or a head on hidden states, "
            f"which fits only some models: start the server with {rule}",
        )
        rule_of(rule)
    return rule


@lru_cache(1000)
def rule_of(text: str, device: str = "cpu") -> Rule:
    """Return the rule that a text names, on a device."""
    name, parameters = method_of(text)
    description = read_description(parameters["head"].path) if "head" in parameters else {}
    pair: Any = SimpleNamespace(name="vLLM's models")
    for role in ("target", "draft"):  # as a head describes them; any fit a rule of the user's own
        sizes = {"vocabulary": 16, "device": device, "dtype": None}
        sizes["hidden_size"] = (description.get("hidden_sizes") or {}).get(role, 16)
        fingerprint = partial((description.get("models") or {}).get, role)
        setattr(pair, role, SimpleNamespace(**sizes, fingerprint=fingerprint))
    rule = bind(name, parameters, pair).rule
    assert rule is not None
    return rule


def method_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the method that a text names and, behind a colon, its parameters."""
    name, values = named_values(text)
    method = get_method(name)
    verifies = method.rule is not None and method.control is None
    require(verifies, f"{name} is no verification rule, which vLLM needs: name another")
    parameters = method.resolve({n: v for n, v in values.items() if n != "head"})
    shared = {*BOTH_MODELS} & parameters.keys()
    require(not shared, f"{name} changes how drafts are drawn, which vLLM does itself")
    if HEAD in method.parameters:
        advice = f"name a bundled one, as in {name}:head={BUNDLED}, or a folder"
        require("head" in values, f"{name} needs a head: {advice}")
        folder = bundled_heads().get(values["head"]) or Path(values["head"])
        parameters["head"] = HeadFile(folder.name, folder)
    return name, parameters


def reads_hidden_states(folder: Path) -> bool:
    """Return whether a head reads hidden states, so that it fits only its own models."""
    kind = KINDS.get(str(read_description(folder).get("kind")))
    return kind is not None and kind.width is None
