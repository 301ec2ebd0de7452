"""``specbench decide``: does speculation pay, with which drafter, how many drafts, which batch?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench.cli import price
from specbench.cli.generate import grouped
from specbench.cli.measurement import Measurement
from specbench.cli.options import JsonOutput, Models, Prompts
from specbench.cli.output import console, note, print_json
from specbench.cli.round_costs import RoundCosts
from specbench.config import AUTO, Count, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind, require_draft
from specbench.errors import UsageError, require
from specbench.experiment.folders import new_folder
from specbench.files import make_folder
from specbench.pricing.heads import HEADS, ShapedDrafter, kind_called
from specbench.runs.configuration import Settings
from specbench.runs.records import TRACED
from specbench.tasks.task import task_names

if TYPE_CHECKING:
    from specbench.pricing.costs import Costs
    from specbench.pricing.decide import Decision
    from specbench.pricing.source import Basis

MEASURED = [name for name in price.MEASURED if name not in ("batch_size", "drafting")]
STRICT = "sd"
FOLDER = "decision"
SAME = "--acceptance, --accepted-length and --accept-rate say the same: give only one of them"
MOST_AT_ONCE = 16  # texts of the target, whose times do not count
MOST_LENGTHS = 3  # lines of what others measured


class DecideOptions(RoundCosts, JsonOutput):
    """What to decide on."""

    drafter: list[str] = option(
        price.DEFAULT_DRAFTERS,
        f"What proposes drafts: {', '.join(DRAFTERS)}; with rates also {', '.join(HEADS)}.",
        metavar="NAME[,NAME...]",
        shown=",".join(price.DEFAULT_DRAFTERS),
        complete=lambda: [*DRAFTERS, *HEADS],
    )
    draft_length: list[Count] = option(
        list(range(1, 9)), "Draft lengths to choose from.", metavar="N[,N...]", shown="1 to 8"
    )
    batch_size: list[Count] = option(
        [1, 2, 4, 8, 16], "Batch sizes to decide for.", metavar="B[,B...]"
    )
    acceptance: str | None = option(
        None,
        "Acceptance in place of texts: a rate for each position, given that the drafts before it "
        "are accepted, or one for all. Then nothing is decoded or scored.",
        metavar="A[,A...]",
        shown="of the target's texts",
    )
    accepted_length: list[str] = option(
        [],
        "Tokens per round that a server reports with N = --draft-length, in place of rates; of "
        "several drafters each by its name, with its own N after @.",
        metavar="[NAME=]L[@N],...",
        conflicts={"acceptance": SAME},
    )
    accept_rate: list[str] = option(
        [],
        "Accepted over drafted tokens, as logs of servers print it, in the same form.",
        metavar="[NAME=]R[@N],...",
        conflicts={"acceptance": SAME, "accepted_length": SAME},
    )

    @property
    def has_rates(self) -> bool:
        """Whether acceptance is given, so that no texts are needed."""
        return self.acceptance is not None or bool(self.accepted_length or self.accept_rate)

    @property
    def means(self) -> dict[str, tuple[float, int]]:
        """Tokens per round and N by drafter; the name is empty where none is typed."""
        from specbench.pricing.rounds import mean_lengths

        typed = self.draft_length if "draft_length" in self.model_fields_set else []
        drafts = typed[0] if len(typed) == 1 else None
        if self.accept_rate:
            return mean_lengths("--accept-rate", self.accept_rate, drafts, is_share=True)
        return mean_lengths("--accepted-length", self.accepted_length, drafts)

    @property
    def lengths(self) -> list[int]:
        """The draft lengths to choose from; with a mean length all that it says something of."""
        if means := self.means:
            return list(range(1, max(drafts for _, drafts in means.values()) + 1))
        return sorted(self.draft_length)

    def batches(self, costs: Costs) -> list[int]:
        """Return the batch sizes to decide for; by default those that the costs cover."""
        first, last = costs.batches[[0, -1]]
        if "batch_size" in self.model_fields_set or last < self.batch_size[0]:
            return sorted(self.batch_size)
        covered = sorted(b for b in self.batch_size if first <= b <= last)
        return covered or [int(batch) for batch in costs.batches]

    def drafters(self) -> list[DrafterKind]:
        """Return the drafters; those that are priced by shape are not drafted with."""
        kinds: list[DrafterKind] = []
        for name in self.drafter:
            kind = "" if name in DRAFTERS else kind_called(name)
            is_shape = kind in HEADS and not Path(name).is_dir()
            kinds.append(ShapedDrafter(kind) if is_shape else parse_kind(name, None))
        return kinds

    def rates(self, drafter: DrafterKind) -> list[float]:
        """Return the rate of acceptance of a drafter at each position."""
        from specbench.pricing.rounds import rate_of_length, rates_of

        if self.acceptance is not None:
            return rates_of(self.acceptance, max(self.draft_length))
        means, kind = self.means, kind_called(str(drafter))
        of_kind = [mean for name, mean in means.items() if name and kind_called(name) == kind]
        mean = means.get(str(drafter)) or means.get("") or next(iter(of_kind), None)
        if mean is None:
            raise UsageError(f"no tokens per round of {drafter}: give {drafter}=L among the others")
        return [rate_of_length(*mean)] * mean[1]


@grouped
def decide(
    options: DecideOptions,
    measurement: Annotated[Measurement, MEASURED],
    run: price.TextsRun = None,
) -> None:
    """Decide whether to speculate: with which drafter, how many drafts, up to which batch.

    Nothing is drafted: tokens per round come from the target's texts (`specbench price`), or from
    --acceptance, --accepted-length or --accept-rate; seconds per round from short times taken
    here, a file, or a machine's figures. Prints where speculation pays, from how many tokens per
    round it would, and the flags of the engine for it; writes tables and a figure.
    """
    from specbench.pricing.source import repository_of

    drafters = options.drafters()
    if options.machine:
        roles = ("target", "draft")
        named = {role: repository_of(getattr(measurement, role)) for role in roles}
        measurement = measurement.updated(**named)
    costs_of_source = _costs(options, measurement)  # its faults come before models
    has_texts = run is not None or bool(measurement.task or measurement.prompts)
    replaced = "rates of acceptance replace the texts of RUN: give only one of them"
    require(run is None or not options.has_rates, replaced)
    if options.has_rates or ((options.machine or options.costs) and not has_texts):
        source = _of_rates(options, drafters, measurement)
    else:
        shaped = [str(drafter) for drafter in drafters if isinstance(drafter, ShapedDrafter)]
        require(
            not shaped,
            f"--drafter {', '.join(shaped)} is priced by its shape, and its drafts are unknown: "
            "give --acceptance, --accepted-length or --accept-rate",
        )
        source = _of_texts(options, drafters, measurement, run)
    workload = source.workload._replace(shared=options.cached_prompt)
    require(
        workload.shared <= workload.prompt,
        f"--cached-prompt {workload.shared} is more than the {workload.prompt:.0f} tokens of a "
        "prompt: give fewer",
    )
    source = replace(source, workload=workload)

    costs = costs_of_source(source)
    of_one = next(iter(costs.values()))
    batches = of_one.batches.astype(int).tolist()  # those that were timed
    if options.costs or options.machine:
        batches = options.batches(of_one)
    if missing := ", ".join(map(str, sorted({*options.batch_size} - {*batches}))):
        note(f"no costs of batch {missing}: measure them, or choose others by --batch-size")
    from specbench.pricing import decide as decisions
    from specbench.pricing.bounds import usual_lengths

    decision = decisions.decide(source.priced, costs, batches, options.lengths)
    folder = source.folder / FOLDER
    make_folder(folder)
    decisions.write_tables(folder, decision)
    # An answer by computing takes a second, without a figure.
    is_exact = all(rounds.is_exact for rounds in source.priced)  # rates were given
    if decision.is_told and not (is_exact and decision.is_computed):
        from specbench.analysis.figures import style
        from specbench.pricing.figures import draw_crossover

        style.save(draw_crossover(decision), folder, "crossover")
    if options.as_json:
        text, table = decisions.answer(decision).replace("\n", " "), decision.table()
        others = {str(d): usual_lengths(kind_called(str(d))) for d in decision.drafters}
        print_json({"answer": text, "results": str(folder), "others": others, "settings": table})
    else:
        print(*_screen(options, decision, source, measurement), sep="\n")
        print(f"results: {folder}")
    note(*decisions.remarks(decision, source.priced), *filter(None, [of_one.remark]))
    if options.costs and any(len(of_one.seconds(b, 0, source.drafters[0])) == 1 for b in batches):
        note("the costs were measured once, so no interval here covers their noise")


def _screen(
    options: DecideOptions, decision: Decision, source: Basis, measurement: Measurement
) -> Iterator[str]:
    """Yield the answer, a table, and flags; without a number how to get one instead of these."""
    from specbench.analysis.tables.table import to_text
    from specbench.pricing import decide as decisions
    from specbench.pricing.bounds import usual_lengths
    from specbench.pricing.flags import lines_to_measure

    show = partial(to_text, width=console().width)
    first, *others = decisions.answer(decision).splitlines()
    yield first
    of_one = next(iter(decision.costs.values()))
    if decision.is_told:
        yield from others
        yield f"{source.title}; {of_one.source}"
        yield show(decisions.decision_table(decision)).rstrip()
        yield from _flags(options, decision, source, measurement)
        return
    if first == decisions.MEASURE and of_one.bound:
        yield from lines_to_measure(of_one.bound.kind.engine, source.pair, source.drafters[0])
    yield from others
    yield show(decisions.break_even_table(decision)).rstrip()
    for drafter in decision.drafters:
        if lines := usual_lengths(kind_called(str(drafter))):
            yield (
                f"tokens per round that others had with {drafter}, median and range ({len(lines)} "
                "sources and workloads, all by --json)"
            )
        yield from (f"  {line}" for line in lines[:MOST_LENGTHS])


def _of_texts(
    options: DecideOptions, drafters: list[DrafterKind], measurement: Measurement, run: Path | None
) -> Basis:
    """Price drafters by texts of the target: of a run, or new ones."""
    from specbench.pricing.source import require_prompts, source_of_texts

    if run is None:
        # Their times do not count, and a batch that is decided for must fit the memory anyway.
        at_once = min(measurement.limit or MOST_AT_ONCE, MOST_AT_ONCE, max(options.batch_size))
        plan = price.plan_of_target(measurement.updated(batch_size=at_once))
        plan = replace(plan, times="none")
        require_prompts((part.task.name, e.id) for part in plan.tasks for e in part.examples)
        if not Path(plan.pair.target).exists():
            note(
                f"{' and '.join(plan.pair.models.values())} are loaded, from the hub if they are "
                "not here, and the target writes a text for each prompt: --acceptance needs neither"
            )

    from specbench.experiment.loader import Loader
    from specbench.pricing.passes import texts_of
    from specbench.pricing.scores import name_of, target_texts
    from specbench.runs.frames import CELL

    loader = Loader()
    read = price.run_of_target(run or plan, measurement, loader, "decide")
    chosen = measurement.task or (), measurement.limit
    records = target_texts(read.records(TRACED.union(CELL)), *chosen)
    require_prompts((name.task, name.prompt) for name in map(name_of, records))
    of_run = partial(texts_of, read, records=records)
    scores = price.scored(read, of_run, drafters, measurement, loader)
    folder = measurement.output or read.folder
    return source_of_texts(scores, drafters, options.lengths, read, folder, loader)


def _of_rates(
    options: DecideOptions, drafters: list[DrafterKind], measurement: Measurement
) -> Basis:
    """Return the rounds that follow from rates of acceptance; no models are needed for it."""
    require(
        bool(options.costs) or measurement.names_models,
        "seconds per round depend on the models: name them by --pair, or by --target and "
        "--draft, or give --costs FILE",
    )
    pair = measurement.spec(alone=True) if measurement.names_models else None
    require(
        len(drafters) == 1 or "drafter" not in options.model_fields_set or not options.acceptance,
        "--acceptance has the rates of one drafter: name it alone with --drafter, or give "
        "--accepted-length NAME=L for each",
    )
    if "drafter" not in options.model_fields_set and not any(options.means):
        drafters = drafters[:1]
    if pair is not None:
        require_draft(pair.draft, drafters)

    from specbench.pricing.formulas import Workload
    from specbench.pricing.rounds import rounds_of_rates
    from specbench.pricing.source import ANSWER, Basis

    rates = {d: options.rates(d) if options.has_rates else None for d in drafters}
    means = [f"{d} {r[0]:.2f}" for d, r in rates.items() if r]
    accepted = options.acceptance or f"{', '.join(means)} per position"
    answer = measurement.max_new_tokens or ANSWER
    return Basis(
        priced=[rounds_of_rates(r, d, options.lengths[-1]) for d, r in rates.items()],
        title=f"acceptance {accepted}" + (f" on {pair.name}" if pair else ""),
        pair=pair,
        workload=Workload(options.context_length, answer),
        settings=measurement.part(Settings),
        folder=measurement.output or new_folder(f"decide-{pair.name if pair else 'rates'}"),
        loading=measurement.loading(),
    )


def _costs(
    options: DecideOptions, measurement: Measurement
) -> Callable[[Basis], Mapping[DrafterKind, Costs]]:
    """Return what gives the costs of drafters: a file, a machine, or times taken here."""
    from specbench.pricing import decide as decisions
    from specbench.pricing.costs import read_costs
    from specbench.pricing.machines import find_machine
    from specbench.pricing.reports import REPORTS, read_reports
    from specbench.pricing.source import Place, costs_of_machine, timed_costs

    batches, lengths, engine = sorted(options.batch_size), options.lengths, measurement.engine
    if options.costs:
        first, *further = options.costs
        if first.suffix in REPORTS:
            typed = "batch_size" in options.model_fields_set
            table = read_reports(options.costs, options.batch_size if typed else ())
        else:
            require(not further, f"--costs {first} has all costs: give it alone")
            table = read_costs(first, None if engine == AUTO else engine)
        table.require_measured(options.batches(table), lengths)
        return lambda source: dict.fromkeys(source.drafters, table)
    if options.machine:
        find_machine(options.machine)
        forms = measurement.quantization, measurement.dtype
        served = options.machine, options.gpus, options.serving, options.weights, options.cache
        place = Place(*served, forms)
        return lambda source: costs_of_machine(place, source, batches, lengths)
    is_shown, temperature = not measurement.no_progress, measurement.temperature

    def timed(source: Basis) -> dict[DrafterKind, Costs]:
        def report(costs: Costs) -> None:
            size = int(costs.batches[-1])
            fastest = decisions.decide(source.priced, costs, [size], lengths).fastest(size)
            note(f"N = {fastest.length}: {fastest.times}, {fastest.verdict}")

        costs = timed_costs(source, engine, batches, lengths, temperature, is_shown, report)
        return dict.fromkeys(source.drafters, costs)

    return timed


def _flags(
    options: DecideOptions, decision: Decision, source: Basis, measurement: Measurement
) -> Iterator[str]:
    """Yield the flags that carry out the decision, of the engine that serves or of all."""
    from specbench.pricing.flags import engine_flags

    if (best := decision.first_that_pays()) is None:
        return
    bound = decision.costs[best.drafter].bound
    engine = options.serving or (bound.kind.engine if bound else "none")
    engine = "" if options.flags_of == "all" else engine
    yield from engine_flags(best.drafter, decision.schedule(best.drafter), source.pair, engine)
    prompts = measurement.part(Prompts).retyped()
    if (pair := source.pair) is None or not (source.task or prompts):
        return
    if isinstance(best.drafter, ShapedDrafter) and str(best.drafter) not in pair.drafters:
        return
    if not (measurement.task or measurement.prompts):
        is_task = source.task in task_names()
        prompts += ["--task", source.task] if is_task else ["--prompts", "FILE"]
    run = ["specbench", "run", "--method", STRICT, "--drafter", str(best.drafter)]
    run += ["--draft-length", str(best.length)]
    run += measurement.part(Models).retyped() or ["--pair", pair.name]
    run += [*prompts, *source.settings.updated(batch_size=best.batch).retyped()]
    yield f"measure it at batch {best.batch} with:"
    yield f"  {shlex.join(run)}"
