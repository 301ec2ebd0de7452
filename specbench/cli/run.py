"""``specbench run``, ``sweep`` and ``sweep-weights``."""

from __future__ import annotations

from specbench.cli.generate import grouped
from specbench.cli.measure import measure
from specbench.cli.methods import Methods, SweptMethods
from specbench.cli.options import Measurement
from specbench.cli.servers import Servers
from specbench.config import Options, option
from specbench.errors import UsageError
from specbench.experiment.variants import (
    NUMBERS,
    STATIC,
    Variant,
    method_variants,
    swept_methods,
    usual_values,
)
from specbench.methods.method import INSIDE
from specbench.methods.registry import get_method


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


class Sweep(Options):
    """What a sweep varies."""

    parameter: str = option(
        ...,
        f"Parameter to sweep: {', '.join(NUMBERS)}, or a number of a rule of your own.",
        metavar="NAME",
        complete=lambda: NUMBERS,
    )
    values: list[float] | None = option(
        None, "Values of the parameter.", metavar="V[,V...]", shown="a grid over its range"
    )
    weights: list[float] | None = option(
        None,
        "Also measure static at these weights; `compare` uses them as the static front.",
        metavar="W[,W...]",
        shown="no front",
    )


@grouped
def sweep(grid: Sweep, measurement: Measurement, methods: SweptMethods) -> None:
    """Measure methods at each value of a parameter, together with baseline methods.

    The sweep covers the chosen methods that take the parameter, or all such methods if none does.
    """
    names, values, parameter = methods.names, methods.given(), grid.parameter
    swept = swept_methods(names, parameter)
    if values.get(parameter) is not None:
        raise UsageError(f"--set {parameter} gives the swept parameter: give --values instead")
    values[parameter] = grid.values or usual_values(swept[0], parameter, values)
    if grid.weights and STATIC in swept:
        raise UsageError("--weights needs a sweep of another method: give --values instead")
    baselines = [n for n in names if n not in swept and not (grid.weights and n == STATIC)]
    variants = method_variants([*baselines, *swept], values, front=bool(grid.weights))
    if grid.weights:
        variants += static_front(grid.weights, methods)
    measure(
        measurement.plan(variants, {*methods.optional, *(set(swept) - set(names))}),
        "sweep",
        measurement,
    )


class Weights(Options):
    """The weights of ``sweep-weights``."""

    weights: list[float] = option(
        [*get_method(STATIC).parameters[0].grid],
        "Weights on the target, from 0 to 1.",
        metavar="W[,W...]",
    )


@grouped
def sweep_weights(
    grid: Weights,
    measurement: Measurement,
    methods: SweptMethods,
) -> None:
    """Measure the static ensemble at each weight, together with baseline methods.

    All of them are interleaved in one run, which yields the static front and the other methods'
    points.
    """
    # Only static is swept; other methods with a weight keep their own values.
    names = [name for name in methods.names if name != STATIC]
    variants = method_variants(names, methods.given(), front=True)
    variants += static_front(grid.weights, methods)
    measure(measurement.plan(variants, methods.optional), "sweep-weights", measurement)


def static_front(weights: list[float], methods: Methods) -> list[Variant]:
    """Return static at the weights, confined to the same marks as the other methods."""
    return method_variants([STATIC], {"weight": weights, INSIDE: methods.inside})
