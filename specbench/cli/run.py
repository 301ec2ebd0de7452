"""``specbench run``, and the sweeps and ``transfer``, which are runs of a grid of variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.generate import grouped, numbers, one_of, parse_numbers
from specbench.cli.measure import measure
from specbench.cli.options import (
    Measurement,
    Methods,
    OtherMethods,
    Rules,
    SweptMethods,
    choose_methods,
)
from specbench.cli.output import print_table
from specbench.errors import UsageError
from specbench.experiment.variants import (
    ANCHORS,
    NUMBERS,
    STATIC,
    method_variants,
    swept_methods,
    usual_values,
)
from specbench.heads.registry import HeadFile, describe_heads, find_heads
from specbench.methods.registry import get_method

WEIGHTS = numbers(get_method(STATIC).parameters[0].grid)


def _weights(help: str, default: str | bool) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        "--weights", metavar="W[,W...]", help=help, show_default=default
    )
    return option


@grouped
def run(what: Measurement, rules: Rules, method: Methods = None) -> None:
    """Measure methods on tasks: quality, acceptance and speed, interleaved in one run."""
    methods, optional = choose_methods(method)
    measure(what.plan(method_variants(methods, rules.given()), optional), "run", what)


@grouped
def sweep(
    what: Measurement,
    rules: Rules,
    parameter: Annotated[
        str,
        one_of("--parameter", NUMBERS, "What to sweep.", metavar="NAME"),
    ],
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="V[,V...]",
            help="Its values.",
            show_default="some over its range",
        ),
    ] = None,
    method: SweptMethods = None,
    weights: Annotated[
        str | None,
        _weights(
            "Also static at these weights: the front that `compare` holds methods against.",
            "no front",
        ),
    ] = None,
) -> None:
    """Measure methods at each value of a parameter, with the methods to compare them with.

    Swept are those of the methods chosen that take the parameter, or else all that do.
    """
    methods, optional = choose_methods(method, default=ANCHORS)
    swept = swept_methods(methods, parameter)
    given = rules.given()
    _refuse(parameter, given, "--values")
    given[parameter] = (
        usual_values(swept[0], parameter, given)
        if values is None
        else parse_numbers("--values", values, float)
    )
    front = [] if weights is None else parse_numbers("--weights", weights, float)
    if front and STATIC in swept:
        raise UsageError("--weights goes beside the sweep of another method: give --values instead")
    beside = [name for name in methods if name not in swept and not (front and name == STATIC)]
    variants = method_variants([*beside, *swept], given)
    if front:
        variants += method_variants([STATIC], {"weight": front})
    measure(what.plan(variants, {*optional, *(set(swept) - set(methods))}), "sweep", what)


@grouped
def sweep_weights(
    what: Measurement,
    rules: Rules,
    weights: Annotated[str, _weights("Weights on the target, from 0 to 1.", True)] = WEIGHTS,
    method: OtherMethods = None,
) -> None:
    """Measure the static ensemble at each weight, with the methods to compare it with.

    All of them run interleaved, so that one run gives the front and the points above or below it.
    """
    methods, optional = choose_methods(method, default=ANCHORS)
    given = rules.given()
    _refuse("weight", given, "--weights")
    # Static alone is swept: other methods that take a weight keep their own.
    variants = method_variants([name for name in methods if name != STATIC], given)
    variants += method_variants([STATIC], {"weight": parse_numbers("--weights", weights, float)})
    measure(what.plan(variants, optional), "sweep-weights", what)


def _refuse(parameter: str, given: Mapping[str, Any], option: str) -> None:
    if given[parameter] is not None:
        raise UsageError(f"--{parameter} is what the sweep goes through: give {option} instead")


@grouped
def transfer(
    what: Measurement,
    head: Annotated[
        Path | None,
        typer.Option(
            "--head",
            help="Folder with a head folder per task, or bundled or results.",
            show_default="the pair's heads: bundled, else trained here",
        ),
    ] = None,
) -> None:
    """Measure every head on every task, with sd as the row without a head.

    The run's folder gets the matrix as transfer.csv, as transfer.md and as a figure.
    """
    if len(what.sampling.draft_length) > 1:
        raise UsageError("--draft-length takes one length here: a matrix is for one setting")
    found = find_heads(what.models.spec(), None if head is None else str(head))
    # Tasks and their heads in one order, so that a head's own task is on the diagonal.
    tasks = [task.name for task in what.data.tasks()]
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
