"""``specbench run``, ``sweep-weights`` and ``bench``."""

from __future__ import annotations

from typing import Annotated

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, measure, start_workers
from specbench.cli.measurement import Measurement, PairsMeasurement, RunFolder
from specbench.cli.methods import Methods, MethodsBesideFront
from specbench.cli.options import Models, Workers
from specbench.cli.output import note
from specbench.cli.servers import Servers
from specbench.cli.tables import print_benchmark
from specbench.config import Options, option
from specbench.errors import UsageError, require
from specbench.experiment.benchmark import BenchSettings, bench_cells, bench_plan
from specbench.experiment.cells import STATIC, method_variants
from specbench.experiment.folders import run_in
from specbench.runs.configuration import Settings


class Margin(Options):
    """Which loss of quality the run is to exclude."""

    panel = "Results"

    margin: float | None = option(
        None,
        "Loss of quality that is acceptable, in points: says before the run how many prompts show "
        "it, and after the run which command judges it.",
        metavar="POINTS",
        gt=0,
        lt=100,
    )


@grouped
def run(measurement: PairsMeasurement, methods: Methods, servers: Servers, loss: Margin) -> None:
    """Measure methods, servers or both on tasks, interleaved: quality, acceptance and speed."""

    def measure_pair(options: Measurement) -> None:
        has_pair = options.names_models or methods.method is not None
        arms = servers.arms(has_pair, options.part(Settings))
        if arms and options.workers is not None:
            raise UsageError("--workers decode in other processes, and servers do not: omit it")
        variants = methods.variants() if methods.method or not arms else []
        plan = options.plan(variants, methods.optional, arms, servers.concurrency, methods.a_a)
        measure(plan, "run", options, servers.client if arms else None, loss.margin)

    measurement.measure_each(measure_pair)


class Weights(Options):
    """The weights of ``sweep-weights``."""

    weights: list[float] = option(
        [step / 10 for step in range(11)], "Weights on the target, from 0 to 1.", metavar="W[,W...]"
    )


@grouped
def sweep_weights(
    grid: Weights, measurement: PairsMeasurement, methods: MethodsBesideFront
) -> None:
    """Measure the static ensemble at each weight, together with baseline methods.

    All of them are interleaved in one run, which yields the static front and the other methods'
    points.
    """
    valued = any(text.startswith(f"{STATIC}:") for text in methods.method or ())
    require(not valued, f"{STATIC} is measured at --weights: leave out the values behind its name")
    # Only static is swept; other methods with a weight keep their own values.
    method_variants([n for n in methods.names if n != STATIC], methods.parameters())  # refuses w
    variants = [variant for variant in methods.variants() if variant[0] != STATIC]
    variants += method_variants([STATIC], {"weight": grid.weights})

    def measure_pair(options: Measurement) -> None:
        plan = options.plan(variants, methods.optional, a_a=methods.a_a)
        measure(plan, "sweep-weights", options)

    measurement.measure_each(measure_pair)


Folder = Annotated[RunFolder, ("output", "fresh", "no_progress")]


@grouped
def bench(models: Models, methods: Methods, settings: BenchSettings, to: Folder) -> None:
    """Time methods on engines: time per round by part, tokens/s, share of the bandwidth limit.

    The benchmark uses random prompts and answers of fixed length, and no task or metric. It
    interleaves all systems, and writes a run with each text as it is measured; the same command
    resumes it, and `specbench table` shows it again.
    """
    if to.output is not None and to.output.is_dir():
        run_in(to.output)  # before anything is loaded
    spec = models.spec()
    models.require_here(spec, *settings.engine)
    cells, notes = bench_cells(spec, methods.variants(), models.loading(), settings)
    note(*notes)
    plan = bench_plan(spec, models.loading(), settings, cells, notes)
    store = carry_out(plan, "bench", to, start_workers(Workers(), plan.loading, to))
    print_benchmark(store.folder)
    print(f"results: {store.folder}")
