"""The bundled pair, decoded greedily in float32, against Transformers' own loop."""

from functools import cache

import pytest

from specbench.config import Loading
from specbench.engine.loading import LoadedPair, load_pair
from specbench.engine.prompts import encode
from specbench.methods.rules import sd
from specbench.pairs.registry import get_pair
from specbench.tasks.task import default_task_names, load_task

from .helpers import GREEDY, generate, run

LIMIT = 128  # every answer ends before it


@cache
def pair() -> LoadedPair:
    return load_pair(get_pair("mini"), Loading(device="cpu", dtype="float32"))


@pytest.mark.parametrize("task", default_task_names())
def test_greedy_texts_are_those_of_generate(task: str) -> None:
    ended_inside = 0
    for example in load_task(task).examples("test", limit=2):
        prompt = encode(pair().tokenizer, example.prompt).ids
        expected = generate(pair(), prompt, LIMIT)
        text = [token for token in expected if token not in pair().eos_ids]
        for n in (0, 1, 5, 8):
            settings = {"sampling": GREEDY, "draft_length": n}
            output = run(pair(), prompt, sd if n else None, max_new_tokens=LIMIT, **settings)
            assert (output.token_ids, output.stopped_by) == (text, "eos")
            assert output.output_tokens == len(expected)
            ended_inside += output.rounds[-1].emitted == output.rounds[-1].accepted < n
            cut = run(pair(), prompt, sd, max_new_tokens=21 - n, **settings)
            assert (cut.token_ids, cut.stopped_by) == (expected[: 21 - n], "length")
    assert ended_inside  # otherwise no end token occurred within a block
