"""Compiled rounds say what eager ones say."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

from specbench.decoding.loop import decode_all
from specbench.decoding.rows import Request
from specbench.decoding.sampling import Sampling
from specbench.engine.engines import Engine
from specbench.engine.settings import COMPILE
from specbench.methods.rules import sd

from ..decoding.helpers import GREEDY, run
from .tiny import random_prompt, tiny_pair

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

PROMPTS = [Request(random_prompt(length), f"sample {length}") for length in (30, 3, 17)]


@pytest.mark.parametrize(("family", "rows"), [("llama", 2), ("gemma3", 1)])
def test_texts_are_those_of_the_eager_engine(family: str, rows: int) -> None:
    pair = tiny_pair(family)
    fast = replace(pair, engine=Engine(COMPILE))
    settings: dict[str, Any] = {"draft_length": 2, "max_new_tokens": 20, "seed": 0}
    eager, ours = (
        dict(decode_all(p, sd, PROMPTS, sampling=Sampling(), batch_size=rows, **settings))
        for p in (pair, fast)
    )
    assert {n: g.token_ids for n, g in ours.items()} == {n: g.token_ids for n, g in eager.items()}


def test_a_larger_cache_is_compiled_for_anew() -> None:
    pair = tiny_pair("llama")
    fast = replace(pair, engine=Engine(COMPILE))
    for length in (20, 300, 20):
        prompt = random_prompt(length)
        eager, ours = (
            run(p, list(prompt), sampling=GREEDY, max_new_tokens=5) for p in (pair, fast)
        )
        assert ours.token_ids == eager.token_ids
