"""A sample depends on its seed and its key, not on what else was decoded."""

from functools import partial

import pytest

from specbench.decoding.records import Generation
from specbench.methods.rules import sd, static

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from .helpers import run

KEYS = ["a", "b", "c", "d"]


def outcome(output: Generation) -> tuple[object, ...]:
    """Everything but the timings."""
    return output.token_ids, output.text, output.stopped_by, output.rounds


@pytest.mark.parametrize("family", FAMILIES)
def test_order_and_company_do_not_matter(family: str) -> None:
    pair = tiny_pair(family)

    def decode(key: str) -> tuple[object, ...]:
        return outcome(run(pair, random_prompt(3 + 4 * KEYS.index(key)), sd, sample_key=key))

    forwards = [decode(key) for key in KEYS]
    run(pair, random_prompt(9), None, sample_key="something else")
    backwards = [decode(key) for key in reversed(KEYS)]
    assert forwards == backwards[::-1]


def test_another_seed_or_key_is_another_sample() -> None:
    decode = partial(run, tiny_pair("llama"), random_prompt(4), sd)
    outputs = [decode(seed=seed, sample_key=key) for seed in (0, 1) for key in KEYS]
    assert len({tuple(output.token_ids) for output in outputs}) == len(outputs)


def test_a_longer_limit_only_adds_tokens() -> None:
    decode = partial(run, tiny_pair("qwen3"), random_prompt(4), partial(static, weight=0.5))
    short, long = decode(max_new_tokens=9), decode(max_new_tokens=20)
    assert long.token_ids[:9] == short.token_ids
    assert len(long.token_ids) == 20
