"""The bytes of a round against counts by hand, and a measured bandwidth."""

import pytest
import torch

from specbench.engine import hardware
from specbench.engine.hardware import copy_bandwidth
from specbench.engine.memory import bytes_per_round
from specbench.engine.runner import Runner

from .tiny import VOCABULARY, WINDOW, build, config, pair_of

# From tiny.py: hidden 32, intermediate 64, 4 heads of width 8, 2 for keys and values.
ATTENTION = 32 * (4 + 2 + 2 + 4) * 8
LAYERS = 2 * (ATTENTION + 3 * 32 * 64 + 2 * 32)
HEAD = 32 * VOCABULARY
WEIGHTS = 4 * (LAYERS + 32 + HEAD)  # float32
STATES = 4 * 2 * 2 * 2 * 8  # two layers, keys and values, two heads of width 8


@pytest.mark.parametrize("tied", [False, True])
def test_the_embedding_table_counts_only_as_output_head(tied):
    runner = Runner(build(config("llama", tie_word_embeddings=tied)), VOCABULARY)
    assert runner.weight_bytes() == WEIGHTS
    whole = sum(w.numel() for w in runner.model.parameters())
    assert 4 * whole == WEIGHTS + (0 if tied else 4 * HEAD)


def test_half_the_bits_are_half_the_bytes():
    runner = Runner(build(config("llama"), dtype=torch.bfloat16), VOCABULARY)
    assert runner.weight_bytes() == WEIGHTS / 2
    assert runner.cache_bytes(10) == 10 * STATES / 2


def test_bytes_beyond_a_window_do_not_count():
    runner = Runner(build(config("gemma3")), VOCABULARY)
    assert runner.cache_bytes(WINDOW) == WINDOW * STATES
    assert runner.cache_bytes(3 * WINDOW) == (WINDOW + 3 * WINDOW) * STATES / 2


def test_a_round_reads_the_target_once_and_the_draft_for_every_token():
    target, draft = build(config("llama")), build(config("llama", num_hidden_layers=1))
    pair = pair_of(target, draft)
    of_draft = WEIGHTS - 2 * LAYERS
    assert bytes_per_round(pair, 0, 1, 10) == WEIGHTS + 10 * STATES
    expected = WEIGHTS + 4 * 10 * STATES + 3 * (of_draft + 4 * 10 * STATES / 2)
    assert bytes_per_round(pair, 3, 4, 10) == expected


def test_a_copy_reads_and_writes(monkeypatch):
    """With a clock that counts copies: every byte takes a millisecond."""
    copied: list[int] = []

    def copy(self, source):
        copied.append(len(source))
        return self

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(hardware, "now", lambda device: sum(copied) / 1000)
    assert copy_bandwidth(torch.device("cpu"), 500) == pytest.approx(2000)
    assert set(copied) == {500}
    copied.clear()
    monkeypatch.setattr(hardware, "available_memory", lambda device: 800)
    assert copy_bandwidth(torch.device("cpu"), 500) == pytest.approx(2000)
    assert set(copied) == {800 // hardware.FREE_SHARE}
