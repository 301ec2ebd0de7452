"""Compiled rounds give the same results as eager ones."""

import shutil
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor

from specbench.config import COMPILE, EAGER
from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafting import Drafts
from specbench.decoding.loop import Request
from specbench.engine import compiled
from specbench.engine.engines import Engine
from specbench.engine.pair import LoadedPair
from specbench.errors import EngineError
from specbench.methods.strict import sd

from ..decoding.helpers import module_drafter, run_all
from ..decoding.test_rows import rules
from .tiny import blurred, build, config, pair_of, random_prompt, tiny_pair

REQUESTS = [Request(random_prompt(length), f"sample {length}") for length in (30, 3, 17)]


def texts(pair: LoadedPair, rule: Any, n: int, **how: Any) -> list[list[int]]:
    generations = run_all(pair, rule, REQUESTS, draft_length=n, batch_size=2, **how)
    return [text.token_ids for text in generations]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_compiled_code_gives_the_texts_of_the_eager_engine():
    """As few kernels as possible, since compiling one takes a second without a cache."""
    target = build(config("llama", num_hidden_layers=1))
    pair = pair_of(target, blurred(target, noise=0.01))
    with inductor.patch({"cpp.simdlen": 1}):
        ours = texts(replace(pair, engine=Engine(COMPILE)), sd, 1)
    assert ours == texts(pair, sd, 1)


def test_every_rule_is_traced_as_one_graph(monkeypatch):
    """Trace without generating code; a graph break raises."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    pair = tiny_pair("gemma3")
    traced = replace(pair, engine=Engine(COMPILE))
    for name, rule in rules(pair).items():
        token_ids, expected = (texts(p, rule, 2, max_new_tokens=8) for p in (traced, pair))
        assert token_ids == expected, name
    for drafter in (LookupDrafter(), module_drafter(pair)):
        how = {"drafter": drafter, "max_new_tokens": 8}
        assert texts(traced, sd, 2, **how) == texts(pair, sd, 2, **how)


def branching(x: torch.Tensor) -> torch.Tensor:
    return x if x.max().item() > 2 else -x


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_code_that_cannot_be_compiled_is_named_or_runs_eagerly():
    """A rule of the user's own may branch on the value of a tensor."""
    line = branching.__code__.co_firstlineno + 1
    with pytest.raises(EngineError, match=rf"test_compiled\.py, line {line}: .*--engine eager"):
        Engine(COMPILE)(branching)(torch.ones(2))
    said: list[str] = []
    engine = Engine(COMPILE, said.append)
    assert engine(branching)(torch.ones(2)).tolist() == [-1, -1]
    assert engine.name == EAGER and len(said) == 1


@pytest.mark.parametrize(("module", "is_named"), [("torch._inductor.utils", True), ("own", False)])
def test_any_error_of_the_compiler_is_one_sentence(module, is_named, monkeypatch):
    file = getattr(sys.modules.get(module), "__file__", f"{module}.py")
    exec(compile("def fail(*_):\n    return [][0]", file, "exec"), functions := {})
    monkeypatch.setattr(torch, "compile", lambda function, **_: functions["fail"])
    monkeypatch.setattr(compiled, "require_compiler", lambda: None)
    kind = EngineError if is_named else IndexError
    with pytest.raises(kind, match=r"list index out of range\)?: choose|list index out of range$"):
        Engine(COMPILE)(branching)(torch.ones(2))


def test_a_compiled_round_that_loses_results_is_one_sentence(monkeypatch):
    """PyTorch 2.11 returns an empty named tuple for copied drafts."""
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda *_: tuple.__new__(Drafts, ()))
    monkeypatch.setattr(compiled, "require_compiler", lambda: None)
    with pytest.raises(EngineError, match=r"PyTorch .* loses results .*: choose --engine eager"):
        Engine(COMPILE)(branching)(torch.ones(2))
