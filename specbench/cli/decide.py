"""``specbench decide``: does speculation pay, with which drafter, how many drafts, which batch?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, start_workers
from specbench.cli.measurement import Measurement
from specbench.cli.methods import Methods
from specbench.cli.options import JsonOutput, Models, Prompts
from specbench.cli.output import note, print_json, print_table
from specbench.cli.price import DEFAULT_DRAFTERS, TextsRun, plan_of_target, run_of_target, scored
from specbench.cli.price import MEASURED as PRICE_OPTIONS
from specbench.config import AUTO, Count, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind, require_draft
from specbench.engine.pairs import Loading, PairSpec
from specbench.errors import RunError, UsageError, require
from specbench.experiment.cells import Variant, method_variants
from specbench.methods.registry import METHODS
from specbench.runs.configuration import Settings
from specbench.tasks.task import task_names

if TYPE_CHECKING:
    from specbench.experiment.loader import Loader
    from specbench.pricing.costs import Costs, Machine
    from specbench.pricing.decide import Decision
    from specbench.pricing.rounds import PricedRounds

MEASURED = [name for name in PRICE_OPTIONS if name not in ("batch_size", "drafting")]
STRICT = "sd"
CONTROL = "cooled"  # sharpens the target without a draft
FOLDER = "decision"
NOTICED = 0.0005  # of a speed-up
PROMPT_TOKENS = 512  # where rates of acceptance take the place of texts
MARGIN = 2.0  # points of quality that a lossy method may lose


class DecideOptions(JsonOutput):
    """What to decide on, and what rounds cost."""

    drafter: list[str] = option(
        DEFAULT_DRAFTERS,
        f"What proposes drafts: {', '.join(DRAFTERS)}.",
        metavar="NAME[,NAME...]",
        shown=",".join(DEFAULT_DRAFTERS),
        complete=lambda: DRAFTERS,
    )
    draft_length: list[Count] = option(
        list(range(1, 9)), "Draft lengths to choose from.", metavar="N[,N...]", shown="1 to 8"
    )
    batch_size: list[Count] = option(
        [1, 2, 4, 8, 16], "Batch sizes to decide for.", metavar="B[,B...]"
    )
    acceptance: str | None = option(
        None,
        "Acceptance in place of texts: rates by position, each given that the drafts before it are "
        "accepted. Then nothing is decoded or scored.",
        metavar="A,A...",
        shown="of the target's texts",
    )
    costs: Path | None = option(
        None,
        "Seconds of rounds: a folder of `specbench bench`, or a CSV file (page price).",
        metavar="FILE",
        shown="measured here",
    )
    machine: str | None = option(
        None,
        "Compute the seconds from a machine's figures instead: h100, h200, a100, rtx4090, "
        "or FILE.toml.",
        metavar="NAME",
    )


class LossyMethods(Methods):
    """Lossy methods to measure beside the decision."""

    method: list[str] | None = option(
        None,
        f"Also measure these lossy methods by a short run, with the control {CONTROL}.",
        flags=("--method", "-m"),
        metavar="NAME",
        shown="none",
        complete=lambda: METHODS,
    )


@grouped
def decide(
    options: DecideOptions,
    lossy: Annotated[LossyMethods, ["method", "set_values", "head"]],
    measurement: Annotated[Measurement, MEASURED],
    run: TextsRun = None,
) -> None:
    """Decide whether to speculate: with which drafter, how many drafts, up to which batch.

    Nothing is drafted: tokens per round come from the target's texts (`specbench price`) or from
    --acceptance, seconds per round from short times taken here, a file, or a machine's figures.
    Prints where speculation pays, and the flags of vLLM, SGLang, TensorRT-LLM, llama.cpp and
    specbench for it; writes tables and a figure.
    """
    require(not (options.costs and options.machine), "--costs and --machine exclude each other")
    drafters = [parse_kind(name, None) for name in options.drafter]
    variants = lossy.variants() if lossy.method else []
    costs_of_source = _costs(options, measurement)  # its faults are told before models are loaded
    if options.acceptance is None:
        source = _of_texts(options, drafters, measurement, run)
    else:
        require(run is None, "--acceptance replaces the texts of RUN: give only one of them")
        require(not variants, "--method decodes, and --acceptance does not: give only one of them")
        source = _of_rates(options, drafters, measurement)

    from specbench.analysis.figures import style
    from specbench.pricing.decide import decide as decided
    from specbench.pricing.decide import decision_table, sentences, write_tables
    from specbench.pricing.figures import draw_crossover

    costs = costs_of_source(source)
    decision = decided(source.priced, costs, sorted(options.batch_size), options.draft_length)
    folder = source.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(folder, decision)
    style.save(draw_crossover(decision), folder, "crossover")
    if options.as_json:
        print_json({"results": str(folder), "settings": decision.table()})
    else:
        print(f"{source.title}; costs: {costs.source}")
        print(*sentences(decision), sep="\n")
        print_table(decision_table(decision))
        print(*_flags(decision, source, measurement), sep="\n")
        print(f"results: {folder}")
    for rounds in source.priced:
        if rounds.drafter.copies and not source.is_exact:
            drafts = rounds.drafted[:, -1].sum() / rounds.rounds[:, -1].sum()
            note(
                f"{rounds.drafter} is priced as if every round had N drafts, as specbench pads "
                f"them: with N = {rounds.lengths[-1]} it copies {drafts:.1f} in the mean, so "
                "engines that verify only these gain more"
            )
    if (most := max(decision.optimism(batch) for batch in decision.batches)) >= NOTICED:
        note(f"expect about {most:.3f} less: picking the best of many settings flatters it")
    if source.is_exact:
        note("the rates are taken as exact: intervals cover the noise of repeated costs alone")
    if options.costs and len(costs.rounds) == 1:
        note("the costs were measured once: neither the intervals nor this cover their noise")
    if variants:
        _measure(variants, measurement, decision)


@dataclass(frozen=True)
class _Source:
    """What is accepted, by which models, and how long their texts are."""

    priced: list[PricedRounds]
    title: str
    pair: PairSpec | None  # None if nothing names one beside rates
    prompt_tokens: int
    context: float  # tokens in the cache of a text
    loading: Loading
    settings: Settings
    loader: Loader
    folder: Path  # in which the decision is written
    task: str = ""  # of the texts
    is_exact: bool = False  # whether the rates are given, and so have no intervals


def _of_texts(
    options: DecideOptions, drafters: list[DrafterKind], measurement: Measurement, run: Path | None
) -> _Source:
    """Price drafters by texts of the target: of a run, or new ones."""
    from specbench.pricing.decide import require_prompts

    if run is None:
        plan = plan_of_target(measurement)
        require_prompts((part.task.name, e.id) for part in plan.tasks for e in part.examples)
        if not Path(plan.pair.target).exists():
            note(
                f"{' and '.join(plan.pair.models.values())} are loaded, from the hub if they are "
                "not here, and the target writes a text for each prompt: --acceptance needs neither"
            )

    from specbench.decoding.drafters.policies import get_policy
    from specbench.experiment.loader import Loader
    from specbench.pricing.checks import deviations
    from specbench.pricing.passes import texts_of
    from specbench.pricing.rounds import price
    from specbench.pricing.scores import target_texts
    from specbench.runs.frames import CELL
    from specbench.runs.records import TRACED

    loader = Loader()
    read = run_of_target(run or plan, measurement, loader, "decide")
    chosen = measurement.task or (), measurement.limit
    records = target_texts(read.records(TRACED.union(CELL)), *chosen)
    require_prompts((record["task"], record["sample_id"]) for record in records)
    of_run = partial(texts_of, read, records=records)
    ((task, texts),) = scored(read, of_run, drafters, measurement, loader).items()
    if any(deviation.is_sure for deviation in deviations(texts)):
        raise RunError(f"the texts of {task} are not drawn from the target: see `specbench price`")
    fixed, lengths = get_policy("fixed"), sorted(options.draft_length)
    prompt_tokens = round(mean(map(len, texts.prompts)))
    return _Source(
        [price(texts, drafter, fixed, lengths) for drafter in drafters],
        f"{task} on {read.pair.name}, T = {texts.temperature:g}",
        read.pair,
        prompt_tokens,
        prompt_tokens + texts.length.mean() / 2,
        read.loading,
        read.settings,
        loader,
        measurement.output or read.folder,
        task,
    )


def _of_rates(
    options: DecideOptions, drafters: list[DrafterKind], measurement: Measurement
) -> _Source:
    """Return the rounds that follow from rates of acceptance; no models are needed for it."""
    from specbench.pricing.rounds import rounds_of_rates

    if not options.costs and not measurement.names_models:
        raise UsageError(
            "seconds per round depend on the models: name them by --pair, or by --target and "
            "--draft, or give --costs FILE"
        )
    pair = measurement.spec(alone=True) if measurement.names_models else None
    require(
        "drafter" not in options.model_fields_set or len(drafters) == 1,
        "--acceptance has the rates of one drafter: name it alone with --drafter",
    )
    acceptance, drafter = str(options.acceptance), drafters[0]
    if pair is not None:
        require_draft(pair.draft, [drafter])

    from specbench.experiment.folders import new_folder
    from specbench.experiment.loader import Loader

    title = f"acceptance {acceptance}" + (f" on {pair.name}" if pair else "")
    return _Source(
        [rounds_of_rates(acceptance, drafter)],
        title,
        pair,
        PROMPT_TOKENS,
        PROMPT_TOKENS,
        measurement.loading(),
        measurement.part(Settings),
        Loader(),
        measurement.output or new_folder(f"decide-{pair.name if pair else 'rates'}"),
        is_exact=True,
    )


def _costs(options: DecideOptions, measurement: Measurement) -> Callable[[_Source], Costs]:
    """Return what gives the costs for a source: a file, a machine, or times taken here.

    Raises:
        UsageError: The file or the machine is faulty, or the file lacks what is asked.
    """
    from specbench.pricing.costs import machine, read_costs

    if options.costs:
        engine = None if measurement.engine == AUTO else measurement.engine
        table = read_costs(options.costs, engine)
        table.require_measured(options.batch_size, options.draft_length)
        return lambda source: table
    if options.machine:
        return partial(_computed, options, measurement, machine(options.machine))
    return partial(_timed, options, measurement)


def _computed(
    options: DecideOptions, measurement: Measurement, figures: Machine, source: _Source
) -> Costs:
    """Return the costs by a machine's figures."""
    from specbench.pricing.costs import PassSize, machine_costs, pass_sizes

    assert source.pair is not None
    sizes = pass_sizes(source.pair, measurement.loading())
    draft = sizes.get("draft", PassSize(0, 0, 0))
    batches, lengths = sorted(options.batch_size), sorted(options.draft_length)
    return machine_costs(figures, sizes["target"], draft, source.context, batches, lengths)


def _timed(options: DecideOptions, measurement: Measurement, source: _Source) -> Costs:
    """Return the costs as measured here."""
    from specbench.experiment.bench.measure import time_rounds
    from specbench.experiment.bench.plan import BenchSettings
    from specbench.pricing.costs import BENCH_REPEATS, costs_of, from_bench

    assert source.pair is not None
    lengths = sorted(options.draft_length)
    settings = BenchSettings(
        engine=[measurement.engine],
        draft_length=sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]}),
        batch_size=sorted(options.batch_size),
        temperature=measurement.temperature,
        prompt_tokens=source.prompt_tokens,
    )
    load, show_progress = source.loader.pair, not measurement.no_progress
    table = time_rounds(source.pair, source.loading, settings, load, show_progress)
    engine = table["engine"].iloc[0]
    return costs_of(from_bench(table, Path(BENCH_REPEATS)), f"{engine}, measured here")


def _flags(decision: Decision, source: _Source, measurement: Measurement) -> Iterator[str]:
    """Yield the flags that carry out the decision, a line for each engine."""
    from specbench.pricing.decide import engine_flags, where_not_to_draft

    best = decision.first_that_pays()
    if best is None:
        yield "leave speculation off"
        return
    yield from where_not_to_draft(decision, best.drafter)
    first, schedule = best.batch, decision.schedule(best.drafter)
    yield from engine_flags(best.drafter, schedule, first, best.length, source.pair)
    prompts = measurement.part(Prompts).retyped()
    if source.pair is None or not (source.task or prompts):
        return
    if not (measurement.task or measurement.prompts):
        is_task = source.task in task_names()
        prompts += ["--task", source.task] if is_task else ["--prompts", "FILE"]
    run = [
        *("specbench", "run", "--method", STRICT, "--drafter", str(best.drafter)),
        *("--draft-length", str(best.length)),
        *(measurement.part(Models).retyped() or ["--pair", source.pair.name]),
        *prompts,
        *source.settings.updated(batch_size=first).retyped(),
    ]
    yield f"specbench, batch {first}: {shlex.join(run)}"


def _measure(variants: list[Variant], measurement: Measurement, decision: Decision) -> None:
    """Decode with lossy methods, sd and the control by the decision; print what each costs."""
    from specbench.analysis.margin import margin_rows, margin_tables
    from specbench.analysis.results import Results

    best = decision.fastest(decision.batches[0])
    drafting = {"draft_length": [best.length], "drafter": [str(best.drafter)], "output": None}
    options = measurement.model_copy(update=drafting)
    plan = options.plan([*method_variants([CONTROL], {}), *variants])
    workers = start_workers(options, plan.loading, options)
    folder = carry_out(plan, "decide", options, workers).folder
    rows = margin_rows(Results([folder]).samples, STRICT, MARGIN)
    print_table(*margin_tables(rows))
    print(f"results: {folder}")
