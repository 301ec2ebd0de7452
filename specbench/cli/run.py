"""``specbench run``: measure methods on tasks."""

from __future__ import annotations

from specbench.cli import options as o
from specbench.cli.choices import choose_methods
from specbench.cli.groups import Models, Prompts, Rules, Sampling, grouped
from specbench.cli.measure import measure
from specbench.experiment.plan import build_plan
from specbench.experiment.variants import method_variants


@grouped
def run(
    data: Prompts,
    models: Models,
    sampling: Sampling,
    rules: Rules,
    method: o.Methods = None,
    limit: o.Limit = None,
    weight: o.Weight = None,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Measure methods on tasks: quality, acceptance and speed, interleaved in one run."""
    methods, dispensable = choose_methods(method)
    plan = build_plan(
        models.spec(),
        data.tasks(),
        method_variants(methods, {"weight": weight, **rules.given()}),
        sampling.draft_lengths(),
        sampling.settings(models),
        limit=limit,
        max_new_tokens=sampling.max_new_tokens,
        dispensable=dispensable,
    )
    measure(plan, "run", limit=limit, output=output, progress=not no_progress)
