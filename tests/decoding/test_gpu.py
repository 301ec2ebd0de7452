"""The same loop on a CUDA device; skipped where there is none."""

import pytest
import torch

from specbench.engine.loading import encode, load_pair
from specbench.methods.rules import sd
from specbench.pairs.registry import get_pair
from specbench.tasks.task import load_task, task_names

from .helpers import GREEDY, generate, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("task", task_names())
def test_greedy_decoding_equals_generate(task: str) -> None:
    pair = load_pair(get_pair("mini"), "cuda", "float32")
    prompt = encode(pair.tokenizer, load_task(task).examples("test", 1)[0].prompt)
    expected = [token for token in generate(pair, prompt, 128) if token not in pair.eos_ids]
    for verify in (None, sd):
        assert run(pair, prompt, verify, sampling=GREEDY, max_new_tokens=128).token_ids == expected
