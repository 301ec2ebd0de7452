"""``specbench run``, ``sweep``, ``sweep-weights`` and ``transfer``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specbench.cli.generate import grouped
from specbench.cli.measure import measure
from specbench.cli.options import Measurement, Methods, SweptMethods
from specbench.config import Options, option
from specbench.errors import UsageError
from specbench.experiment.variants import (
    NUMBERS,
    STATIC,
    method_variants,
    swept_methods,
    usual_values,
)
from specbench.heads.registry import HeadFile, describe_heads, find_heads
from specbench.methods.registry import get_method
from specbench.table import Table, to_csv, to_markdown


@grouped
def run(what: Measurement, methods: Methods) -> None:
    """Measure methods on tasks: quality, acceptance and speed, interleaved in one run."""
    measure(what.plan(methods.variants(), methods.optional), "run", what)


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
def sweep(asked: Sweep, what: Measurement, methods: SweptMethods) -> None:
    """Measure methods at each value of a parameter, together with baseline methods.

    The sweep covers the chosen methods that take the parameter, or all such methods if none does.
    """
    names, values, parameter = methods.names, methods.given(), asked.parameter
    swept = swept_methods(names, parameter)
    if values.get(parameter) is not None:
        raise UsageError(f"--set {parameter} gives the swept parameter: give --values instead")
    values[parameter] = asked.values or usual_values(swept[0], parameter, values)
    if asked.weights and STATIC in swept:
        raise UsageError("--weights needs a sweep of another method: give --values instead")
    baselines = [n for n in names if n not in swept and not (asked.weights and n == STATIC)]
    variants = method_variants([*baselines, *swept], values)
    if asked.weights:
        variants += method_variants([STATIC], {"weight": asked.weights})
    measure(what.plan(variants, {*methods.optional, *(set(swept) - set(names))}), "sweep", what)


class Weights(Options):
    """The weights of ``sweep-weights``."""

    weights: list[float] = option(
        [*get_method(STATIC).parameters[0].grid],
        "Weights on the target, from 0 to 1.",
        metavar="W[,W...]",
    )


@grouped
def sweep_weights(
    asked: Weights,
    what: Measurement,
    methods: SweptMethods,
) -> None:
    """Measure the static ensemble at each weight, together with baseline methods.

    All of them are interleaved in one run, which yields the static front and the other methods'
    points.
    """
    # Only static is swept; other methods with a weight keep their own values.
    names = [name for name in methods.names if name != STATIC]
    variants = method_variants(names, methods.given())
    variants += method_variants([STATIC], {"weight": asked.weights})
    measure(what.plan(variants, methods.optional), "sweep-weights", what)


class Heads(Options):
    """Which heads to compare."""

    head: Path | None = option(
        None,
        "Folder with one head folder per task, or bundled, or results.",
        shown="the pair's bundled heads, else those under results/",
    )


@grouped
def transfer(asked: Heads, what: Measurement) -> None:
    """Measure every head on every task; sd is the baseline without a head.

    The matrix is written to the run's folder as transfer.csv, transfer.md and a figure.
    """
    if len(what.draft_length) > 1:
        raise UsageError("--draft-length takes only one length here: the matrix shows one setting")
    heads_by_task = find_heads(what.spec(), None if asked.head is None else str(asked.head))
    # Tasks and heads have the same order, so that matching ones are on the diagonal.
    tasks = [task.name for task in what.tasks()]
    heads = {name: heads_by_task[name] for name in tasks if name in heads_by_task} | heads_by_task
    head_files = [HeadFile(trained_on, head.path) for trained_on, head in heads.items()]
    plan = what.plan(method_variants(["sd", "diversed"], {"head": head_files}))
    # Every head is used on every task, so one note on their origin is enough.
    origin = f"heads: {describe_heads(heads.items())}"
    plan = replace(plan, notes=(origin, *(n for n in plan.notes if not n.startswith("heads: "))))
    measure(plan, "transfer", what, tables=_matrix)


def _matrix(folder: Path) -> list[Table]:
    """Write the matrix to the run's folder, draw it and return it as a table."""
    from specbench.analysis.run_tables import transfer_data, transfer_table
    from specbench.figures.heads import draw_transfer
    from specbench.figures.style import save
    from specbench.files import digits, write_atomically
    from specbench.results import Results

    results = Results([folder])
    matrix = transfer_data(results.summary)
    table = transfer_table(matrix)
    write_atomically(folder / "transfer.csv", to_csv(matrix, digits))
    write_atomically(folder / "transfer.md", to_markdown(table))
    save(draw_transfer(results), folder / "figures", "transfer")
    return [table]
