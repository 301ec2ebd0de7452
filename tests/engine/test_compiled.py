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

from ..decoding.helpers import GREEDY
from .tiny import random_prompt, tiny_pair

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

PROMPTS = [Request(random_prompt(length), f"sample {length}") for length in (30, 3, 17)]


@pytest.mark.parametrize(("family", "rows"), [("llama", 1), ("llama", 2), ("gemma3", 1)])
def test_texts_are_those_of_the_eager_engine(family: str, rows: int) -> None:
    pair = tiny_pair(family)
    fast = replace(pair, engine=Engine(COMPILE))
    settings: dict[str, Any] = {"draft_length": 2, "max_new_tokens": 20, "seed": 0}
    eager, ours = (
        decode_all(p, sd, PROMPTS, sampling=Sampling(), batch_size=rows, **settings)
        for p in (pair, fast)
    )
    assert [g.token_ids for g in ours] == [g.token_ids for g in eager]


def test_a_larger_cache_is_compiled_for_anew() -> None:
    pair = tiny_pair("llama")
    fast = replace(pair, engine=Engine(COMPILE))
    for length in (20, 300, 20):
        prompt = [Request(random_prompt(length), "sample")]
        eager, ours = (
            decode_all(p, None, prompt, sampling=GREEDY, draft_length=0, max_new_tokens=5, seed=0)
            for p in (pair, fast)
        )
        assert ours[0].token_ids == eager[0].token_ids
