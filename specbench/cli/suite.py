"""``specbench suite``: execute the runs of a suite file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, say, start_workers
from specbench.cli.options import CodeExecution, Progress, RunFolder, Workers, output_option
from specbench.cli.output import Interrupted, note, print_table
from specbench.config import DataOptions, option
from specbench.errors import RunError, SpecbenchError
from specbench.experiment.forecast import Cost, measured_paces
from specbench.experiment.suites.suite import (
    Job,
    Suite,
    Unit,
    find_suite,
    is_done,
    read_suite,
    shard,
)
from specbench.experiment.suites.training import is_trained, train_all, training_command
from specbench.runs.run import read_run
from specbench.runs.table import Field, Table, number
from specbench.tasks.dataset import go_offline


class SuiteOptions(Workers, CodeExecution, Progress):
    """Where a suite goes, and how much of it to execute."""

    panel = "Options"

    output: Path | None = output_option(
        "Folder for all runs, heads and drafts; the same command resumes there.",
        "results/<name of the suite>",
    )
    shard: str | None = option(
        None,
        "Execute only every N-th run, starting with the I-th; N such commands execute all.",
        metavar="I/N",
        shown="all runs",
    )
    dry_run: bool = option(False, "Print the runs with cells, samples and estimated hours.")


@grouped
def suite(
    asked: SuiteOptions,
    data: Annotated[DataOptions, ("folder", "offline")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A TOML file, or a bundled suite: paper, mini.")
    ],
) -> None:
    """Execute all runs of a suite file: train the heads, then measure, one folder per run.

    Every run is an ordinary one, so `summary`, `table` and `plot` accept the suite's folder, or the
    folders of several shards.
    """
    suite = read_suite(find_suite(file))
    output = asked.output or Path("results") / suite.name
    session = _Session(suite, shard(suite.units(), asked.shard), output, data, asked)
    if asked.dry_run:
        session.show()
        return
    if data.offline:
        go_offline()
    session.train()
    failed = session.measure()
    print(f"results: {output}")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(session.units)} runs are incomplete, the first {failed[0]}: "
            "run the same command to retry them"
        )


@dataclass(frozen=True)
class _Session:
    """The runs of a suite to execute, and the options."""

    suite: Suite
    units: Sequence[Unit]
    output: Path
    data: DataOptions
    asked: SuiteOptions

    def untrained(self) -> list[Job]:
        """Return the heads and drafts to train before these runs."""
        needed = dict.fromkeys(job for unit in self.units for job in unit.jobs)
        return [job for job in needed if not is_trained(job, self.output)]

    def train(self) -> None:
        """Train the heads and drafts that these runs need, before any run loads a pair."""

        def command(job: Job) -> list[str]:
            loading = self.suite.loading
            return training_command(
                job, self.output, loading, self.data, self.asked.allow_code_execution
            )

        if not (jobs := self.untrained()):
            return
        try:
            with start_workers(self.asked, self.suite.loading, self.asked) as pool:
                for job in train_all(jobs, self.output, command, pool.run):
                    note(f"trained {job}: {job.folder(self.output)}")
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: run the same command to resume training") from error

    def measure(self) -> list[str]:
        """Execute the runs; return one message per failed run, and continue after failures."""
        failed = []
        with start_workers(self.asked, self.suite.loading, self.asked) as pool:
            for index, unit in enumerate(self.units, start=1):
                folder = self.output / unit.name
                title = f"{index} of {len(self.units)}, {unit.name}"
                try:
                    plan = unit.plan(
                        self.suite, self.output, self.data, self.asked.allow_code_execution
                    )
                    plan = plan.added_to(read_run(folder, required=False).tasks)
                    if is_done(folder, plan):
                        print(f"{title}: already done")
                        continue
                    say(plan)
                    to = RunFolder(output=folder, no_progress=self.asked.no_progress)
                    store = carry_out(plan, "suite", to, nullcontext(pool))
                except Interrupted:
                    raise
                except SpecbenchError as error:
                    failed.append(f"{unit.name}: {error}")
                    note(failed[-1])
                    continue
                if store.failed:
                    failed.append(f"{unit.name}: {store.failed} of {store.done} samples")
                print(f"{title}: {store.done} samples, {store.failed} failed")
        return failed

    def show(self) -> None:
        """Print the runs with their estimated cost."""
        suite, workers = self.suite, self.asked.workers or 1
        measured = measured_paces(self.output)
        paces = {**suite.assumed_tokens_per_second, **measured}
        costs = [unit.cost(paces.get(unit.pair)) for unit in self.units]
        fields: list[Field[tuple[Unit, Cost]]] = [
            ("run", lambda row: row[0].name),
            ("cells", lambda row: str(row[0].cells)),
            ("samples", lambda row: str(row[1].samples)),
            ("hours at most", lambda row: number(_hours(row[1]), "3s")),
        ]
        rows = zip(self.units, costs, strict=True)
        print_table(Table.of(rows, fields, f"suite {suite.name}: {suite.about}"))
        samples = sum(cost.samples for cost in costs)
        print(f"{len(self.units)} runs, {samples} samples, {_total(map(_hours, costs), workers)}")
        for pair in dict.fromkeys(unit.pair for unit in self.units):
            source = "measured in this folder" if pair in measured else "assumed in the file"
            print(
                f"{pair}: {paces[pair]:.3g} tokens/s per worker, {source}"
                if pair in paces
                else f"{pair}: speed and hours are unknown until its first run in this folder; or "
                "set assumed_tokens_per_second in the file"
            )
        if jobs := self.untrained():
            assumed = _total([job.table.hours for job in jobs], workers)
            print(f"to train first: {len(jobs)} heads and drafts, {assumed}, assumed in the file")


def _hours(cost: Cost) -> float | None:
    return None if cost.most_seconds is None else cost.most_seconds / 3600


def _total(hours: Iterable[float | None], workers: int) -> str:
    """Describe the total hours for one worker, and for several if all are always busy."""
    all_hours = list(hours)
    known_hours = [value for value in all_hours if value is not None]
    if not known_hours:
        return "hours unknown"
    total = sum(known_hours)
    text = f"at most {number(total, '3s')} worker hours"
    if workers > 1:
        text += f", {number(total / workers, '3s')} hours with {workers} workers"
    if missing := len(all_hours) - len(known_hours):
        text += f", excluding {missing} with unknown hours"
    return text
