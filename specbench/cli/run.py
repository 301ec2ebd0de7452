"""``specbench run`` and ``sweep-weights``."""

from __future__ import annotations

from specbench.cli.generate import grouped
from specbench.cli.measure import measure
from specbench.cli.methods import Methods, MethodsBesideFront
from specbench.cli.options import Measurement
from specbench.cli.servers import Servers
from specbench.config import Options, option
from specbench.errors import UsageError
from specbench.experiment.variants import STATIC, method_variants
from specbench.methods.method import INSIDE


@grouped
def run(measurement: Measurement, methods: Methods, servers: Servers) -> None:
    """Measure methods, servers or both on tasks, interleaved: quality, acceptance and speed."""
    arms = servers.arms(measurement.names_models or methods.method is not None)
    if not arms:
        measure(measurement.plan(methods.variants(), methods.optional), "run", measurement)
        return
    if measurement.workers is not None:
        raise UsageError("--workers decode in other processes, and servers do not: omit it")
    variants = methods.variants() if methods.method else []
    plan = measurement.plan(variants, methods.optional, arms, servers.concurrency)
    measure(plan, "run", measurement, servers.client)


class Weights(Options):
    """The weights of ``sweep-weights``."""

    weights: list[float] = option(
        [step / 10 for step in range(11)],
        "Weights on the target, from 0 to 1.",
        metavar="W[,W...]",
    )


@grouped
def sweep_weights(
    grid: Weights,
    measurement: Measurement,
    methods: MethodsBesideFront,
) -> None:
    """Measure the static ensemble at each weight, together with baseline methods.

    All of them are interleaved in one run, which yields the static front and the other methods'
    points.
    """
    # Only static is swept; other methods with a weight keep their own values.
    names = [name for name in methods.names if name != STATIC]
    variants = method_variants(names, methods.given(), front=True)
    # The front is confined to the same marks as the other methods.
    variants += method_variants([STATIC], {"weight": grid.weights, INSIDE: methods.inside})
    measure(measurement.plan(variants, methods.optional), "sweep-weights", measurement)
