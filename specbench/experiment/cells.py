"""Cells: the configurations that a run measures, from combinations of methods and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

from specbench.decoding.drafters.registry import MODEL, DrafterSpec, recorded_drafter
from specbench.decoding.heads.registry import HeadFile, find_head, training_of
from specbench.engine.pairs import PairSpec
from specbench.errors import UsageError, require, unknown
from specbench.files import shown_path
from specbench.methods.registry import AUTOREGRESSIVE, METHODS, get_method, to_columns
from specbench.plugins import require_distinct
from specbench.runs.configuration import CellConfig

CONCURRENCY = "concurrency"  # the parameter of a server: requests in flight
STATIC = "static"
ANCHORS = (AUTOREGRESSIVE, "sd", "diversed")  # measured beside a front
Variant = tuple[str, dict[str, Any]]  # a method's name and its parameters


@dataclass(frozen=True)
class Cell:
    """One configuration to measure."""

    method: str
    parameters: tuple[tuple[str, Any], ...]  # resolved, by name
    draft_length: int  # tokens drafted per round; 0 for ``autoregressive``
    drafter: DrafterSpec = MODEL  # what proposes them; unused without drafts
    session: int = 0  # cells of a session are interleaved; cells added to a run start a new one
    timing: str = ""  # ``TIMED_BASELINE`` or ``TIMED_AGAIN`` if only its times are recorded
    server: bool = False  # whether the method names a server, which decodes
    engine: str = ""  # that of a benchmark's cell; empty for that of the run

    @property
    def values(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.parameters)

    @property
    def heads(self) -> list[HeadFile]:
        """The heads among the parameters: one or none."""
        return [value for _, value in self.parameters if isinstance(value, HeadFile)]

    def values_with(self, head: Callable[[HeadFile], Any]) -> dict[str, Any]:
        """Return the parameters by name, with the result of a function in place of a head."""
        return {n: head(v) if isinstance(v, HeadFile) else v for n, v in self.parameters}

    def describe(self) -> dict[str, Any]:
        """Return the cell in plain values, for ``config.json``."""
        values = self.values_with(
            lambda head: {"name": head.name, "path": shown_path(head.path), **training_of(head)}
        )
        names = ("session", "timing", "server", "engine")
        further = {name: getattr(self, name) for name in names}
        further |= {} if self.drafter == MODEL else {"drafter": str(self.drafter)}
        further = {name: value for name, value in further.items() if value}
        return {"method": self.method, **values, "draft_length": self.draft_length, **further}

    @classmethod
    def recorded(cls, described: CellConfig) -> Self:
        """Return the cell that ``describe`` described, unchecked and with its head by name."""
        values = described.plain()
        names = ("method", "draft_length", "drafter", "session", "timing", "server", "engine")
        fields = {name: values.pop(name) for name in names if name in values}
        if "drafter" in fields:
            fields["drafter"] = recorded_drafter(fields["drafter"])
        if isinstance(head := values.get("head"), Mapping):
            values["head"] = head["name"]
        return cls(parameters=tuple(values.items()), **fields)

    def resolved(self, pair: PairSpec, task: str) -> Self:
        """Return a recorded cell with checked parameters, and its head searched by name."""
        require(not self.server, f"{self.method} is a server, which is not here to decode again")
        values = self.values
        head = values.pop("head", None)
        parameters = get_method(self.method).resolve(values)
        if head is not None:
            parameters["head"] = find_head(pair, task, head)
        return replace(self, parameters=tuple(parameters.items()))

    def columns(self) -> dict[str, Any]:
        """Return the cell in the columns of ``samples.csv``; a head is given by its name."""
        return {
            "method": self.method,
            **to_columns(self.values_with(lambda head: head.name)),
            "draft_length": self.draft_length,
            "drafter": str(self.drafter) if self.draft_length else None,
        }


def cells_of(
    variants: Iterable[Variant],
    draft_lengths: Sequence[int],
    drafters: Mapping[str, Sequence[DrafterSpec]] = {},
) -> list[Cell]:
    """Return a cell per variant, draft length and drafter of its method, ``model`` by default.

    ``autoregressive`` has one cell, without drafts.
    """
    return [
        Cell(method, tuple(parameters.items()), length, drafter)
        for method, parameters in variants
        for length in ((0,) if method == AUTOREGRESSIVE else draft_lengths)
        for drafter in drafters.get(method, (MODEL,))
    ]


def with_head(
    parameters: Mapping[str, Any], find: Callable[[str | None], HeadFile]
) -> dict[str, Any]:
    """Return parameters with a head file, if they have a head that is only named or left open."""
    if "head" not in parameters or isinstance(parameters["head"], HeadFile):
        return dict(parameters)
    return {**parameters, "head": find(parameters["head"])}


def method_variants(names: Iterable[str], parameters: Mapping[str, Any]) -> list[Variant]:
    """Return each method with every combination of its parameter values.

    ``parameters`` maps a name to a value or a list of values, or to None if the user gave none.
    """
    methods = list({values.name: values for values in map(get_method, names)}.values())
    require_distinct([method.name for method in methods], METHODS, METHODS, "method")
    values = {name: value for name, value in parameters.items() if value is not None}
    parameter_names = [parameter.name for method in methods for parameter in method.parameters]
    for name in values:
        if any(method.takes(name) for method in methods):
            continue
        owners = [method.name for method in METHODS.values() if method.takes(name)]
        if not owners:
            raise UsageError(unknown("parameter", name, dict.fromkeys(parameter_names)))
        raise UsageError(
            f"{name} is a parameter of {' and '.join(owners)}, not of the chosen methods: "
            "add one with --method, or omit the parameter"
        )
    variants: list[Variant] = []
    for method in methods:
        lists = {
            name: dict.fromkeys(value if isinstance(value, list | tuple) else [value])
            for name, value in values.items()
            if method.takes(name)
        }
        for combination in product(*lists.values()):
            chosen = dict(zip(lists, combination, strict=True))
            heads = {"head": chosen.pop("head")} if "head" in chosen else {}
            variants.append((method.name, method.resolve(chosen) | heads))
    used = {"head"}.union(*(resolved for _, resolved in variants))
    if idle := [name for name in values if name not in used]:
        raise UsageError(f"{idle[0]} has no effect beside the others: see `specbench list methods`")
    return variants


def with_baselines(variants: Sequence[Variant]) -> list[Variant]:
    """Return methods with no speculation before them: it says whether their drafts pay."""
    methods = {method for method, _ in variants}
    alone = [] if AUTOREGRESSIVE in methods else method_variants([AUTOREGRESSIVE], {})
    return [*alone, *variants]
