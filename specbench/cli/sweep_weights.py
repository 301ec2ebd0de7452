"""``specbench sweep-weights``: the static ensemble over a grid of weights, and its anchors."""

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
from specbench.experiment.variants import ANCHORS, weight_variants


def sweep_weights(
    weights: o.Weights = o.DEFAULT_WEIGHTS,
    method: o.Anchors = None,
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
    lenience: o.Lenience = None,
    rule: o.Rule = None,
    alpha: o.Alpha = None,
    head: o.Head = None,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Measure the static ensemble at each weight, with the methods to compare it with.

    All of them run interleaved, so that one run gives the front and the points above or below it.
    """
    methods, dispensable = choose_methods(method, default=ANCHORS)
    heads = choose_heads(head)
    given = {"lenience": lenience, "rule": rule, "alpha": alpha, "head": heads}
    plan = build_plan(
        choose_pair(pair, target, draft),
        choose_tasks(task, prompts, metric),
        weight_variants(methods, given, parse_numbers("--weights", weights, float)),
        parse_numbers("--draft-length", draft_length, int),
        Settings(temperature, top_k, top_p, seed, repeats, device, dtype),
        limit=limit,
        max_new_tokens=max_new_tokens,
        dispensable=dispensable,
    )
    measure(plan, "sweep-weights", limit=limit, output=output, progress=not no_progress)
