"""``specbench price``: tokens per round of any drafter and policy, without decoding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, say, start_workers
from specbench.cli.options import JsonOutput, Measurement
from specbench.cli.output import CSV, MARKDOWN, TEXT, print_as
from specbench.config import Count, option
from specbench.errors import RunError, UsageError
from specbench.experiment.variants import method_variants
from specbench.methods.drafters import GREEDY, LOOKUP, MODEL, checked, needs_model
from specbench.methods.registry import AUTOREGRESSIVE, METHODS
from specbench.runs.frames import CELL
from specbench.runs.records import TRACED
from specbench.runs.run import Trust, read_run

if TYPE_CHECKING:
    from specbench.price.policies import Policy
    from specbench.price.scores import Scores, TextName
    from specbench.runs.run import Run
    from specbench.table import Table

Record = dict[str, Any]

DRAFTERS = [MODEL, f"{MODEL}/match", f"{MODEL}/block", GREEDY, LOOKUP]
LENGTHS = [1, 2, 3, 5, 8, 16]
PRICED = ("sd", "match", "block", "sd-adaptive")  # rules whose rounds are compared with the price
HIDDEN = {"draft_length", "drafter", "a_a", "workers", "ray_address", "metric", "dry_run"}
MEASURED = [name for name in Measurement.ordered_fields() if name not in HIDDEN]


class PriceOptions(JsonOutput):
    """What to price."""

    drafter: list[str] | None = option(
        None,
        f"What proposes drafts: {', '.join(DRAFTERS)}; the rule after a slash judges drawn drafts, "
        "by default sd.",
        metavar="NAME[,NAME...]",
        shown=f"{MODEL},{GREEDY},{LOOKUP}",
        complete=lambda: DRAFTERS,
    )
    policy: list[str] | None = option(
        None,
        "How many tokens a round drafts, up to N: fixed, confidence, p-min, svip, adaedl, "
        "adaptive, moving-average, schedule, oracle, also as NAME:VALUE, or FILE.py:FUNCTION.",
        metavar="NAME[,NAME...]",
        shown="fixed",
    )
    draft_length: list[Count] = option(LENGTHS, "Most drafts of a round, N.", metavar="N[,N...]")
    cost: float = option(
        0.1, "Time of a draft step / time of a target pass, for the regret of policies.", ge=0
    )
    first_token: bool = option(
        False, "Count no round for the first token, as engines that draw it with the prompt."
    )
    by: str | None = option(
        None, "Split the texts.", choices=("category", "place"), metavar="category|place"
    )
    format: str = option(TEXT, "csv has one row per number.", choices=(TEXT, MARKDOWN, CSV))

    def drafters(self) -> list[tuple[str, str]]:
        """Return the drafters with the rules that judge them."""
        chosen = []
        for name in self.drafter or [MODEL, GREEDY, LOOKUP]:
            drafter, _, rule = name.partition("/")
            if rule not in ("", "sd", "match", "block"):
                raise UsageError(f"--drafter {name}: drafts are judged by sd, match or block")
            chosen.append((checked(drafter), rule or "sd"))
        return chosen


@grouped
def price(
    asked: PriceOptions,
    measurement: Annotated[Measurement, MEASURED],
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="Run with texts of the target.", show_default="new texts"
        ),
    ] = None,
) -> None:
    """Price drafting without decoding: tokens per round for every N, drafter and policy.

    Both models read the target's texts once. Texts are those of RUN, or the target writes new ones
    for --task or --prompts. Scores stay in the run's folder. Where RUN has recorded rounds of a
    lossless rule, they are compared with the price; the exit code is 1 if texts or rounds
    contradict it.
    """
    from specbench.price.policies import get_policy

    drafters, policies = asked.drafters(), [get_policy(name) for name in asked.policy or ["fixed"]]
    for policy in policies:
        if not policy.predictable and policy.name != "oracle":
            raise UsageError(
                f"{policy.name} looks at the tokens that it drops, so the texts are no longer the "
                "target's and have no price: measure it with `specbench run`"
            )
    _print_prices(asked, measurement, run_of_target(run, measurement), drafters, policies)


def run_of_target(folder: Path | None, measurement: Measurement) -> Run:
    """Return a run with the target's texts; without a folder the target writes them now."""
    if folder is None:
        plan = measurement.plan(method_variants([AUTOREGRESSIVE], {}))
        say(plan, measurement.limit)
        workers = start_workers(measurement, plan.loading, measurement)
        folder = carry_out(plan, "price", measurement, workers).folder
    pair = measurement.spec(alone=True) if measurement.names_models else None
    return read_run(folder, Trust(pair, measurement.loading()))


def _print_prices(
    asked: PriceOptions,
    measurement: Measurement,
    run: Run,
    drafters: list[tuple[str, str]],
    policies: list[Policy],
) -> None:
    """Score the texts of a run, and print what follows from them.

    Raises:
        RunError: The texts are not the target's, or recorded rounds contradict the price.
    """
    if run.pair.draft is None and any(needs_model(drafter) for drafter, _ in drafters):
        raise UsageError(f"{run.pair.name} has no draft model: give --drafter {LOOKUP}")
    records = [r for r in run.records(TRACED.union(CELL)) if r.get("token_ids") is not None]
    texts = records_of_target(records, measurement)
    by_task = scored(run, texts, measurement)

    import pandas as pd

    from specbench.price.checks import compare, deviations
    from specbench.price.tables import (
        comparison_table,
        deviation_table,
        price_table,
        priced_rows,
    )

    tables: list[Table] = []
    rows, doubts = [], list[str]()
    for task, scores in by_task.items():
        setting = f"{task} on {run.pair.name}, T = {scores.temperature:g}"
        priced = priced_rows(
            scores,
            drafters,
            policies,
            asked.draft_length,
            asked.by or "",
            int(asked.first_token),
            asked.cost,
        )
        rows.append(priced.assign(task=task))
        tables.append(price_table(priced, setting, asked.by or "", asked.cost))
        found = deviations(scores)
        compared = [compare(scores, cell) for cell in _recorded(records, task)]
        if compared:
            tables.append(comparison_table(compared, f"Recorded rounds: {setting}"))
        if bad := [deviation for deviation in found if deviation.is_sure]:
            tables.append(deviation_table(bad, f"Zero for texts of the target: {setting}"))
            doubts.append(f"the texts of {task} are not drawn from the target at these settings")
        doubts += [
            f"{comparison.label} on {task} has other rounds than its price, so its drafts depend "
            "on more than the text, or its rule is not lossless"
            for comparison in compared
            if comparison.is_sure
        ]
    print_as(asked.form, pd.concat(rows, ignore_index=True), lambda: tables)
    if doubts:
        raise RunError(f"{'; '.join(doubts)}: see the page price")


def records_of_target(records: list[Record], measurement: Measurement) -> list[Record]:
    """Return the records of the texts to price: of the target alone, or of one lossless cell.

    Raises:
        UsageError: There are none.
    """
    names = dict.fromkeys(record["method"] for record in records)
    lossless = [name for name in names if name not in METHODS or METHODS[name].exact]
    if not lossless:
        raise UsageError(
            f"the texts of {', '.join(names) or 'this run'} are not the target's, so they have no "
            "price: give a run with autoregressive or sd"
        )
    name = AUTOREGRESSIVE if AUTOREGRESSIVE in lossless else lossless[0]
    cells: dict[str, dict[tuple[Any, ...], list[Record]]] = {}
    for record in records:
        wanted = not measurement.task or record["task"] in measurement.task
        if record["method"] == name and wanted:
            cell = (record["draft_length"], record["drafter"])
            cells.setdefault(record["task"], {}).setdefault(cell, []).append(record)
    chosen = []
    for by_cell in cells.values():
        chosen += next(iter(by_cell.values()))[: measurement.limit]
    if not chosen:
        raise UsageError(f"this run has no texts of {', '.join(measurement.task or names)}")
    return chosen


def scored(run: Run, records: list[Record], measurement: Measurement) -> dict[str, Scores]:
    """Return the scores of texts by task; those in the run's folder are not computed again."""
    from specbench.decoding.sampling import Sampling
    from specbench.engine.loading import load_pair
    from specbench.experiment.progress import quiet_libraries, step_status
    from specbench.price.passes import conditions, name_of, score, texts_of
    from specbench.price.scores import StoredScores

    quiet_libraries(downloads=not measurement.no_progress)
    sampling = run.settings.part(Sampling)
    pair = load_pair(run.pair, run.loading)
    folder = measurement.output or run.folder
    stored = StoredScores(folder, conditions(pair, sampling))
    with step_status(not measurement.no_progress) as show:
        score(pair, texts_of(run, pair, records), sampling, stored, show)
    by_task: dict[str, list[TextName]] = {}
    for record in records:
        by_task.setdefault(record["task"], []).append(name_of(record))
    return {task: stored.scores(names, sampling.temperature) for task, names in by_task.items()}


def _recorded(records: list[Record], task: str) -> list[list[Record]]:
    """Return the cells of a task whose rounds can be compared with the price."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record["task"] == task and record["method"] in PRICED and record["draft_length"]:
            name = (record["method"], record["drafter"], record["draft_length"], record["cost"])
            cells.setdefault(name, []).append(record)
    return [*cells.values()]
