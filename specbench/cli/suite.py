"""``specbench suite``: many runs that are written down in one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from specbench.cli.measure import carry_out, pool, say
from specbench.cli.options import common as o
from specbench.cli.options.cluster import Cluster
from specbench.cli.options.data import AllowCodeExecution, Data, Offline
from specbench.cli.options.groups import grouped
from specbench.cli.options.results import Results
from specbench.cli.output import Interrupted, console, note
from specbench.errors import RunError, SpecbenchError
from specbench.suites.file import find_suite, read_suite
from specbench.suites.suite import Job, Suite, Unit, shard
from specbench.tasks.dataset import Sourcing
from specbench.tasks.hub import go_offline


class _Where(NamedTuple):
    """What of the command line every run of a suite needs."""

    output: Path
    sourcing: Sourcing
    may_execute: bool
    shown: bool


@grouped
def suite(
    cluster: Cluster,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A TOML file, or one of specbench's: paper, mini.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Gets a folder per run, and what is trained; the same command goes on there.",
            show_default="results/<name of the suite>",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Only the I-th of its runs and then every N-th; N such commands do them all.",
            show_default="all runs",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the runs: cells, samples and hours, by arithmetic."),
    ] = False,
    data: Data = None,
    offline: Offline = False,
    allow_code_execution: AllowCodeExecution = False,
    no_progress: o.NoProgress = False,
) -> None:
    """Carry out a file of runs: train the heads, then measure, each run in a folder of its own.

    Each is an ordinary run, so `summary`, `table` and `plot` take the folder of the suite, and
    those of several shards together.
    """
    known = read_suite(find_suite(file))
    where = _Where(
        output or Path("results") / known.name,
        Sourcing(data, offline),
        allow_code_execution,
        not no_progress,
    )
    units = shard(known.units(), part)
    if dry_run:
        _print(known, units, where.output, cluster.workers or 1)
        return
    if offline:
        go_offline()
    _train(known, units, where, cluster)
    _measure(known, units, where, cluster)


def _train(known: Suite, units: Iterable[Unit], where: _Where, cluster: Cluster) -> None:
    """Train what these runs need, before any of them loads a pair."""
    from specbench.cluster.commands import run_here
    from specbench.suites.training import is_trained, train_all, training_command

    needed = dict.fromkeys(job for unit in units for job in known.needs(unit))
    jobs = [job for job in needed if not is_trained(job, where.output)]
    if not jobs:
        return
    further = ["--data", str(where.sourcing.folder)] if where.sourcing.folder else []
    further += ["--offline"] * where.sourcing.offline
    further += ["--allow-code-execution"] * where.may_execute

    def command(job: Job) -> list[str]:
        return training_command(job, where.output, known.loading, further)

    try:
        with pool(cluster, known.loading) as workers:
            run = run_here if workers is None else workers.run
            train_all(jobs, where.output, command, run, note)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: the same command goes on with the training") from error


def _measure(known: Suite, units: Sequence[Unit], where: _Where, cluster: Cluster) -> None:
    """Carry out the runs; one that fails does not keep the others from theirs.

    Raises:
        RunError: Some failed.
    """
    from specbench.experiment.execute import Loader
    from specbench.suites.plans import is_done, plan_of

    failed, loader = [], Loader()
    with pool(cluster, known.loading) as workers:
        for number, unit in enumerate(units, start=1):
            folder = where.output / unit.name
            title = f"{number} of {len(units)}, {unit.name}"
            try:
                plan = plan_of(known, unit, where.output, where.sourcing, where.may_execute)
                if is_done(folder, plan):
                    print(f"{title}: done before")
                    continue
                say(plan)
                results = Results(folder, no_progress=not where.shown)
                store = carry_out(plan, "suite", results, workers, loader)
            except Interrupted:
                raise
            except SpecbenchError as error:
                failed.append(f"{unit.name}: {error}")
                note(failed[-1])
                continue
            if store.failed:
                failed.append(f"{unit.name}: {store.failed} of {store.done} samples")
            print(f"{title}: {store.done} samples, {store.failed} failed")
    print(f"results: {where.output}")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(units)} runs are not whole, the first {failed[0]}; the same "
            "command tries them again"
        )


def _print(known: Suite, units: Sequence[Unit], output: Path, workers: int) -> None:
    """Print the runs with what they may take."""
    from rich.table import Table

    from specbench.suites.plans import heads_of, measured_paces, most_hours
    from specbench.suites.training import is_trained

    measured = measured_paces(output)
    paces = {**known.assumed_tokens_per_second, **measured}
    table = Table(title=f"suite {known.name}: {known.about}", title_justify="left")
    table.add_column("run", no_wrap=True)
    for header in ("cells", "samples", "hours at most"):
        table.add_column(header, justify="right")
    hours = [most_hours(known, unit, paces) for unit in units]
    for unit, most in zip(units, hours, strict=True):
        heads = heads_of(known, unit)
        shown = "" if most is None else f"{most:.2g}"
        table.add_row(unit.name, str(unit.cells(heads)), str(unit.samples(heads)), shown)
    console().print(table)
    samples = sum(unit.samples(heads_of(known, unit)) for unit in units)
    print(f"{len(units)} runs, {samples} samples, {_said(hours, workers)}")
    for pair in dict.fromkeys(unit.pair for unit in units):
        if pair in paces:
            how = "measured in this folder" if pair in measured else "assumed by the file"
            print(f"{pair}: {paces[pair]:.3g} tokens/s of one worker, {how}")
        else:
            print(
                f"{pair}: its speed is not known, so neither are its hours; the first run in this "
                "folder tells it, or assumed_tokens_per_second in the file"
            )
    needed = dict.fromkeys(job for unit in units for job in known.needs(unit))
    jobs = [job for job in needed if not is_trained(job, output)]
    if jobs:
        assumed = _said([job.training.hours for job in jobs], workers)
        print(f"to train first: {len(jobs)} heads and drafts, {assumed}, assumed by the file")


def _said(hours: Sequence[float | None], workers: int) -> str:
    """Hours of one worker, and of several that all have work all the time."""
    known = [each for each in hours if each is not None]
    if not known:
        return "hours not known"
    total, missing = sum(known), len(hours) - len(known)
    one = f"{total:.1f} hours of a worker at most"
    several = "" if workers == 1 else f", {total / workers:.1f} with {workers}"
    return one + several + f", without {missing} whose hours are not known" * bool(missing)
