"""``specbench sweep-weights``: the static ensemble over a grid of weights, and its anchors."""

from __future__ import annotations

from specbench.cli.choices import choose_methods, parse_numbers
from specbench.cli.measure import measure
from specbench.cli.options import common as o
from specbench.cli.options.data import AllowCodeExecution, Prompts
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.results import Results
from specbench.cli.options.rules import Rules
from specbench.cli.options.sampling import Sampling
from specbench.experiment.plan import build_plan
from specbench.experiment.variants import ANCHORS, weight_variants


@grouped
def sweep_weights(
    data: Prompts,
    models: Models,
    sampling: Sampling,
    results: Results,
    rules: Rules,
    weights: o.Weights = o.DEFAULT_WEIGHTS,
    method: o.Anchors = None,
    allow_code_execution: AllowCodeExecution = False,
) -> None:
    """Measure the static ensemble at each weight, with the methods to compare it with.

    All of them run interleaved, so that one run gives the front and the points above or below it.
    """
    methods, dispensable = choose_methods(method, default=ANCHORS)
    spec = models.spec()
    plan = build_plan(
        spec,
        data.tasks(),
        weight_variants(methods, rules.given(), parse_numbers("--weights", weights, float)),
        sampling.draft_lengths(),
        sampling.settings(),
        loading=models.loading(),
        limit=sampling.chosen().limit,
        may_execute=allow_code_execution or spec.bundled,
        dispensable=dispensable,
    )
    measure(plan, "sweep-weights", results, limit=sampling.chosen().limit)
