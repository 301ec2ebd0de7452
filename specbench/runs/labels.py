"""Names of heads and short labels of methods, for tables and progress bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from specbench.methods.registry import METHODS, from_columns
from specbench.plugins import in_file, short_name

BUNDLED, RESULTS = "bundled", "results"
# Equal weights on both models: static w = 0.5 with the cost of a head, for any pair.
UNTRAINED = "untrained"
# Goals of training, with the prefix of a head's folder in a family.
FAMILIES = {"target_acceptance": "acceptance-", "max_quality_loss": "loss-"}
# Prefix of the folders of heads that differ in nothing but the seed of their training.
SEED = "seed-"
# Options of ``train`` that may have several values, with the prefix of each value's folder.
VARIANTS = FAMILIES | {"seed": SEED}

SERVERS = "servers"  # the engine of their cells in tables
LOG = "training.csv"
FIGURES = "figures"  # subfolder for figures of a head
_SIGNS = {p.name: p.sign for method in METHODS.values() for p in method.parameters}
DEFAULT_DRAFTER = "model"  # which labels leave out
NO_VERIFICATION = "(no verification)"  # ends the labels of rules that do not verify
_FOUND = {BUNDLED: "", RESULTS: ""}  # default sources are not shown in labels


def recipe_of(head: str) -> str | None:
    """Return a head's path without its seed, which heads of one recipe share, or None."""
    parts = PurePath(head).parts
    shared = [part for part in parts if not part.startswith(SEED)]
    return str(PurePath(*shared)) if len(shared) < len(parts) else None


def logged(root: Path) -> list[Path]:
    """Return the folders of trained heads at or below ``root``, the oldest log first."""
    # The data of the training figure has the same name.
    logs = [log for log in root.rglob(LOG) if log.parent.name != FIGURES]
    return [log.parent for log in sorted(logs, key=lambda log: (log.stat().st_mtime, log))]


def method_label(cell: Mapping[str, Any], heads: Mapping[str, str] = _FOUND) -> str:
    """Return a method with its parameters, such as ``static w=0.5``, and drafter if not the model.

    ``cell`` has the columns of ``samples.csv``, with None or NaN for blanks. ``heads`` maps heads
    to short names; other heads are written in full.
    """
    method = METHODS.get(cell["method"])
    order = () if method is None else (parameter.name for parameter in method.parameters)
    values = from_columns(cell)
    signs = {} if in_file(cell["method"]) else _SIGNS  # a rule of an earlier version has them
    parts = [
        _part(signs.get(name), name, heads.get(values[name], values[name]))
        for name in dict.fromkeys((*order, *values))
        if name in values
    ]
    drafter = cell.get("drafter")
    other = isinstance(drafter, str) and drafter != DEFAULT_DRAFTER
    name = short_name(cell["method"])
    blind = method is not None and not method.verifies
    ends = [drafter if other else "", NO_VERIFICATION if blind else ""]
    return " ".join(filter(None, [name, *parts, *ends]))


def method_labels(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels of a run's cells, with the shortest unambiguous head names.

    Heads of one recipe, which differ only in their seed, get names of the same length.
    """
    served = {(cell["task"], cell["head"]) for cell in cells if isinstance(cell["head"], str)}
    has_two_sources = any((task, RESULTS) in served for task, head in served if head == BUNDLED)
    heads = {head for _, head in served} - (set() if has_two_sources else set(_FOUND))
    lengths = {}  # parts of the shortest end of a path that no other name shares
    for name in heads:
        parts, further = PurePath(name).parts, [PurePath(n).parts for n in heads if n != name]
        ends = range(1, len(parts))
        unique = (n for n in ends if all(parts[-n:] != other[-n:] for other in further))
        lengths[name] = next(unique, max(len(parts), 1))
    lengths |= {
        name: max(lengths[head] for head in heads if recipe_of(head) == recipe)
        for name in heads
        if (recipe := recipe_of(name))
    }
    short = {name: str(PurePath(*PurePath(name).parts[-lengths[name] :])) for name in heads}
    return [method_label(cell, _FOUND | short) for cell in cells]


def _part(sign: str | None, name: str, value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else f"{value}"
    return f"{name}={text}" if sign is None else f"{sign}{text}"
