"""Texts read in lockstep give the same outputs as texts read alone."""

from unittest.mock import Mock

import pytest
import torch

from specbench.engine.lockstep import LockstepBatch
from specbench.engine.pair import LoadedPair

from .tiny import FAMILIES, VOCABULARY, WINDOW, random_prompt, read, tiny_pair

LENGTHS = (3, WINDOW + 5, 7)  # beyond the window of models with one
NEW = 6
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def alone(pair: LoadedPair, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's logits and hidden state after a text, without a batch."""
    pair.target.reserve(1, len(tokens))
    logits, hidden = read(pair.target, tokens)
    return logits[-1], hidden[-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_is_read_as_if_alone(family):
    pair, texts = tiny_pair(family), [random_prompt(length) for length in LENGTHS]
    batch = LockstepBatch(pair.target, texts, NEW)
    said = batch.start()
    generator = torch.Generator().manual_seed(0)
    for _ in range(NEW):
        for row, text in enumerate(texts):
            expected = alone(pair, text)
            for outputs, wanted in zip(said, expected, strict=True):
                torch.testing.assert_close(outputs[row], wanted, **TOLERANCE)
        fresh = torch.randint(VOCABULARY, (len(texts), 1), generator=generator)
        texts = [[*text, token] for text, token in zip(texts, fresh[:, 0].tolist(), strict=True)]
        said = batch.forward(fresh)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_may_be_repeated_dropped_and_reordered(family):
    pair, texts = tiny_pair(family), [random_prompt(length) for length in LENGTHS]
    batch = LockstepBatch(pair.target, texts, NEW)
    batch.start()
    fresh = torch.arange(4).unsqueeze(-1)
    for rows in ([0, 1, 1, 2], [3, 1], [1, 0]):
        batch.select(torch.tensor(rows))
        texts = [texts[row] for row in rows]
        tokens = fresh[: len(rows)]
        logits, _ = batch.forward(tokens)
        texts = [[*text, int(token)] for text, token in zip(texts, tokens, strict=True)]
        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row], alone(pair, text)[0], **TOLERANCE)


def test_prompts_of_different_lengths_are_read_without_much_padding(monkeypatch):
    pair, texts = tiny_pair("llama"), [random_prompt(length) for length in (40, 4, 5, 41)]
    layers = Mock(side_effect=pair.target.through_layers)
    monkeypatch.setattr(pair.target, "through_layers", layers)
    LockstepBatch(pair.target, texts, NEW).start()
    assert [tuple(call.args[0].shape) for call in layers.mock_calls] == [(2, 5), (2, 41)]
