"""The same binding of a method serves runs, checks and benchmarks."""

from functools import partial
from pathlib import Path
from typing import Any

from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.heads.bind import bind
from specbench.decoding.heads.head import Head
from specbench.decoding.heads.registry import HeadFile
from specbench.decoding.sampling import Sampling
from specbench.methods.exact import sd_adaptive
from specbench.runs.labels import UNTRAINED


def test_a_method_is_bound_to_its_parameters(mini: Any) -> None:
    bound = bind("static", {"weight": 0.25}, mini)
    assert isinstance(bound.rule, partial) and bound.rule.keywords == {"weight": 0.25}
    assert bound[2:5] == (None, {"weight": 0.25}, None)
    # A control does not change the law.
    adaptive = ("sd-adaptive", sd_adaptive, Online(get_policy("adaptive:0.25")), {}, None)
    assert bind("sd-adaptive", {"cost": 0.25}, mini)[:5] == adaptive
    assert bind("autoregressive", {}, mini).rule is None


def test_a_cooled_method_changes_how_both_models_are_sampled(mini: Any) -> None:
    run, given = Sampling(temperature=0.8, top_k=9, min_p=0.2), {"cooled_weight": 1.0}
    bound = bind("cooled", given | {"both_temperature": 0.5, "both_min_p": 0.1}, mini)
    assert bound.parameters == given
    assert bound.sampling(run) == Sampling(temperature=0.4, top_k=9, min_p=0.2)
    assert bound.sampling(Sampling()) == Sampling(temperature=0.5, min_p=0.1)
    greedy = Sampling(temperature=0)
    assert bound.sampling(greedy) is greedy
    assert bind("static", {"weight": 1.0}, mini).sampling(run) is run


def test_a_head_is_loaded_once_and_called_as_a_function(mini: Any) -> None:
    heads: dict[Path, Head] = {}
    file = HeadFile(UNTRAINED, Path(UNTRAINED))
    for method in ("diversed", "gated-diversed"):
        bound = bind(method, {"head": file}, mini, heads)
        assert isinstance(bound.rule, partial)
        assert bound.head is heads[Path(UNTRAINED)]
        assert bound.rule.keywords["head"] == bound.head.weigh
    assert len(heads) == 1
