"""The same loop on a CUDA device; skipped where there is none."""

import pytest
import torch

from specbench.engine.loading import load_pair
from specbench.engine.prompts import encode
from specbench.engine.settings import Loading
from specbench.methods.rules import sd
from specbench.pairs.registry import get_pair
from specbench.tasks.task import default_task_names, load_task

from .helpers import GREEDY, generate, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("task", default_task_names())
def test_greedy_decoding_equals_generate(task: str) -> None:
    pair = load_pair(get_pair("mini"), Loading("cuda", "float32"))
    prompt = encode(pair.tokenizer, load_task(task).examples("test", 1)[0].prompt).ids
    expected = [token for token in generate(pair, prompt, 128) if token not in pair.eos_ids]
    for verify in (None, sd):
        assert run(pair, prompt, verify, sampling=GREEDY, max_new_tokens=128).token_ids == expected
