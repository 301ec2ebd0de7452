"""``specbench run``, and the sweeps and ``transfer``, which are runs of a grid of variants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from specbench.cli.generate import grouped
from specbench.cli.measure import measure
from specbench.cli.options import Measurement, Methods, SweptMethods
from specbench.cli.output import print_table
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
from specbench.methods.registry import PARAMETERS, get_method


@grouped
def run(what: Measurement, methods: Methods) -> None:
    """Measure methods on tasks: quality, acceptance and speed, interleaved in one run."""
    measure(what.plan(methods.variants(), methods.optional), "run", what)


class Sweep(Options):
    """What a sweep goes through."""

    parameter: str = option(..., "What to sweep.", choices=NUMBERS, metavar="NAME")
    values: list[float] | None = option(
        None, "Its values.", metavar="V[,V...]", shown="some over its range"
    )
    weights: list[float] | None = option(
        None,
        "Also static at these weights: the front that `compare` holds methods against.",
        metavar="W[,W...]",
        shown="no front",
    )


@grouped
def sweep(asked: Sweep, what: Measurement, methods: SweptMethods) -> None:
    """Measure methods at each value of a parameter, with the methods to compare them with.

    Swept are those of the methods chosen that take the parameter, or else all that do.
    """
    names, given, parameter = methods.names, methods.given(), asked.parameter
    swept = swept_methods(names, parameter)
    if given[parameter] is not None:
        raise UsageError(f"--{parameter} is what the sweep goes through: give --values instead")
    given[parameter] = asked.values or usual_values(swept[0], parameter, given)
    if asked.weights and STATIC in swept:
        raise UsageError("--weights goes beside the sweep of another method: give --values instead")
    beside = [n for n in names if n not in swept and not (asked.weights and n == STATIC)]
    variants = method_variants([*beside, *swept], given)
    if asked.weights:
        variants += method_variants([STATIC], {"weight": asked.weights})
    measure(what.plan(variants, {*methods.optional, *(set(swept) - set(names))}), "sweep", what)


class Weights(Options):
    """What a sweep of weights goes through."""

    weights: list[float] = option(
        [*get_method(STATIC).parameters[0].grid],
        "Weights on the target, from 0 to 1.",
        metavar="W[,W...]",
    )


@grouped
def sweep_weights(
    asked: Weights,
    what: Measurement,
    methods: Annotated[SweptMethods, ["method", *(p for p in PARAMETERS if p != "weight")]],
) -> None:
    """Measure the static ensemble at each weight, with the methods to compare it with.

    All of them run interleaved, so that one run gives the front and the points above or below it.
    """
    # Static alone is swept: other methods that take a weight keep their own.
    names = [name for name in methods.names if name != STATIC]
    variants = method_variants(names, methods.given())
    variants += method_variants([STATIC], {"weight": asked.weights})
    measure(what.plan(variants, methods.optional), "sweep-weights", what)


class Heads(Options):
    """Which heads are compared."""

    head: Path | None = option(
        None,
        "Folder with a head folder per task, or bundled or results.",
        shown="the pair's heads: bundled, else trained here",
    )


@grouped
def transfer(asked: Heads, what: Measurement) -> None:
    """Measure every head on every task, with sd as the row without a head.

    The run's folder gets the matrix as transfer.csv, as transfer.md and as a figure.
    """
    if len(what.draft_length) > 1:
        raise UsageError("--draft-length takes one length here: a matrix is for one setting")
    found = find_heads(what.spec(), None if asked.head is None else str(asked.head))
    # Tasks and their heads in one order, so that a head's own task is on the diagonal.
    tasks = [task.name for task in what.tasks()]
    heads = {name: found[name] for name in tasks if name in found} | found
    named = [HeadFile(trained_on, known.path) for trained_on, known in heads.items()]
    plan = what.plan(method_variants(["sd", "diversed"], {"head": named}))
    # Every head serves every task, so it is enough to say once where each comes from.
    one = f"heads: {describe_heads(heads.items())}"
    plan = replace(plan, notes=(one, *(n for n in plan.notes if not n.startswith("heads: "))))
    measure(plan, "transfer", what, show=_show_matrix)


def _show_matrix(folder: Path) -> None:
    """Write the matrix beside the tables of a run, draw it and print it."""
    from specbench.analysis.run_tables import transfer_data, transfer_table
    from specbench.figures.heads import draw_transfer
    from specbench.figures.style import save
    from specbench.files import digits, write_atomically
    from specbench.results import Results
    from specbench.table import to_markdown

    results = Results([folder])
    matrix = transfer_data(results.summary)
    table = transfer_table(matrix)
    write_atomically(folder / "transfer.csv", matrix.to_csv(index=False, float_format=digits))
    write_atomically(folder / "transfer.md", to_markdown(table))
    save(draw_transfer(results), folder / "figures", "transfer")
    print_table(table)
