"""Compiled rounds say what eager ones say."""

import shutil
from dataclasses import replace
from functools import partial

import pytest

from specbench.config import COMPILE
from specbench.decoding.loop import Request
from specbench.engine.engines import Engine
from specbench.methods.mentored import mentored

from ..decoding.helpers import run_all
from .tiny import random_prompt, tiny_pair

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def test_texts_are_those_of_the_eager_engine() -> None:
    pair = tiny_pair("gemma3")
    requests = [Request(random_prompt(length), f"sample {length}") for length in (30, 3, 17)]
    eager, ours = (
        run_all(each, partial(mentored, budget=0.1), requests, draft_length=2, batch_size=2)
        for each in (pair, replace(pair, engine=Engine(COMPILE)))
    )
    assert [text.token_ids for text in ours] == [text.token_ids for text in eager]
