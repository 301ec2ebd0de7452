"""One binding of a method serves runs, checks and benchmarks."""

from functools import partial
from pathlib import Path
from typing import Any

from specbench.heads.bind import bind
from specbench.heads.head import Head
from specbench.heads.registry import UNTRAINED, HeadFile
from specbench.methods import get_method
from specbench.methods.control import DraftControl


def test_a_method_is_bound_to_its_parameters(mini: Any) -> None:
    rule, control = bind("static", {"weight": 0.25}, mini)
    assert isinstance(rule, partial)
    assert (rule.keywords, control) == ({"weight": 0.25}, None)
    rule, control = bind("sd-adaptive", {"cost": 0.25}, mini)
    assert (rule, control) == (get_method("sd").load(), DraftControl(0.25))
    assert bind("autoregressive", {}, mini) == (None, None)


def test_a_head_is_loaded_once_and_called_as_a_function(mini: Any) -> None:
    heads: dict[Path, Head] = {}
    file = HeadFile(UNTRAINED, Path(UNTRAINED))
    for method in ("diversed", "gated-diversed"):
        rule, _ = bind(method, {"head": file}, mini, heads)
        assert isinstance(rule, partial)
        assert rule.keywords["head"] == heads[Path(UNTRAINED)].weigh
    assert len(heads) == 1
