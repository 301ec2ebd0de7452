"""``specbench decide``: does speculation pay, with which drafter, how many drafts, which batch?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, start_workers
from specbench.cli.methods import Methods
from specbench.cli.options import JsonOutput, Measurement, Models, Prompts
from specbench.cli.output import note, print_json, print_table
from specbench.cli.price import MEASURED as PRICE_OPTIONS
from specbench.cli.price import TextsRun, plan_of_target, run_of_target, scored
from specbench.config import AUTO, Count, option
from specbench.errors import RunError, require
from specbench.experiment.variants import Variant, method_variants
from specbench.methods.drafters import DRAFTERS, GREEDY, LOOKUP, MODEL, checked, needs_model
from specbench.methods.registry import AUTOREGRESSIVE, METHODS
from specbench.tasks.task import task_names
from specbench.words import listed

if TYPE_CHECKING:
    from specbench.price.costs import Costs, Machine
    from specbench.price.decide import Decision
    from specbench.price.scores import Scores
    from specbench.runs.run import Run

MEASURED = [name for name in PRICE_OPTIONS if name not in ("batch_size", "draft_length")]
REPEATS, NEW_TOKENS = 8, 48  # of the times that are measured here
ACCEPTED = 0.6  # by force, so that rounds take the same time for all pairs
STRICT = "sd"
CONTROL = "cooled"  # sharpens the target without a draft
FOLDER = "decision"


class DecideOptions(JsonOutput):
    """What to decide on, and what rounds cost."""

    drafter: list[str] = option(
        [MODEL, GREEDY, LOOKUP],
        f"What proposes drafts: {', '.join(DRAFTERS)}.",
        metavar="NAME[,NAME...]",
        shown=f"{MODEL},{GREEDY},{LOOKUP}",
        complete=lambda: DRAFTERS,
    )
    draft_length: list[Count] = option(
        list(range(1, 9)), "Draft lengths to choose from.", metavar="N[,N...]", shown="1 to 8"
    )
    batch_size: list[Count] = option(
        [1, 2, 4, 8, 16], "Batch sizes to decide for.", metavar="B[,B...]"
    )
    costs: Path | None = option(
        None,
        "Seconds of rounds: a folder of `specbench bench`, or a CSV file (page price).",
        metavar="FILE",
        shown="measured here",
        panel="Costs",
    )
    machine: str | None = option(
        None,
        "Compute the seconds from a machine's figures instead: h100, a100, rtx4090, or FILE.toml.",
        metavar="NAME",
        panel="Costs",
    )
    context: int | None = option(
        None,
        "Tokens in the cache of a text, for --machine.",
        ge=1,
        shown="prompt and half of the text",
        panel="Costs",
    )
    margin: float = option(2.0, "Loss of quality to judge --method by, in points.", gt=0)


class LossyMethods(Methods):
    """Lossy methods to measure beside the decision."""

    default = ()

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
    asked: DecideOptions,
    lossy: Annotated[LossyMethods, ["method", "set_values", "head"]],
    measurement: Annotated[Measurement, MEASURED],
    run: TextsRun = None,
) -> None:
    """Decide whether to speculate: with which drafter, how many drafts, up to which batch.

    Nothing is drafted: tokens per round come from the target's texts (`specbench price`), seconds
    per round from short times taken here, a file, or a machine's figures. Prints where speculation
    pays, and the flags of vLLM, SGLang, llama.cpp and specbench for it; writes tables, a figure and
    files for other tools.
    """
    require(not (asked.costs and asked.machine), "--costs and --machine exclude each other")
    drafters = [checked(name) for name in asked.drafter]
    variants = lossy.variants() if lossy.method else []
    costs_of_run = _costs(asked, measurement)  # a fault in them is told before models are loaded

    from specbench.price.decide import require_prompts
    from specbench.price.records import target_texts
    from specbench.runs.frames import CELL
    from specbench.runs.records import TRACED

    if run is None:
        plan = plan_of_target(measurement)
        require_prompts((part.task.name, e.id) for part in plan.tasks for e in part.examples)
        read = run_of_target(plan, measurement)
    else:
        read = run_of_target(run, measurement)
    chosen = measurement.task or (), measurement.limit
    records = target_texts(read.records(TRACED.union(CELL)), *chosen)
    require_prompts((record["task"], record["sample_id"]) for record in records)

    from specbench.price.passes import texts_of

    by_task = scored(read, partial(texts_of, read, records=records), drafters, measurement)
    ((task, texts),) = by_task.items()

    from specbench.figures import style
    from specbench.policies import get_policy
    from specbench.price.checks import deviations
    from specbench.price.decide import decide as decided
    from specbench.price.decide import decision_table, sentences
    from specbench.price.exports import write_all
    from specbench.price.figures import draw_crossover
    from specbench.price.pricing import price

    if any(deviation.is_sure for deviation in deviations(texts)):
        raise RunError(f"the texts of {task} are not drawn from the target: see `specbench price`")
    fixed = get_policy("fixed")
    priced = [price(texts, drafter, fixed, sorted(asked.draft_length)) for drafter in drafters]
    costs = costs_of_run(read, texts)
    decision = decided(priced, costs, sorted(asked.batch_size))
    folder = (measurement.output or read.folder) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_all(folder, decision, priced, read.pair.target, str(read.pair.draft))
    style.save(draw_crossover(decision), folder, "crossover")
    if asked.as_json:
        print_json({"results": str(folder), "settings": decision.table()})
    else:
        print(f"{task} on {read.pair.name}, T = {texts.temperature:g}; costs: {costs.source}")
        print(*sentences(decision), sep="\n")
        print_table(decision_table(decision))
        print(*_flags(decision, read, task, measurement), sep="\n")
        print(f"results: {folder}")
    for rounds in priced:
        if not needs_model(rounds.drafter):
            drafts = rounds.drafted[:, -1].sum() / rounds.rounds[:, -1].sum()
            note(
                f"{rounds.drafter} is priced as if every round had N drafts, as specbench pads "
                f"them: with N = {rounds.lengths[-1]} it copies {drafts:.1f} in the mean, so "
                "engines that verify only these gain more"
            )
    most = max(decision.optimism(batch) for batch in decision.batches)
    note(f"choosing the fastest setting makes its speed-up look larger by about {most:.3f}")
    if asked.costs and len(costs.rounds) == 1:
        note("the costs were measured once: neither the intervals nor this cover their noise")
    if variants:
        _measure(variants, asked.margin, measurement, decision)


def _costs(asked: DecideOptions, measurement: Measurement) -> Callable[[Run, Scores], Costs]:
    """Return what gives the costs for the texts of a run: a file, a machine, or times taken here.

    Raises:
        UsageError: The file or the machine is faulty, or the file lacks what is asked.
    """
    from specbench.price.costs import machine, read_costs

    if asked.costs:
        engine = None if measurement.engine == AUTO else measurement.engine
        table = read_costs(asked.costs, engine)
        table.require_measured(asked.batch_size, asked.draft_length)
        return lambda run, texts: table
    if asked.machine:
        return partial(_computed, asked, measurement, machine(asked.machine))
    return partial(_timed, asked, measurement)


def _computed(
    asked: DecideOptions, measurement: Measurement, figures: Machine, run: Run, texts: Scores
) -> Costs:
    """Return the costs by a machine's figures."""
    from specbench.price.costs import PassSize, roofline
    from specbench.price.sizes import pass_sizes

    sizes = pass_sizes(run.pair, measurement.loading())
    context = asked.context or round(mean(map(len, texts.prompts))) + texts.length.mean() / 2
    draft = sizes.get("draft", PassSize(0, 0, 0))
    batches, lengths = sorted(asked.batch_size), sorted(asked.draft_length)
    return roofline(figures, sizes["target"], draft, context, batches, lengths)


def _timed(asked: DecideOptions, measurement: Measurement, run: Run, texts: Scores) -> Costs:
    """Return the costs as measured here."""
    from specbench.bench.measure import measure, prepare
    from specbench.bench.plan import BenchSettings, build_bench
    from specbench.experiment.progress import progress_bar
    from specbench.price.costs import BENCH_REPEATS, costs_of, from_bench

    lengths = sorted(asked.draft_length)
    settings = BenchSettings(
        engine=[measurement.engine],
        draft_length=sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]}),
        batch_size=sorted(asked.batch_size),
        acceptance=[ACCEPTED],
        temperature=measurement.temperature,
        prompt_tokens=round(mean(map(len, texts.prompts))),
        new_tokens=NEW_TOKENS,
        repeats=REPEATS,
        no_transformers=True,
    )
    timed = method_variants([AUTOREGRESSIVE, STRICT], {})
    plan, pairs = prepare(build_bench(run.pair, timed, run.loading, settings))
    with progress_bar(len(plan), not measurement.no_progress) as report:
        repeats = measure(plan, pairs, report).repeats
    engine = plan.systems[0].engine
    return costs_of(from_bench(repeats, Path(BENCH_REPEATS)), f"{engine}, measured here")


def _flags(decision: Decision, run: Run, task: str, measurement: Measurement) -> Iterator[str]:
    """Yield the flags that carry out the decision, a line for each engine."""
    from specbench.price.decide import PAYS
    from specbench.servers.flags import llamacpp_flags, sglang_flags, vllm_flags

    if off := [str(b) for b in decision.batches if decision.fastest(b).verdict != PAYS]:
        yield f"at batch {listed(off)} leave speculation off"
    best = decision.first_that_pays()
    if best is None:
        return
    draft, first, schedule = str(run.pair.draft), best.batch, decision.schedule(best.drafter)
    if any(length for *_, length in schedule):
        yield f"vllm: {shlex.join(vllm_flags(best.drafter, schedule, draft))}"
    yield f"sglang, batch {first}: {shlex.join(sglang_flags(best.drafter, best.length, draft))}"
    arguments = llamacpp_flags(best.drafter, best.length, draft)
    yield f"llama.cpp, batch {first}: {shlex.join(arguments)}"
    prompts = measurement.part(Prompts).retyped()
    if not (measurement.task or measurement.prompts):
        prompts += ["--task", task] if task in task_names() else ["--prompts", "FILE"]
    command = [
        *("specbench", "run", "--method", STRICT, "--drafter", best.drafter),
        *("--draft-length", str(best.length)),
        *(measurement.part(Models).retyped() or ["--pair", run.pair.name]),
        *prompts,
        *run.settings.updated(batch_size=first).retyped(),
    ]
    yield f"specbench, batch {first}: {shlex.join(command)}"


def _measure(
    variants: list[Variant], margin: float, measurement: Measurement, decision: Decision
) -> None:
    """Decode with lossy methods, sd and the control by the decision; print what each costs."""
    from specbench.analysis.margin import margin_rows, margin_tables
    from specbench.results import Results

    best = decision.fastest(decision.batches[0])
    drafting = {"draft_length": [best.length], "drafter": [best.drafter], "output": None}
    options = measurement.model_copy(update=drafting)
    plan = options.plan([*method_variants([CONTROL], {}), *variants])
    workers = start_workers(options, plan.loading, options)
    folder = carry_out(plan, "decide", options, workers).folder
    rows = margin_rows(Results([folder]).samples, STRICT, margin)
    print_table(*margin_tables(rows))
    print(f"results: {folder}")
