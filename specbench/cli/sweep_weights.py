"""``specbench sweep-weights``: the static ensemble over a grid of weights, and its anchors."""

from __future__ import annotations

from specbench.cli import options as o
from specbench.cli.choices import choose_methods, parse_numbers
from specbench.cli.groups import Models, Prompts, Rules, Sampling, grouped
from specbench.cli.measure import measure
from specbench.experiment.plan import build_plan
from specbench.experiment.variants import ANCHORS, weight_variants


@grouped
def sweep_weights(
    data: Prompts,
    models: Models,
    sampling: Sampling,
    rules: Rules,
    weights: o.Weights = o.DEFAULT_WEIGHTS,
    method: o.Anchors = None,
    limit: o.Limit = None,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Measure the static ensemble at each weight, with the methods to compare it with.

    All of them run interleaved, so that one run gives the front and the points above or below it.
    """
    methods, dispensable = choose_methods(method, default=ANCHORS)
    plan = build_plan(
        models.spec(),
        data.tasks(),
        weight_variants(methods, rules.given(), parse_numbers("--weights", weights, float)),
        sampling.draft_lengths(),
        sampling.settings(models),
        limit=limit,
        max_new_tokens=sampling.max_new_tokens,
        dispensable=dispensable,
    )
    measure(plan, "sweep-weights", limit=limit, output=output, progress=not no_progress)
