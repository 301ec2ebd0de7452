"""``specbench run``: measure methods on tasks."""

from __future__ import annotations

from specbench.cli import options as o
from specbench.cli.choices import (
    choose_heads,
    choose_methods,
    choose_pair,
    choose_tasks,
    parse_numbers,
)
from specbench.cli.measure import measure
from specbench.experiment.plan import Settings, build_plan
from specbench.experiment.variants import method_variants


def run(
    method: o.Methods = None,
    task: o.Tasks = None,
    prompts: o.Prompts = None,
    metric: o.MetricName = None,
    limit: o.Limit = None,
    pair: o.Pair = None,
    target: o.Target = None,
    draft: o.Draft = None,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    temperature: o.Temperature = 1.0,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    draft_length: o.DraftLengths = o.DEFAULT_DRAFT_LENGTHS,
    max_new_tokens: o.MaxNewTokens = None,
    seed: o.Seed = 0,
    repeats: o.Repeats = 1,
    weight: o.Weight = None,
    lenience: o.Lenience = None,
    rule: o.Rule = None,
    alpha: o.Alpha = None,
    head: o.Head = None,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Measure methods on tasks: quality, acceptance and speed, interleaved in one run."""
    methods, dispensable = choose_methods(method)
    heads = choose_heads(head)
    given = {
        "weight": weight,
        "lenience": lenience,
        "rule": rule,
        "alpha": alpha,
        "head": heads,
    }
    plan = build_plan(
        choose_pair(pair, target, draft),
        choose_tasks(task, prompts, metric),
        method_variants(methods, given),
        parse_numbers("--draft-length", draft_length, int),
        Settings(temperature, top_k, top_p, seed, repeats, device, dtype),
        limit=limit,
        max_new_tokens=max_new_tokens,
        dispensable=dispensable,
    )
    measure(plan, "run", limit=limit, output=output, progress=not no_progress)
