"""``specbench sweep-weights``: the static ensemble over a grid of weights, and its anchors."""

from __future__ import annotations

from specbench.cli.choices import choose_methods, parse_numbers
from specbench.cli.options import common as o
from specbench.cli.options.cluster import Cluster
from specbench.cli.options.data import AllowCodeExecution, Prompts
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.results import Results
from specbench.cli.options.rules import Rules
from specbench.cli.options.sampling import Sampling
from specbench.cli.sweep import sweep_through
from specbench.experiment.variants import ANCHORS, STATIC, sweep_variants


@grouped
def sweep_weights(
    data: Prompts,
    models: Models,
    sampling: Sampling,
    results: Results,
    cluster: Cluster,
    rules: Rules,
    weights: o.Weights = o.DEFAULT_WEIGHTS,
    method: o.Anchors = None,
    allow_code_execution: AllowCodeExecution = False,
) -> None:
    """Measure the static ensemble at each weight, with the methods to compare it with.

    All of them run interleaved, so that one run gives the front and the points above or below it.
    """
    methods, dispensable = choose_methods(method, default=ANCHORS)
    steps = parse_numbers("--weights", weights, float)
    sweep_through(
        "sweep-weights",
        sweep_variants(methods, rules.given(), "weight", steps, [STATIC]),
        dispensable,
        data=data,
        models=models,
        sampling=sampling,
        results=results,
        cluster=cluster,
        allow_code_execution=allow_code_execution,
    )
