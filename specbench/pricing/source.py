"""What a decision rests on: the rounds of drafters, and the seconds of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.decoding.drafters.kind import DrafterKind
from specbench.engine.pairs import HUB_ID, PairSpec
from specbench.errors import UsageError, require, shown, unknown
from specbench.pricing.costs import BENCH_REPEATS, Costs, costs_of, from_bench
from specbench.pricing.formulas import Workload, computed_costs, require_fits_machine
from specbench.pricing.heads import (
    Drafting,
    ShapedDrafter,
    drafting_of,
    require_fits,
)
from specbench.pricing.machines import Engine, Server, engines, find_machine, known_engine
from specbench.pricing.rounds import PricedRounds
from specbench.pricing.shapes import Model, find_model, known_shape, precision_of

if TYPE_CHECKING:
    from specbench.engine.pairs import Loading
    from specbench.experiment.loader import Loader
    from specbench.runs.configuration import Settings

SHORT = 512  # tokens of a prompt, where rates take the place of texts
ANSWER = 256


@dataclass(frozen=True)
class Source:
    """What is accepted, by which models, and how long their texts are."""

    priced: list[PricedRounds]
    title: str
    pair: PairSpec | None  # None if nothing names one beside rates
    workload: Workload
    settings: Settings
    folder: Path  # in which the decision is written
    loading: Loading
    loader: Loader | None = None  # that has read the models
    task: str = ""  # of the texts

    @property
    def is_exact(self) -> bool:
        """Whether the rates are given, and so have no intervals."""
        return self.priced[0].is_exact


@dataclass(frozen=True)
class Place:
    """Where and how models are served, by the words of the user."""

    machine: str
    gpus: int = 1
    serving: str | None = None  # the engine
    weights: Sequence[str] = ()  # formats of the target's and the draft's
    cache: str | None = None

    def server(self, target: Model) -> Server:
        """Return the machines and the engine.

        Raises:
            UsageError: One of them is unknown.
        """
        machine = find_machine(self.machine)
        return Server(machine, self._engine(target, machine.backend), self.gpus)

    def _engine(self, target: Model, backend: str) -> Engine:
        """Return the engine; without a name, llama.cpp for its own formats and on Apple's chips."""
        in_file = target.precision.head < 16
        name = self.serving or ("llama.cpp" if in_file or backend == "metal" else "vllm")
        engine = known_engine(name)
        require(engine is not None, f"--serving: {unknown('engine', name, engines())}")
        assert engine is not None
        return engine

    def model(self, name: str, number: int, architecture: Any, form: str | None) -> Model:
        """Return a model with the precision of its weights and caches.

        Args:
            name: What the user typed.
            number: 0 for the target, 1 for the draft.
            architecture: Its configuration, if the pair describes it.
            form: The format of its weights, if ``weights`` has none.

        Raises:
            UsageError: It has no shape, or a format is unknown.
        """
        model = find_model(name, architecture)
        form = self.weights[number] if number < len(self.weights) else form
        for option, text in (("--weights", form or "16"), ("--cache", self.cache or "16")):
            if precision_of(text) is None:
                raise UsageError(
                    f"{option} {shown(text)}: name a format, as bf16, fp8, awq, q4_k_m"
                )
        precision = precision_of(form, self.cache or "") if form else model.precision
        assert precision is not None
        cache = precision_of("16", self.cache or "")
        assert cache is not None
        return model._replace(precision=precision._replace(cache=cache.cache))


def repository_of(name: str | None) -> str | None:
    """Return where a well-known model lies on the hub; files and ids stay as they are.

    Raises:
        UsageError: The name is none of these.
    """
    if name is None or Path(name).exists() or HUB_ID.match(name):
        return name
    find_model(name)
    shape = known_shape(name)
    return name if shape is None else shape.repository or name


def costs_of_machine(
    place: Place,
    pair: PairSpec,
    drafter: DrafterKind,
    form: str | None,
    workload: Workload,
    batches: Sequence[int],
    lengths: Sequence[int],
) -> Costs:
    """Return the costs by a machine's figures; nothing is loaded but shapes.

    Args:
        place: Where the models are served.
        pair: The models. A head may be named as the draft.
        drafter: What drafts.
        form: The format of weights that the pair or the user names beside ``Place.weights``.
        workload: The lengths of requests.
        batches: Batch sizes.
        lengths: Draft lengths.

    Raises:
        UsageError: A model has no shape, or the models, the batch and the machine do not fit.
    """
    target = place.model(pair.target, 0, pair.architecture.get("target"), form)
    server = place.server(target)
    if isinstance(drafter, ShapedDrafter):
        if pair.draft is not None:
            require_fits(target, pair.draft)
        drafting = drafting_of(drafter.kind, target, None)
    elif pair.draft is None or drafter.copies:
        drafting = Drafting(None)
    else:
        draft = place.model(pair.draft, 1, pair.architecture.get("draft"), form)
        require_fits(target, pair.draft, draft)
        drafting = Drafting(draft)
    require_fits_machine(server, target, drafting, workload, max(batches))
    return computed_costs(server, target, drafting, workload, batches, lengths)


def timed_costs(
    source: Source,
    engine: str,
    batches: Sequence[int],
    lengths: Sequence[int],
    temperature: float,
    show_progress: bool,
) -> Costs:
    """Return the costs of three draft lengths as measured here."""
    from specbench.experiment.bench.measure import time_rounds
    from specbench.experiment.bench.plan import BenchSettings
    from specbench.experiment.loader import Loader

    assert source.pair is not None
    settings = BenchSettings(
        engine=[engine],
        draft_length=sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]}),
        batch_size=sorted(batches),
        temperature=temperature,
        prompt_tokens=round(source.workload.prompt),
    )
    load = (source.loader or Loader()).pair
    table = time_rounds(source.pair, source.loading, settings, load, show_progress)
    name = table["engine"].iloc[0]
    return costs_of(from_bench(table, Path(BENCH_REPEATS)), f"{name}, measured here")
