"""A prompt is read once for all cells that decode it, and nothing but the time of reading shows."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from specbench.decoding.loop import Request
from specbench.decoding.records import Generation
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.methods import Rule
from specbench.methods.exact import block
from specbench.methods.strict import lossy, sd

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from .helpers import run_all

RULES: list[Rule | None] = [None, sd, partial(lossy, lenience=0.5), block, None]
LENGTHS = (30, 2, 12, 1)
HOUR = 3600.0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The lengths of prompts that were read, less the last token."""
    lengths: list[int] = []
    forward = Runner._forward

    def counted(self: Runner, tokens: torch.Tensor, *args: object) -> torch.Tensor:
        if args[2:]:
            lengths.append(tokens.shape[1])
        return forward(self, tokens, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "_forward", counted)
    yield lengths


def texts(pair: LoadedPair, rule: Rule | None, requests: list[Request]) -> list[object]:
    """Return all of some generations but their times."""
    generations = run_all(pair, rule, requests, batch_size=len(requests), max_new_tokens=12)
    return [(g.token_ids, g.rounds, g.stopped_by) for g in generations]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 4])
def test_a_prompt_that_is_not_read_again_has_the_same_text(
    family: str, size: int, read: list[int]
) -> None:
    pair = tiny_pair(family)
    requests = [Request(random_prompt(length), f"{length}") for length in LENGTHS[:size]]
    expected = []
    for rule in RULES:
        pair.drop_caches()
        expected.append(texts(pair, rule, requests))
    pair.drop_caches()
    pair.reserve(64, size)
    read.clear()
    assert [texts(pair, rule, requests) for rule in RULES] == expected
    # Once by each model; the draft has read the only token of a prompt of two again.
    assert sorted(n for n in read if n > 1) == sorted(2 * [n - 1 for n in LENGTHS[:size] if n > 2])


def test_the_time_of_reading_counts_for_every_cell() -> None:
    pair, requests = tiny_pair("llama"), [Request(random_prompt(20), "")]
    pair.drop_caches()

    def generation(rule: Rule | None) -> Generation:
        return run_all(pair, rule, requests)[0]

    assert 0 < generation(sd).prefill_seconds < HOUR
    for model in pair.runners:
        assert model.cache is not None
        model.cache.prompts[0] = (*model.cache.prompts[0][:2], HOUR)
    assert HOUR < generation(None).prefill_seconds < 2 * HOUR < generation(sd).prefill_seconds
    assert generation(sd).latency_seconds > 2 * HOUR


def test_an_overwritten_prompt_is_read_again(read: list[int]) -> None:
    pair = tiny_pair("llama")
    pair.drop_caches()
    requests = [Request(random_prompt(20), "")]
    expected = texts(pair, None, requests)
    for slot in (0, 7, 17):
        read.clear()
        pair.target.read(torch.tensor([[3]]), torch.tensor([[slot]]), slot + 1)
        assert texts(pair, None, requests) == expected and read == [19]
    read.clear()
    *start, last = requests[0].prompt
    changed = [requests[0]._replace(prompt=[*start, (last + 1) % 8])]
    assert texts(pair, None, changed) != expected and read == [19]


def test_a_prompt_is_read_again_after_one_whose_reading_broke_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = tiny_pair("llama")
    pair.drop_caches()
    requests = [Request(random_prompt(20), "")]
    expected = texts(pair, None, requests)
    last = pair.target.base.layers[-1]
    with monkeypatch.context() as broken:
        broken.setitem(vars(last), "forward", None)  # calling it raises: its keys stay as they are
        with pytest.raises(TypeError):
            pair.target.prefill(torch.arange(20) % 8)
    assert texts(pair, None, requests) == expected
