"""Rules by their text, such as ``static:weight=0.5``, as a variable or a request names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specbench.errors import require
from specbench.heads.bind import bind
from specbench.heads.kinds import KINDS
from specbench.heads.registry import HeadFile, read_description
from specbench.methods import Rule
from specbench.methods.registry import AUTOREGRESSIVE, get_method
from specbench.pairs.registry import PAIRS_FILE, pairs
from specbench.plugins import in_file
from specbench.servers.arm import ARGUMENT

BUNDLED = "python/python-line"  # an example


@dataclass
class ChosenRules:
    """The rule of each request: its own, or the default.

    Raises:
        UsageError: The default cannot be used.
    """

    default: str

    def __post_init__(self) -> None:
        """Read the default, so that a mistake ends vLLM at its start."""
        rule_of(self.default)

    def of(self, extra_args: Mapping[str, Any] | None) -> str:
        """Return the text of a request's rule.

        Raises:
            UsageError: It cannot be used, or it names a file and is not the default.
        """
        asked = (extra_args or {}).get(ARGUMENT, self.default)
        require(isinstance(asked, str), f"{ARGUMENT} must be a text, such as static:weight=0.5")
        if asked != self.default:
            name, values = _parsed(asked)
            local = in_file(name) or _bundled(values.get("head", BUNDLED)) is None
            require(not local, f"a request cannot name a file of the server's machine: {asked}")
            rule_of(asked)
        return str(asked)


@lru_cache(1000)
def rule_of(text: str) -> Rule:
    """Return the rule that a text names: a method, then its parameters behind a colon.

    Raises:
        UsageError: There is no such method, or it needs more than vLLM gives: control of
            drafting, another draft temperature, or hidden states.
    """
    name, values = _parsed(text)
    method = get_method(name)
    require(
        method.rule is not None and method.control is None,
        f"{name} is no verification rule, which vLLM needs: name another",
    )
    parameters = method.resolve({n: v for n, v in values.items() if n != "head"})
    shared = {"both_temperature", "both_min_p"} & parameters.keys()
    require(not shared, f"{name} changes how drafts are drawn, which vLLM does itself")
    if any(parameter.name == "head" for parameter in method.parameters):
        parameters["head"] = _head(name, values.get("head"))
    # A head on distributions needs no sizes, and vLLM gives no hidden states.
    model = SimpleNamespace(hidden_size=0, vocabulary=16, device="cpu", dtype=None)
    pair: Any = SimpleNamespace(name="vLLM's models", target=model, draft=model)
    bound = bind(name, parameters, pair)
    assert bound.rule is not None and name != AUTOREGRESSIVE
    return bound.rule


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the values of ``static:weight=0.5,...`` or ``FILE.py:RULE:...``."""
    end = text.find(":", text.find(".py:") + 4 if in_file(text) else 0)
    name, given = (text, "") if end < 0 else (text[:end], text[end + 1 :])
    values: dict[str, str] = {}
    for part in filter(None, given.split(",")):
        key, equals, value = part.partition("=")
        require(bool(key and equals and value), f"'{part}' in {text} is not NAME=VALUE")
        values[key] = value
    return name, values


def _bundled(head: str) -> Path | None:
    """Return the folder of a bundled head, named as ``python/python-line``; None for others."""
    pair, slash, task = head.partition("/")
    heads = PAIRS_FILE.parent / pair / "heads"
    names = [folder.name for folder in heads.iterdir()] if pair in pairs() and slash else []
    return heads / task if task in names else None


def _head(method: str, head: str | None) -> HeadFile:
    require(
        head is not None,
        f"{method} needs a head: name a bundled one, as in {method}:head={BUNDLED}, or a folder",
    )
    folder = _bundled(str(head)) or Path(str(head))
    kind = read_description(folder).get("kind")
    require(
        kind in KINDS and KINDS[str(kind)].width is not None,
        f"the head in {folder} reads hidden states, which vLLM does not give: train one of the "
        "kind features",
    )
    return HeadFile(folder.name, folder)
