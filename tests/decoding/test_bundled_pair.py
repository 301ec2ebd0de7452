"""The bundled pair, decoded greedily in float32, against Transformers' own loop."""

from functools import cache

import pytest

from specbench.engine.loading import LoadedPair, load_pair
from specbench.engine.prompts import encode
from specbench.engine.settings import Loading
from specbench.methods.rules import sd
from specbench.pairs.registry import get_pair
from specbench.tasks.task import default_task_names, load_task

from .helpers import GREEDY, generate, own_draft, run

LIMIT = 128  # every answer ends before it
EXAMPLES = 3


@cache
def pair() -> LoadedPair:
    return load_pair(get_pair("mini"), Loading("cpu", "float32"))


@cache
def prompts(task: str) -> list[list[int]]:
    examples = load_task(task).examples("test", limit=EXAMPLES)
    return [encode(pair().tokenizer, example.prompt).ids for example in examples]


@cache
def reference(task: str) -> list[list[int]]:
    """Outputs of ``generate``, the end token included."""
    return [generate(pair(), prompt, LIMIT) for prompt in prompts(task)]


def without_end(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token not in pair().eos_ids]


@pytest.mark.parametrize("task", default_task_names())
def test_autoregressive_equals_generate(task: str) -> None:
    for prompt, expected in zip(prompts(task), reference(task), strict=True):
        output = run(pair(), prompt, sampling=GREEDY, max_new_tokens=LIMIT)
        assert output.token_ids == without_end(expected)
        assert output.output_tokens == len(expected)


@pytest.mark.parametrize("task", default_task_names())
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_sd_equals_autoregressive(task: str, n: int) -> None:
    settings = {"sampling": GREEDY, "draft_length": n}
    for prompt, expected in zip(prompts(task), reference(task), strict=True):
        output = run(pair(), prompt, sd, max_new_tokens=LIMIT, **settings)
        assert output.token_ids == without_end(expected)
        assert output.stopped_by == "eos"


@pytest.mark.parametrize("task", default_task_names())
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_a_length_limit_cuts_the_same_text(task: str, n: int) -> None:
    limit = 21 - n
    settings = {"sampling": GREEDY, "draft_length": n, "max_new_tokens": limit}
    output = run(pair(), prompts(task)[0], sd, **settings)
    assert output.token_ids == reference(task)[0][:limit]
    assert output.stopped_by == "length"


def test_end_tokens_occurred_within_a_block() -> None:
    """Otherwise the comparisons above would not have seen one."""
    last = (
        run(pair(), prompt, sd, sampling=GREEDY, draft_length=8, max_new_tokens=LIMIT).rounds[-1]
        for task in default_task_names()
        for prompt in prompts(task)
    )
    assert any(record.emitted == record.accepted < 8 for record in last)


def test_the_target_never_refuses_its_own_drafts() -> None:
    prompt = prompts("mini-math")[0]
    output = run(own_draft(pair()), prompt, sd, max_new_tokens=LIMIT)
    assert all(record.accepted == record.proposed for record in output.rounds)
