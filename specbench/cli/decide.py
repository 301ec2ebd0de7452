"""``specbench decide``: does speculation pay, with which drafter, how many drafts, which batch?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from specbench.cli.generate import grouped
from specbench.cli.measurement import Measurement
from specbench.cli.options import JsonOutput, Models, Prompts
from specbench.cli.output import note, print_json, print_table
from specbench.cli.price import DEFAULT_DRAFTERS, TextsRun, plan_of_target, run_of_target, scored
from specbench.cli.price import MEASURED as PRICE_OPTIONS
from specbench.config import AUTO, Count, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind, require_draft
from specbench.errors import require
from specbench.experiment.folders import new_folder
from specbench.pricing.heads import HEADS, ShapedDrafter, kind_called
from specbench.runs.configuration import Settings
from specbench.runs.records import TRACED
from specbench.tasks.task import task_names

if TYPE_CHECKING:
    from specbench.pricing.costs import Costs
    from specbench.pricing.decide import Decision
    from specbench.pricing.source import Basis

MEASURED = [name for name in PRICE_OPTIONS if name not in ("batch_size", "drafting")]
STRICT = "sd"
FOLDER = "decision"


class DecideOptions(JsonOutput):
    """What to decide on, and what rounds cost."""

    drafter: list[str] = option(
        DEFAULT_DRAFTERS,
        f"What proposes drafts: {', '.join(DRAFTERS)}; with rates also {', '.join(HEADS)}.",
        metavar="NAME[,NAME...]",
        shown=",".join(DEFAULT_DRAFTERS),
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
    accepted_length: float | None = option(
        None,
        "Tokens per round that a server reports with N = --draft-length, in place of rates.",
        metavar="L",
        conflicts={
            "acceptance": "--acceptance and --accepted-length say the same: give only one of them"
        },
    )
    costs: list[Path] | None = option(
        None,
        "Seconds of rounds: a folder of `specbench bench`, a CSV file, or what llama-bench -o json "
        "or vllm bench wrote, of target and draft (page price).",
        metavar="FILE",
        shown="measured here",
    )
    machine: str | None = option(
        None,
        "Compute the seconds from a machine's figures instead: h100, a100, rtx5090, m3-ultra and "
        "about seventy in all, or FILE.toml.",
        metavar="NAME",
        conflicts={"costs": "--costs and --machine exclude each other"},
    )
    gpus: Annotated[int, Field(ge=1)] = option(1, "How many of these machines share the layers.")
    serving: str | None = option(
        None,
        "Whose overheads to add to --machine: vllm, sglang, tensorrt-llm, llama.cpp or specbench.",
        metavar="ENGINE",
        shown="by the machine and the weights",
    )
    weights: list[str] = option(
        [],
        "Format of the target's and the draft's weights for --machine: bf16, fp8, awq, q4_k_m ...",
        metavar="NAME[,NAME]",
        shown="as published",
        repeats=True,
    )
    cache: str | None = option(
        None, "Format of caches for --machine: bf16, fp8, q8_0 ...", metavar="NAME", shown="bf16"
    )
    context_length: Count = option(512, "Tokens of a prompt, where rates replace the texts.")

    @property
    def has_rates(self) -> bool:
        """Whether acceptance is given, so that no texts are needed."""
        return self.acceptance is not None or self.accepted_length is not None

    @property
    def lengths(self) -> list[int]:
        """The draft lengths to choose from; with a mean length all that it says something of."""
        if self.accepted_length is None:
            return sorted(self.draft_length)
        return list(range(1, max(self.draft_length) + 1))

    def batches(self, costs: Costs) -> list[int]:
        """Return the batch sizes to decide for; by default those that the costs cover."""
        first, last = costs.batches[[0, -1]]
        if "batch_size" in self.model_fields_set or last < self.batch_size[0]:
            return sorted(self.batch_size)
        covered = sorted(b for b in self.batch_size if first <= b <= last)
        return covered or [int(batch) for batch in costs.batches]

    def drafters(self) -> list[DrafterKind]:
        """Return the drafters; those that are priced by shape need rates."""
        kinds: list[DrafterKind] = []
        for name in self.drafter:
            kind = "" if name in DRAFTERS else kind_called(name)
            if kind in HEADS and not Path(name).is_dir():
                require(
                    self.has_rates,
                    f"--drafter {name} is priced by its shape, and its drafts are unknown: give "
                    "its rates by --acceptance or --accepted-length",
                )
                kinds.append(ShapedDrafter(kind))
            else:
                kinds.append(parse_kind(name, None))
        return kinds

    def rates(self) -> list[float]:
        """Return the rate of acceptance at each position.

        Raises:
            UsageError: It is no rate, or fits no draft length.
        """
        from specbench.pricing.rounds import rate_of_length, rates_of

        if self.accepted_length is None:
            return rates_of(str(self.acceptance), max(self.draft_length))
        require(
            "draft_length" in self.model_fields_set and len(self.draft_length) == 1,
            "--accepted-length is a mean of rounds with N drafts: give that N by --draft-length",
        )
        drafts = self.draft_length[0]
        return [rate_of_length(self.accepted_length, drafts)] * drafts


@grouped
def decide(
    options: DecideOptions,
    measurement: Annotated[Measurement, MEASURED],
    run: TextsRun = None,
) -> None:
    """Decide whether to speculate: with which drafter, how many drafts, up to which batch.

    Nothing is drafted: tokens per round come from the target's texts (`specbench price`), or from
    --acceptance or --accepted-length; seconds per round from short times taken here, a file, or a
    machine's figures. Prints where speculation pays, and the flags of vLLM, SGLang, TensorRT-LLM,
    llama.cpp and specbench for it; writes tables and a figure.
    """
    from specbench.pricing.source import repository_of

    drafters = options.drafters()
    named = {role: repository_of(getattr(measurement, role)) for role in ("target", "draft")}
    measurement = measurement.updated(**named) if options.machine else measurement
    costs_of_source = _costs(options, measurement)  # its faults come before models
    if options.has_rates:
        flag = "--acceptance" if options.acceptance else "--accepted-length"
        require(run is None, f"{flag} replaces the texts of RUN: give only one of them")
        source = _of_rates(options, drafters, measurement)
    else:
        source = _of_texts(options, drafters, measurement, run)

    from specbench.pricing.decide import answer, decision_table, remarks, write_tables
    from specbench.pricing.decide import decide as decided

    costs = costs_of_source(source)
    decision = decided(source.priced, costs, options.batches(costs), options.lengths)
    folder = source.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(folder, decision)
    if not (source.is_exact and costs.machine):  # an answer from figures alone takes a second
        from specbench.analysis.figures import style
        from specbench.pricing.figures import draw_crossover

        style.save(draw_crossover(decision), folder, "crossover")
    if options.as_json:
        table = decision.table()
        sentences = answer(decision).splitlines()
        print_json({"answer": " ".join(sentences), "results": str(folder), "settings": table})
    else:
        print(answer(decision))
        print(f"{source.title}; costs: {costs.source}")
        print_table(decision_table(decision))
        print(*_flags(decision, source, measurement), sep="\n")
        print(f"results: {folder}")
    note(*remarks(decision, source.priced))
    if options.costs and len(costs.rounds) == 1:
        note("the costs were measured once: neither the intervals nor this cover their noise")


def _of_texts(
    options: DecideOptions, drafters: list[DrafterKind], measurement: Measurement, run: Path | None
) -> Basis:
    """Price drafters by texts of the target: of a run, or new ones."""
    from specbench.pricing.source import require_prompts

    if run is None:
        plan = plan_of_target(measurement)
        require_prompts((part.task.name, e.id) for part in plan.tasks for e in part.examples)
        if not Path(plan.pair.target).exists():
            note(
                f"{' and '.join(plan.pair.models.values())} are loaded, from the hub if they are "
                "not here, and the target writes a text for each prompt: --acceptance needs neither"
            )

    from specbench.experiment.loader import Loader
    from specbench.pricing.passes import texts_of
    from specbench.pricing.scores import name_of, target_texts
    from specbench.pricing.source import source_of_texts
    from specbench.runs.frames import CELL

    loader = Loader()
    read = run_of_target(run or plan, measurement, loader, "decide")
    chosen = measurement.task or (), measurement.limit
    records = target_texts(read.records(TRACED.union(CELL)), *chosen)
    require_prompts((name.task, name.prompt) for name in map(name_of, records))
    of_run = partial(texts_of, read, records=records)
    scores = scored(read, of_run, drafters, measurement, loader)
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
        "drafter" not in options.model_fields_set or len(drafters) == 1,
        "--acceptance has the rates of one drafter: name it alone with --drafter",
    )
    rates, drafter = options.rates(), drafters[0]
    if pair is not None:
        require_draft(pair.draft, [drafter])

    from specbench.pricing.formulas import Workload
    from specbench.pricing.rounds import rounds_of_rates
    from specbench.pricing.source import ANSWER, Basis

    rate = options.acceptance or f"{rates[0]:.2f} by {options.accepted_length:g} tokens per round"
    return Basis(
        priced=[rounds_of_rates(rates, drafter)],
        title=f"acceptance {rate}" + (f" on {pair.name}" if pair else ""),
        pair=pair,
        workload=Workload(options.context_length, measurement.max_new_tokens or ANSWER),
        settings=measurement.part(Settings),
        folder=measurement.output or new_folder(f"decide-{pair.name if pair else 'rates'}"),
        loading=measurement.loading(),
    )


def _costs(options: DecideOptions, measurement: Measurement) -> Callable[[Basis], Costs]:
    """Return what gives the costs for a source: a file, a machine, or times taken here.

    Raises:
        UsageError: The file or the machine is faulty, or the file lacks what is asked.
    """
    from specbench.pricing.machines import find_machine
    from specbench.pricing.reports import costs_in
    from specbench.pricing.source import Place, costs_of_machine, timed_costs

    batches, lengths, engine = sorted(options.batch_size), options.lengths, measurement.engine
    if options.costs:
        typed = options.batch_size if "batch_size" in options.model_fields_set else ()
        table = costs_in(options.costs, typed, None if engine == AUTO else engine)
        table.require_measured(options.batches(table), lengths)
        return lambda source: table
    if options.machine:
        find_machine(options.machine)
        forms = measurement.quantization, measurement.dtype
        place = Place(
            options.machine, options.gpus, options.serving, [*options.weights], options.cache, forms
        )
        return lambda source: costs_of_machine(place, source, batches, lengths)
    is_shown, temperature = not measurement.no_progress, measurement.temperature
    return lambda source: timed_costs(source, engine, batches, lengths, temperature, is_shown)


def _flags(decision: Decision, source: Basis, measurement: Measurement) -> Iterator[str]:
    """Yield the flags that carry out the decision, a block for each engine."""
    from specbench.pricing.decide import where_not_to_draft
    from specbench.pricing.flags import engine_flags

    best = decision.first_that_pays()
    if best is None:
        return
    yield from where_not_to_draft(decision, best.drafter)
    yield from engine_flags(best.drafter, decision.schedule(best.drafter), source.pair)
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
        *source.settings.updated(batch_size=best.batch).retyped(),
    ]
    yield f"measure it at batch {best.batch} with:"
    yield f"  {shlex.join(run)}"
