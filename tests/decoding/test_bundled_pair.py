"""The bundled pair, decoded greedily in float32, against Transformers' own loop."""

import torch

from specbench.engine.pair import LoadedPair
from specbench.engine.prompts import encode
from specbench.methods.strict import sd
from specbench.tasks.task import default_task_names, load_task

from .helpers import GREEDY, generate, run

LIMIT = 128  # every answer ends earlier


def test_greedy_texts_are_those_of_generate(mini: LoadedPair) -> None:
    pair, ended_inside = mini, 0
    assert pair.target.dtype == torch.float32
    for task in default_task_names():
        (example,) = load_task(task).examples("test", limit=1)
        prompt = encode(pair.tokenizer, example.prompt).ids
        expected = generate(pair, prompt, LIMIT)
        text = [token for token in expected if token not in pair.eos_ids]
        for n in (0, 1, 5, 8):
            settings = {"sampling": GREEDY, "draft_length": n}
            output = run(pair, prompt, sd, max_new_tokens=LIMIT, **settings)
            assert (output.token_ids, output.stopped_by) == (text, "eos")
            assert output.output_tokens == len(expected)
            ended_inside += output.rounds[-1].emitted == output.rounds[-1].accepted < n
        cut = run(pair, prompt, sd, max_new_tokens=13, **settings)
        assert (cut.token_ids, cut.stopped_by) == (expected[:13], "length")
    assert ended_inside  # otherwise no end token occurred within a block
