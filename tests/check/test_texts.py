"""The origin of every token of a sampled text, from the records of its rounds."""

from collections.abc import Callable
from math import nan

import torch

from specbench.check.texts import ACCEPTED, CORRECTED, OWN, tokens_of
from specbench.decoding.records import Generation, RoundRecord

ROUNDS = [
    RoundRecord(3, 1, 2, 9, (True,), (0.9, 0.8), (0.5, 0.4)),  # one accepted, 9 rejected
    RoundRecord(2, 2, 3, None, (True, True), (0.7, 0.6), (0.3, 0.2)),  # all accepted, a bonus
    RoundRecord(1, 1, 1, None, (False,), (0.5,), (0.1,)),  # cut by the limit
]


def test_the_origin_of_every_token(make_generation: Callable[..., Generation]) -> None:
    text = make_generation(token_ids=[1, 2, 3, 4, 5, 6], rounds=ROUNDS)
    found = tokens_of([text, text])
    assert found.tokens.tolist() == [[1, 2, 3, 4, 5, 6]] * 2
    assert found.kind[0].tolist() == [ACCEPTED, CORRECTED, ACCEPTED, ACCEPTED, OWN, ACCEPTED]
    assert found.drafted[0].tolist() == [1, 9, 3, 4, 0, 6]
    assert found.place[0].tolist() == [0, 1, 0, 1, 2, 0]
    expected = torch.tensor([0.9, 0.8, 0.7, 0.6, nan, 0.5])
    weights = torch.tensor([0.5, 0.4, 0.3, 0.2, nan, 0.1])
    torch.testing.assert_close(found.expected[0], expected, equal_nan=True)
    torch.testing.assert_close(found.weight[0], weights, equal_nan=True)


def test_autoregressive_tokens_are_the_targets_own(
    make_generation: Callable[..., Generation],
) -> None:
    found = tokens_of([make_generation(token_ids=[4, 5], rounds=[RoundRecord(0, 0, 1)] * 2)])
    assert found.kind.tolist() == [[OWN, OWN]]
    assert found.expected.isnan().all()
