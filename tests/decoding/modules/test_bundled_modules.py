"""The modules that are bundled with the pairs draft, and greedy texts remain the target's."""

import json
from functools import cache

import pytest

from specbench.config import Loading
from specbench.decoding.drafters.registry import parse_kind
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import get_pair
from specbench.engine.prompts import encode
from specbench.methods.strict import sd
from specbench.tasks.task import load_task

from ..helpers import GREEDY, run

TASKS = {"mini": "mini-math", "python": "python-block"}
MODULES = [(pair, name) for pair in TASKS for name in get_pair(pair).drafters]
LIMIT = 24


@cache
def loaded(name: str) -> LoadedPair:
    return load_pair(get_pair(name), Loading(device="cpu"))


@pytest.mark.parametrize(("name", "module"), MODULES)
def test_greedy_texts_are_the_targets(name: str, module: str) -> None:
    pair, emitted, rounds = loaded(name), 0, 0
    for example in load_task(TASKS[name]).examples("test", limit=2):
        prompt = encode(pair.tokenizer, example.prompt, prompt_format="plain").ids
        alone = run(pair, prompt, sampling=GREEDY, max_new_tokens=LIMIT)
        how = {"sampling": GREEDY, "max_new_tokens": LIMIT, "draft_length": 5}
        text = run(pair, prompt, sd, drafter=parse_kind(module, pair.drafters).load(pair), **how)
        assert text.token_ids == alone.token_ids
        emitted, rounds = emitted + len(text.token_ids), rounds + len(text.rounds)
    assert emitted > 1.5 * rounds


@pytest.mark.parametrize(("name", "module"), MODULES)
def test_a_module_was_trained_for_its_target(name: str, module: str) -> None:
    description = json.loads((get_pair(name).drafters[module] / "training.json").read_text())
    assert description["target"] == loaded(name).runners[0].fingerprint()
    assert description["held_out"]["n"] >= 64
