"""What a decision rests on: the rounds of drafters, and the seconds of rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from specbench.analysis.statistics.intervals import FEWEST
from specbench.analysis.tables.benchmark import repeats_of, with_forced
from specbench.config import AUTO
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.policies import get_policy
from specbench.engine.pairs import HUB_ID, PairSpec
from specbench.errors import RunError, require, shown
from specbench.pricing import machines
from specbench.pricing.checks import deviations
from specbench.pricing.costs import Costs, costs_of, from_bench
from specbench.pricing.formulas import Workload, computed_costs, require_fits_machine
from specbench.pricing.heads import (
    COPIES,
    DraftPasses,
    ShapedDrafter,
    drafting_of,
    kind_called,
    require_fits,
)
from specbench.pricing.rounds import PricedRounds, price
from specbench.pricing.scores import Scores
from specbench.pricing.shapes import ServedModel, bits_of, find_model, known_shape, precision_of
from specbench.runs.records import TABLE

if TYPE_CHECKING:
    from specbench.engine.pairs import Loading
    from specbench.experiment.loader import Loader
    from specbench.runs.configuration import Settings
    from specbench.runs.run import Run

SHORT, ANSWER = 512, 256  # tokens of a prompt and a text, where rates take the place of texts


@dataclass(frozen=True)
class Basis:
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
    def drafters(self) -> list[DrafterKind]:
        """What drafts."""
        return [rounds.drafter for rounds in self.priced]


@dataclass(frozen=True)
class Place:
    """Where and how models are served, by the words of the user."""

    machine: str
    gpus: int = 1
    serving: str | None = None  # the engine
    weights: Sequence[str] = ()  # formats of the target's and the draft's
    cache: str | None = None
    # Formats of weights in other options; the first one counts where ``weights`` has none.
    forms: Sequence[str | None] = ()

    def server(self, target: ServedModel) -> machines.Deployment:
        """Return the machines and the engine; llama.cpp for its own formats and Apple's chips."""
        machine, in_file = machines.find_machine(self.machine), target.precision.head < 16
        by_itself = "llama.cpp" if in_file or machine.backend == "metal" else "vllm"
        engine = machines.find_engine(by_itself if self.serving is None else self.serving)
        gpus = max(self.gpus, machines.devices_in(self.machine))
        return machines.Deployment.of(machine, engine, gpus)

    def model(self, role: str, pair: PairSpec) -> ServedModel:
        """Return a model of a pair with the precision of its weights and caches."""
        model = find_model(pair.models[role], pair.architecture.get(role))
        number = list(pair.models).index(role)
        forms = [form for form in (*self.forms, pair.dtype) if form not in (None, AUTO)]
        if model.precision.layers < 16:  # quantised weights are computed in 16 bits or more
            forms = [form for form in forms if (bits_of(str(form)) or 0) < 16]
        forms = [form for form in self.weights[number : number + 1] if form != AUTO] + forms
        form = next(iter(forms), None)
        for option, text in (("--weights", form), ("--cache", self.cache)):
            valid = text is None or bits_of(text) is not None
            require(valid, f"{option} {shown(str(text))}: name a format, as bf16, fp8, awq, q4_k_m")
        precision = (form and precision_of(form)) or model.precision
        reason = f"the configuration of {shown(model.name)} does not tell the bits of its weights"
        require(precision.layers > 0, f"{reason}: name their format by --weights, as awq")
        cache = min(bits_of(self.cache or "16") or 16, 16)
        return model._replace(precision=precision._replace(cache=cache))


def source_of_texts(
    by_task: Mapping[str, Scores],
    drafters: Sequence[DrafterKind],
    lengths: Sequence[int],
    run: Run,
    folder: Path,
    loader: Loader,
) -> Basis:
    """Return the rounds of drafters on the texts of a run's only task."""
    ((task, texts),) = by_task.items()
    if any(deviation.is_sure for deviation in deviations(texts)):
        raise RunError(f"the texts of {task} are not drawn from the target: see `specbench price`")
    return Basis(
        priced=[price(texts, drafter, get_policy("fixed"), lengths) for drafter in drafters],
        title=f"{task} on {run.pair.name}, T = {texts.temperature:g}",
        pair=run.pair,
        workload=Workload(mean(map(len, texts.prompts)), float(texts.length.mean())),
        settings=run.settings,
        folder=folder,
        loading=run.loading,
        loader=loader,
        task=task,
    )


def require_prompts(names: Iterable[tuple[str, str]]) -> None:
    """Check the task and the sample id of each text."""
    prompts = Counter(task for task, _ in dict.fromkeys(names))
    (task, number), *others = prompts.items()
    require(
        not others,
        f"a decision is for one kind of prompts: give one task (such as --task {task}), "
        "--prompts FILE, a finished run of one, or --accepted-length with --draft-length",
    )
    require(
        number >= FEWEST,
        f"{number} prompts are too few for an interval: give {FEWEST} or more (--limit)",
    )


def repository_of(name: str | None) -> str | None:
    """Return where a well-known model lies on the hub; files and ids stay as they are."""
    if name is None or Path(name).exists() or HUB_ID.match(name):
        return name
    find_model(name)
    shape = known_shape(name)
    return name if shape is None else shape.repository or name


def costs_of_machine(
    place: Place, source: Basis, batches: Sequence[int], lengths: Sequence[int]
) -> dict[DrafterKind, Costs]:
    """Return the costs of each drafter by a machine's figures; nothing is loaded but shapes."""
    pair, workload = source.pair, source.workload
    assert pair is not None
    target, by_drafter = place.model("target", pair), {}
    server = place.server(target)
    for drafter in source.drafters:
        drafting = DraftPasses(None)
        if isinstance(drafter, ShapedDrafter):
            if pair.draft is not None and len(source.drafters) == 1:
                require_fits(target, pair.draft)
            drafting = drafting_of(drafter.kind, target)
        elif pair.draft is not None and not drafter.copies:
            drafting = DraftPasses(place.model("draft", pair))
            require_fits(target, pair.draft, drafting.model)
        require_fits_machine(server, target, drafting, workload, max(batches))
        kind = COPIES if drafter.copies else kind_called(str(drafter))
        by_drafter[drafter] = computed_costs(
            server, target, drafting, workload, batches, lengths, kind
        )
    return by_drafter


def timed_costs(
    source: Basis,
    engine: str,
    batches: Sequence[int],
    lengths: Sequence[int],
    temperature: float,
    show_progress: bool,
    report: Callable[[Costs], object],
) -> Costs:
    """Return the costs of three draft lengths as measured here.

    ``report`` gets them after each batch size. After an interrupt they are those of the sizes that
    were measured before it.
    """
    import pandas as pd

    from specbench.experiment.benchmark import BenchSettings, time_rounds
    from specbench.experiment.loader import Loader

    assert source.pair is not None
    settings = BenchSettings(
        engine=[engine],
        draft_length=sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]}),
        batch_size=sorted(batches),
        temperature=temperature,
        prompt_tokens=round(source.workload.prompt),
    )
    loader, tables = source.loader or Loader(), list[pd.DataFrame]()
    costs: Costs | None = None
    try:
        for records in time_rounds(source.pair, source.loading, settings, loader, show_progress):
            repeats = repeats_of(with_forced(pd.DataFrame(map(vars, records))))
            tables.append(from_bench(repeats, Path(TABLE)))
            costs = costs_of(pd.concat(tables), f"{records[0].engine}, measured here")
            report(costs)
    except KeyboardInterrupt:
        if costs is None:
            raise
    assert costs is not None
    return costs
