"""``specbench price``: tokens per round of any drafter and policy, without decoding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, say, start_workers
from specbench.cli.measurement import Measurement
from specbench.cli.options import TableFormat
from specbench.cli.output import note_loading, print_as
from specbench.config import Count, option
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.policies import get_policy, require_predictable
from specbench.decoding.drafters.registry import DRAFTERS, names_drafter, parse_kind, require_draft
from specbench.errors import RunError, require
from specbench.experiment.cells import method_variants
from specbench.experiment.plan import Plan
from specbench.experiment.progress import step_status
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.records import TRACED
from specbench.runs.run import Trust, read_run

if TYPE_CHECKING:
    from specbench.analysis.tables.table import Table
    from specbench.engine.pair import LoadedPair
    from specbench.experiment.loader import Loader
    from specbench.pricing.scores import ScoredText, Scores
    from specbench.runs.run import Run

RULES = ("sd", "match", "block")  # that accept drawn drafts differently
DEFAULT_DRAFTERS = ["model", "greedy", "prompt-lookup"]
LENGTHS = [1, 2, 3, 5, 8, 16]
HIDDEN = {
    *("draft_length", "drafter", "sampling", "shard", "workers", "ray_address"),
    *("metric", "dry_run"),
}
MEASURED = [name for name in Measurement.ordered_fields() if name not in HIDDEN]

TextsRun = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="Run with texts of the target.", show_default="new texts"),
]


class PriceOptions(TableFormat):
    """What to price."""

    drafter: list[str] | None = option(
        None,
        f"What proposes drafts: {', '.join(DRAFTERS)}, or a module by its name or folder; "
        "the rule after a slash, sd, match or block, judges drawn drafts.",
        metavar="NAME[,NAME...]",
        shown=",".join(DEFAULT_DRAFTERS),
        complete=lambda: DRAFTERS,
    )
    draft_length: list[Count] = option(LENGTHS, "Most drafts of a round, N.", metavar="N[,N...]")
    by: str | None = option(None, "Split the texts.", choices=("category",))

    def drafters(self, modules: Collection[str]) -> list[tuple[DrafterKind, str]]:
        """Return the drafters, also by the names of a pair's modules, with the rules that judge."""
        chosen = []
        for text in self.drafter or DEFAULT_DRAFTERS:
            name, slash, rule = text.rpartition("/")
            if not slash or not (rule in RULES or name in modules or names_drafter(name)):
                name, rule = text, "sd"  # it may be a path
            require(rule in RULES, f"--drafter {text}: drafts are judged by sd, match or block")
            chosen.append((parse_kind(name, modules), rule))
        return chosen


@grouped
def price(
    options: PriceOptions, measurement: Annotated[Measurement, MEASURED], run: TextsRun = None
) -> None:
    """Price drafting without decoding: tokens per round for every N, drafter and policy.

    Both models read the target's texts once. Texts are those of all lossless cells of RUN, or the
    target writes new ones for --task or --prompts. Scores stay in the run's folder, or in --output.
    Where RUN has recorded rounds of a lossless rule, they are compared with the price by the other
    texts of their prompts; the exit code is 1 if the texts or the rounds contradict it.
    """
    from specbench.pricing.passes import texts_of
    from specbench.pricing.scores import recorded_rounds, target_texts
    from specbench.runs.frames import CELL

    policies = [get_policy(name) for name in measurement.drafting or ["fixed"]]
    for policy in policies:
        require_predictable(policy)
    recorded_run = None if run is None else run_of_target(run, measurement)
    spec = recorded_run.pair if recorded_run else measurement.spec(alone=True)
    drafters = options.drafters(spec.drafters)
    kinds, depths = list(dict.fromkeys(kind for kind, _ in drafters)), max(options.draft_length)
    from specbench.experiment.loader import Loader

    loader = Loader()
    read = recorded_run or run_of_target(plan_of_target(measurement), measurement, loader)
    records = read.records(TRACED.union(CELL))
    of_target = target_texts(records, measurement.task or (), measurement.limit)
    recorded = recorded_rounds(records, {record.task for record in of_target}, kinds)
    depths = max([depths, *(cell[0].draft_length for cell in recorded)])
    texts = partial(texts_of, read, records=of_target)
    by_task = scored(read, texts, kinds, measurement, loader, depths)

    import pandas as pd

    from specbench.pricing.checks import compare, comparison_table, deviation_table, deviations
    from specbench.pricing.rounds import price_table, priced_rows

    by, doubts = options.by or "", list[str]()
    rows: list[pd.DataFrame] = []
    tables: list[Table] = []
    for task, scores in by_task.items():
        setting = f"{task} on {read.pair.name}, T = {scores.temperature:g}"
        priced = priced_rows(scores, drafters, policies, options.draft_length, by)
        rows.append(priced.assign(task=task))
        tables.append(price_table(priced, setting, by))
        compared = [compare(scores, cell) for cell in recorded if cell[0].task == task]
        if compared:
            tables.append(comparison_table(compared, f"Recorded rounds: {setting}"))
        if off := [deviation for deviation in deviations(scores) if deviation.is_sure]:
            tables.append(deviation_table(off, f"Zero for the target, but not here: {setting}"))
            doubts.append(f"the texts of {task} are not drawn from the target at these settings")
        doubts += [
            f"{comparison.label} on {task} has other rounds than its price, so its drafts depend "
            "on more than the text before, or its rule is not lossless"
            for comparison in compared
            if comparison.is_sure
        ]
    print_as(options.form, pd.concat(rows, ignore_index=True), lambda: tables)
    if doubts:
        raise RunError(f"{'; '.join(doubts)}: see the page price")


def plan_of_target(measurement: Measurement) -> Plan:
    """Return the plan by which the target writes texts alone."""
    return measurement.plan(method_variants([AUTOREGRESSIVE], {}))


def run_of_target(
    texts: Path | Plan,
    measurement: Measurement,
    loader: Loader | None = None,
    command: str = "price",
) -> Run:
    """Return a run with the target's texts, or let the target write those of a plan."""
    if isinstance(texts, Plan):
        say(texts, measurement.limit)
        workers = start_workers(measurement, texts.loading, measurement, loader=loader)
        texts = carry_out(texts, command, measurement, workers).folder
    pair = measurement.spec(alone=True) if measurement.names_models else None
    return read_run(texts, Trust(pair, measurement.loading()))


def scored(
    run: Run,
    texts: Callable[[LoadedPair], Iterator[ScoredText]],
    drafters: list[DrafterKind],
    measurement: Measurement,
    loader: Loader,
    depths: int = 1,
) -> dict[str, Scores]:
    """Return the scores of a run's texts by task; those in its folder are not computed again.

    ``texts`` encodes them, given the pair. ``depths`` are the most drafts of a round, for modules
    that draft.
    """
    note_loading(run.pair.models)

    from specbench.decoding.sampling import Sampling
    from specbench.engine.hub import quiet_libraries
    from specbench.pricing.passes import PairScores, score_by_task

    spec, sampling = run.pair, run.settings.part(Sampling)
    require_draft(spec.draft, drafters)
    quiet_libraries(downloads=not measurement.no_progress)
    with step_status(not measurement.no_progress) as show:
        show("loading the models")
        scores = PairScores(loader.pair(spec, run.loading), sampling)
        return score_by_task(
            scores, texts, drafters, depths, measurement.output or run.folder, show
        )
