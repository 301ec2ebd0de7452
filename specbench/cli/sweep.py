"""``specbench sweep``: a method over a grid of one of its parameters, and its anchors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from specbench.cli.choices import choose_methods, parse_numbers
from specbench.cli.measure import measure
from specbench.cli.options import common as o
from specbench.cli.options.cluster import Cluster
from specbench.cli.options.common import completer
from specbench.cli.options.data import AllowCodeExecution, Prompts
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.results import Results
from specbench.cli.options.rules import Rules, Weight
from specbench.cli.options.sampling import Sampling
from specbench.errors import UsageError
from specbench.experiment.plan import build_plan
from specbench.experiment.variants import (
    ANCHORS,
    NUMBERS,
    STATIC,
    Variant,
    sweep_variants,
    swept_methods,
    usual_values,
)


@grouped
def sweep(
    data: Prompts,
    models: Models,
    sampling: Sampling,
    results: Results,
    cluster: Cluster,
    rules: Rules,
    parameter: Annotated[
        str,
        typer.Option(
            "--parameter",
            metavar="NAME",
            help=f"What to sweep: {', '.join(NUMBERS)}.",
            autocompletion=completer(lambda: NUMBERS),
        ),
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
    method: o.Swept = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="W[,W...]",
            help="Beside it, static at these weights: the front that `compare` holds methods "
            "against.",
            show_default="no front",
        ),
    ] = None,
    weight: Weight = None,
    allow_code_execution: AllowCodeExecution = False,
) -> None:
    """Measure methods at each value of a parameter, with the methods to compare them with.

    Swept are those of the methods chosen that take the parameter, or else all that do.
    """
    methods, dispensable = choose_methods(method, default=ANCHORS)
    swept = swept_methods(methods, parameter)
    given = {"weight": weight, **rules.given()}
    if given[parameter] is not None:
        raise UsageError(f"--{parameter} is what the sweep goes through: give --values instead")
    steps = (
        usual_values(swept[0], parameter, given)
        if values is None
        else parse_numbers("--values", values, float)
    )
    front = [] if weights is None else parse_numbers("--weights", weights, float)
    if front and STATIC in swept:
        raise UsageError("--weights goes beside the sweep of another method: give --values instead")
    beside = [name for name in methods if not (front and name == STATIC)]
    sweep_through(
        "sweep",
        [
            *sweep_variants(beside, given, parameter, steps, swept),
            *sweep_variants([], {}, "weight", front, [STATIC]),
        ],
        {*dispensable, *(name for name in swept if name not in methods)},
        data=data,
        models=models,
        sampling=sampling,
        results=results,
        cluster=cluster,
        allow_code_execution=allow_code_execution,
    )


def sweep_through(
    label: str,
    variants: Sequence[Variant],
    dispensable: Collection[str],
    *,
    data: Prompts,
    models: Models,
    sampling: Sampling,
    results: Results,
    cluster: Cluster,
    allow_code_execution: bool,
) -> None:
    """Measure the methods of a sweep, interleaved in one run.

    Args:
        label: The command, for the folder's name.
        variants: Methods with their parameters.
        dispensable: Methods left out on tasks for which the pair has no head.
        data: The tasks.
        models: The pair.
        sampling: How each example is decoded.
        results: Where the run goes.
        cluster: How many workers measure, and where.
        allow_code_execution: Run generated programs to score them.
    """
    spec = models.spec()
    plan = build_plan(
        spec,
        data.tasks(),
        variants,
        sampling.draft_lengths(),
        sampling.settings(),
        loading=models.loading(),
        limit=sampling.chosen().limit,
        may_execute=allow_code_execution or spec.bundled,
        dispensable=dispensable,
    )
    measure(plan, label, results, limit=sampling.chosen().limit, cluster=cluster)
