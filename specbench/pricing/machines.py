"""Machines and engines by name: the published figures of one, what the other reaches of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field

from specbench.errors import UsageError, meant, require, shown, unknown
from specbench.pricing.shapes import Aliased, nearest, words_of
from specbench.schema import Text, read_toml

MACHINES_FILE = Path(__file__).with_name("machines.toml")
ENGINES_FILE = Path(__file__).with_name("engines.toml")
GIB = 2**30
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_COUNT = re.compile(r"\b(\d{1,2})\s*[x×]\s*(?=[a-z])|\b[x×]\s*(\d{1,2})\b")  # "2x", "x8"
_NO_CHIP = re.compile(r"mac ?book (pro|air)|mac (pro|mini|studio)")
# What names of devices have beside the model.
_GENERAL = re.compile(
    r"\b(nvidia|geforce|rtx|gtx|tesla|quadro|amd|radeon|rx|instinct|intel|apple|chip|gpu|graphics|"
    r"sxm\d?|pcie|hbm\d?e?|\d+ ?(gb?|gib)|cores?)\b"
)
Backend = Literal["cuda", "rocm", "metal", "xpu"]
Kind = Literal["data centre", "consumer", "unified"]


class Machine(Aliased):
    """The figures of a device."""

    description: Text
    bandwidth: float = Field(gt=0)  # bytes per second
    flops: float = Field(gt=0)  # operations per second with 16-bit weights
    flops8: float | None = Field(None, gt=0)  # with 8-bit weights, if it multiplies them
    vector: float | None = Field(None, gt=0)  # of its 32-bit lanes
    memory: float = Field(float("inf"), gt=0)  # bytes
    link: float = Field(2e10, gt=0)  # bytes per second between two devices
    hop: float = Field(5e-5, ge=0)  # seconds of a small sum over devices
    kind: Kind = "data centre"
    backend: Backend = "cuda"
    overhead: float | None = Field(None, ge=0)  # seconds of a pass, in place of the engine's
    share: float | None = Field(None, gt=0, le=1)  # of both peaks, in place of the engine's


class ServingEngine(Aliased):
    """What a program that serves models reaches, and what it adds."""

    description: Text
    measured_as: Text | None = None  # the engine's name among other people's measurements
    like: Text | None = None  # the engine that has the other numbers
    share: float = Field(1.0, gt=0)  # of the bandwidth
    compute: float = Field(1.0, gt=0)  # of the operations per second
    overlap: float = Field(1.0, ge=1)  # 1: reading and computing add; more: the longer one counts
    quantised: float = Field(1.0, gt=0)  # of ``compute``, with weights of fewer than 8 bits
    cache8: float = Field(0.0, ge=0)  # seconds of a round with 8-bit caches, without 8-bit units
    fixed: float = Field(0.0, ge=0)  # seconds of a pass of the target
    layer: float = Field(0.0, ge=0)  # seconds of a layer
    step: float = Field(0.0, ge=0)  # seconds of a pass of the drafter
    eagle3: float = Field(0.0, ge=0)  # of such a pass beside ``step``, if it is an EAGLE-3 head's
    round: float = Field(0.0, ge=0)  # seconds of a round
    prefill: float = Field(0.0, ge=0)  # of the prompts, what is read between the rounds of others
    memory: float = Field(1.0, gt=0, le=1)  # of the device's, for weights and caches
    splits_layers: bool = False  # devices take turns, instead of sharing each layer
    few_rows: Mapping[Backend, float] = Field(default_factory=dict)  # of a machine's lanes


class Deployment(NamedTuple):
    """An engine on one or several machines of a kind."""

    machine: Machine
    engine: ServingEngine
    gpus: int = 1

    @classmethod
    def of(cls, machine: Machine, engine: ServingEngine, gpus: int = 1) -> Self:
        """Return an engine with the share and the overhead of a machine, if its file has them."""
        figures: dict[str, float] = {}
        if machine.share is not None:
            figures |= {"share": machine.share, "compute": machine.share}
        if machine.overhead is not None:
            figures |= {"fixed": machine.overhead, "step": machine.overhead, "layer": 0, "round": 0}
        return cls(machine, engine.model_copy(update=figures), gpus)

    @property
    def place(self) -> str:
        """The machines in words."""
        return f"{self.gpus} x " * (self.gpus > 1) + self.machine.description

    @property
    def together(self) -> int:
        """How many devices compute at the same time."""
        return 1 if self.engine.splits_layers else self.gpus


@cache
def machines() -> dict[str, Machine]:
    """Return the known machines by name."""
    return read_toml(MACHINES_FILE, dict[str, Machine], "file of machines")


@cache
def engines() -> dict[str, ServingEngine]:
    """Return the known engines by name."""
    table: dict[str, ServingEngine] = read_toml(
        ENGINES_FILE, dict[str, ServingEngine], "file of engines"
    )
    for name, engine in table.items():
        if engine.like:
            numbers = {"names": [], **engine.model_dump(exclude_unset=True)}
            table[name] = table[engine.like].model_copy(update=numbers)
    return table


def known_machine(name: str) -> Machine | None:
    """Return the machine that a name means, such as "NVIDIA A100-SXM4-80GB"; None if unknown."""
    return nearest(_NO_CHIP.sub(" ", _COUNT.sub(" ", name.lower())), machines())


def devices_in(name: str) -> int:
    """Return how many devices a text names, as "2x RTX 3090" does; 1 if it names no number."""
    match = _COUNT.search(name.lower())
    return int(match[1] or match[2]) if match else 1


def find_machine(name: str) -> Machine:
    """Return a machine of ``machines.toml``, or the only one of a file of the user's own."""
    if name.endswith(".toml"):
        in_file: dict[str, Machine] = read_toml(Path(name), dict[str, Machine], "file of machines")
        require(len(in_file) == 1, f"{name} has {len(in_file)} machines: leave one in it")
        return next(iter(in_file.values()))
    machine = known_machine(name)
    if machine is None:
        raise UsageError(
            f"no figures of a machine `{shown(name)}`: give a FILE.toml with its bandwidth and "
            f"flops, or a known one; {meant(name, machines())}"
        )
    key = next(key for key, one in machines().items() if one == machine)
    typed = _GENERAL.sub(" ", _NO_CHIP.sub(" ", _COUNT.sub(" ", name.lower())))
    unmatched = words_of(typed) - words_of(" ".join((key, machine.description, *machine.names)))
    size = re.search(r"(\d+) ?gi?b\b", name.lower())
    if size and machine.kind != "unified":
        is_other = abs(float(size[1]) * GIB / machine.memory - 1) > 0.1
        unmatched |= {f"{size[1]} GB"} if is_other else frozenset()
    require(
        not unmatched,
        f"no figures of a machine `{shown(name)}`: did you mean `{key}` ({machine.description}), "
        f"without {', '.join(sorted(unmatched))}? Else give a FILE.toml with bandwidth and flops",
    )
    return machine


def find_engine(name: str) -> ServingEngine:
    """Return the engine that the user names, perhaps with a version or a month."""
    engine, parts = nearest(name, engines()), [*engines(), *MONTHS, "v", "b", "rc"]
    named = words_of(" ".join([*parts, *(n for entry in engines().values() for n in entry.names)]))
    if engine is None or any(word.isalpha() for word in words_of(name) - named):
        raise UsageError(f"--serving: {unknown('engine', name, engines())}")
    return engine
