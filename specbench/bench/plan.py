"""What a benchmark measures: systems side by side, batch size by batch size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specbench.analysis.labels import method_label
from specbench.engine.settings import AUTO, ENGINES, Loading
from specbench.errors import UsageError
from specbench.experiment.plan import shown_path
from specbench.experiment.settings import require, require_at_least, require_temperature
from specbench.experiment.variants import Variant
from specbench.heads.registry import UNTRAINED, HeadFile, find_head
from specbench.methods.registry import AUTOREGRESSIVE, METHODS
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import default_task_names
from specbench.version import __version__

TRANSFORMERS = "transformers"  # the engine of Transformers' own loops
# What Transformers calls the methods that it has.
THEIR_NAMES = {AUTOREGRESSIVE: "generate", "sd": "assisted", "static": "assisted"}
PARAMETERS = tuple(dict.fromkeys(p.name for method in METHODS.values() for p in method.parameters))


@dataclass(frozen=True)
class System:
    """A method on an engine, as it is timed.

    Attributes:
        engine: A key of ``ENGINES``, ``auto``, or ``transformers`` for its own loops.
        method: Name of the method.
        parameters: Its resolved parameters by name; a head by its file.
        draft_length: Tokens drafted per round; 0 for ``autoregressive``.
        acceptance: Probability with which every drafted token is accepted; None leaves it to the
            rule.
    """

    engine: str
    method: str
    parameters: tuple[tuple[str, Any], ...] = ()
    draft_length: int = 0
    acceptance: float | None = None

    def describe(self) -> dict[str, Any]:
        """Return the system in the columns of ``bench.csv``."""
        values = {
            name: value.name if isinstance(value, HeadFile) else value
            for name, value in self.parameters
        }
        return {
            "engine": self.engine,
            "method": self.method,
            **{name: values.get(name) for name in PARAMETERS},
            "draft_length": self.draft_length,
            "forced_acceptance": self.acceptance,
        }


@dataclass(frozen=True)
class Bench:
    """Everything a benchmark does.

    Attributes:
        pair: The models.
        loading: How they are loaded.
        systems: What is timed.
        batch_sizes: Texts side by side.
        prompt_tokens: Length of every prompt; None takes ``USUAL_PROMPT``, or what fits.
        new_tokens: Length of every answer.
        repeats: Times every system is timed at every batch size.
        temperature: 0 is greedy.
        seed: Decides prompts and draws.
        notes: What was left out and why, a sentence each.
    """

    pair: PairSpec
    loading: Loading
    systems: tuple[System, ...]
    batch_sizes: tuple[int, ...]
    prompt_tokens: int | None
    new_tokens: int
    repeats: int
    temperature: float
    seed: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.repeats * sum(len(self.at(size)) for size in self.batch_sizes)

    @property
    def draft_length(self) -> int:
        """The most tokens that any system drafts per round."""
        return max(system.draft_length for system in self.systems)

    def at(self, batch_size: int) -> list[System]:
        """Return the systems that a batch of this size can be decoded by."""
        return [s for s in self.systems if batch_size == 1 or not _refuses_batches(s)]

    def turns(self, systems: Sequence[System]) -> Iterator[tuple[int, System]]:
        """Yield every repeat's systems, in an order that begins with another one each time."""
        for repeat in range(self.repeats):
            shift = repeat % len(systems)
            for system in (*systems[shift:], *systems[:shift]):
                yield repeat, system

    def describe(self) -> dict[str, Any]:
        """Return the benchmark in plain values, for ``environment.json``."""
        return {
            "specbench": __version__,
            "pair": {
                "name": self.pair.name,
                "target": shown_path(self.pair.target),
                "draft": shown_path(self.pair.draft),
            },
            "loading": asdict(self.loading),
            "systems": [system.describe() for system in self.systems],
            "batch_sizes": list(self.batch_sizes),
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "repeats": self.repeats,
            "temperature": self.temperature,
            "seed": self.seed,
            "notes": list(self.notes),
        }


def name_of(row: Mapping[str, Any]) -> str:
    """Return the method of a row of ``bench.csv`` in a few characters, without its engine."""
    label = method_label(row)
    if row["engine"] == TRANSFORMERS:
        return label.replace(row["method"], THEIR_NAMES[row["method"]], 1)
    return label


def build_bench(
    pair: PairSpec,
    variants: Sequence[Variant],
    *,
    loading: Loading,
    engines: Sequence[str],
    draft_lengths: Sequence[int],
    acceptances: Sequence[float],
    batch_sizes: Sequence[int],
    prompt_tokens: int | None,
    new_tokens: int,
    repeats: int,
    temperature: float,
    seed: int,
    transformers: bool,
) -> Bench:
    """Lay out a benchmark and check what can be checked without the models.

    Args:
        pair: The models.
        variants: Methods with their parameters.
        loading: How the models are loaded.
        engines: Keys of ``ENGINES``, or ``auto``.
        draft_lengths: Tokens drafted per round; each method that drafts is timed with each.
        acceptances: Forced acceptance, likewise; none leaves it to the rules.
        batch_sizes: Texts side by side.
        prompt_tokens: As in ``Bench``.
        new_tokens: As in ``Bench``.
        repeats: As in ``Bench``.
        temperature: As in ``Bench``.
        seed: As in ``Bench``.
        transformers: Time Transformers' own loops of the same methods as well.

    Raises:
        UsageError: A number out of range, an unknown engine, or a head that is not there.
    """
    for name in engines:
        require(
            name in (AUTO, *ENGINES),
            f"--engine cannot be {name!r}: choose {', '.join((AUTO, *ENGINES))}",
        )
    for rate in acceptances:
        require(0 <= rate <= 1, f"--acceptance must be from 0 to 1, not {rate:g}")
    numbers = {"--draft-length": draft_lengths, "--batch-size": batch_sizes}
    for option, values in numbers.items():
        for value in values:
            require_at_least(1, option, value)
    require_at_least(1, "--prompt-tokens", prompt_tokens)
    require_at_least(1, "--new-tokens", new_tokens)
    require_at_least(1, "--repeats", repeats)
    require_at_least(0, "--seed", seed)
    require_temperature(temperature)

    notes: list[str] = []
    complete = [(method, _with_head(values, pair, loading, notes)) for method, values in variants]
    rates: Sequence[float | None] = acceptances or [None]
    systems = [
        System(engine, method, tuple(values.items()), *sizes)
        for engine in engines
        for method, values in complete
        for sizes in _sizes(method, draft_lengths, rates)
    ]
    if transformers:
        systems += _their_systems(complete, draft_lengths, rates, temperature, notes)
        if max(batch_sizes) > 1 and any(map(_refuses_batches, systems)):
            notes.append("Transformers' assisted generation takes no batch: it runs at batch 1")
    unique = tuple(dict.fromkeys(systems))
    return Bench(
        pair,
        loading,
        unique,
        tuple(batch_sizes),
        prompt_tokens,
        new_tokens,
        repeats,
        temperature,
        seed,
        tuple(notes),
    )


def _sizes(
    method: str, lengths: Iterable[int], rates: Iterable[float | None]
) -> list[tuple[int, float | None]]:
    """Draft lengths with forced acceptances; nothing of both where nothing is drafted."""
    if method == AUTOREGRESSIVE:
        return [(0, None)]
    return [(length, rate) for length in lengths for rate in rates]


def _their_systems(
    variants: Iterable[Variant],
    lengths: Sequence[int],
    rates: Sequence[float | None],
    temperature: float,
    notes: list[str],
) -> Iterator[System]:
    """Yield Transformers' loops of the methods, where it has them."""
    for method, values in variants:
        if method not in THEIR_NAMES or values.get("weight") in (0, 1):
            continue
        forced = method != AUTOREGRESSIVE and rates[0] is not None
        if forced and temperature == 0:
            notes.append(
                f"Transformers' {THEIR_NAMES[method]} generation of {method} is left out: its "
                "acceptance cannot be forced at temperature 0"
            )
            continue
        for sizes in _sizes(method, lengths, rates):
            yield System(TRANSFORMERS, method, tuple(values.items()), *sizes)


def _with_head(
    values: Mapping[str, Any], pair: PairSpec, loading: Loading, notes: list[str]
) -> dict[str, Any]:
    """Put a head's file in the place of its name: by default one of the pair's, else untrained."""
    if "head" not in values:
        return dict(values)
    task, *_ = default_task_names()
    given = values["head"]
    if given is None and not loading.dummy:
        try:
            return {**values, "head": find_head(pair, task)}
        except UsageError:
            pass
    if given is None:
        notes.append(f"pair {pair.name} has no head that fits: diversed takes an untrained one")
    return {**values, "head": find_head(pair, task, given or UNTRAINED)}


def _refuses_batches(system: System) -> bool:
    return system.engine == TRANSFORMERS and system.method != AUTOREGRESSIVE
