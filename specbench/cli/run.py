"""``specbench run``: measure methods on tasks."""

from __future__ import annotations

from specbench.cli.choices import choose_methods
from specbench.cli.measure import measure
from specbench.cli.options import common as o
from specbench.cli.options.cluster import Cluster
from specbench.cli.options.data import AllowCodeExecution, Prompts
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.results import Results
from specbench.cli.options.rules import Rules, Weight
from specbench.cli.options.sampling import Sampling
from specbench.experiment.plan import build_plan
from specbench.experiment.variants import method_variants


@grouped
def run(
    data: Prompts,
    models: Models,
    sampling: Sampling,
    results: Results,
    cluster: Cluster,
    rules: Rules,
    method: o.Methods = None,
    weight: Weight = None,
    allow_code_execution: AllowCodeExecution = False,
) -> None:
    """Measure methods on tasks: quality, acceptance and speed, interleaved in one run."""
    methods, dispensable = choose_methods(method)
    spec = models.spec()
    plan = build_plan(
        spec,
        data.tasks(),
        method_variants(methods, {"weight": weight, **rules.given()}),
        sampling.draft_lengths(),
        sampling.settings(),
        loading=models.loading(),
        limit=sampling.chosen().limit,
        may_execute=allow_code_execution or spec.bundled,
        dispensable=dispensable,
    )
    measure(plan, "run", results, limit=sampling.chosen().limit, cluster=cluster)
