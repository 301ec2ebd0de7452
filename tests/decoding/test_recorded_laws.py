"""Recorded laws are the enumerated ones, and the weights that follow from them recover p."""

from functools import partial

import numpy as np
import pytest
import torch

from specbench.decoding.loop import Request
from specbench.heads.bind import bind

from ..engine.tiny import random_prompt
from .helpers import run_all
from .test_law import LENGTH, VOCABULARY, N, enumeration, lookup_pair

SAMPLES = 1500


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("static", {"weight": 0.4}), ("threshold", {"single": 0.3, "accumulated": 0.6})],
)
def test_laws_agree_with_enumeration_and_weights_recover_the_target(
    method: str, parameters: dict[str, float]
) -> None:
    pair = lookup_pair()
    bound = bind(method, parameters, pair)
    requests = [Request(random_prompt(3, VOCABULARY), f"sample {i}") for i in range(SAMPLES)]
    options = {"draft_length": N, "max_new_tokens": LENGTH, "seed": 5, "batch_size": 64}
    texts = run_all(pair, bound.rule, requests, law=bound.bound_law(), **options)
    models, weights = enumeration(), []
    for text in texts:
        prefix: tuple[int, ...] = ()
        numbers = []
        for record in text.rounds:
            for position, recorded in enumerate(record.laws):
                at = models.next(prefix, position)
                split = partial(bound.law, **parameters)(at) if bound.law else None
                assert split is not None
                law = at.p if position == record.proposed else split.kept + split.replaced
                prefix = (*prefix, text.token_ids[len(prefix)])
                expected = [float(rows[0, prefix[-1]].log()) for rows in (at.p, law)]
                assert recorded[:2] == pytest.approx(expected, abs=1e-5)
                assert recorded[2] == pytest.approx(0, abs=1e-6)
                numbers.append(recorded[0] - recorded[1])
        assert len(numbers) == len(text.token_ids)
        weights.append(np.exp(sum(numbers)))
    error = np.std(weights) / SAMPLES**0.5
    assert abs(np.mean(weights) - 1) < 4 * error
    p = models.next((), 0).p[0].numpy()
    firsts = torch.tensor([text.token_ids[0] for text in texts]).numpy()
    plain = np.bincount(firsts, minlength=VOCABULARY) / SAMPLES
    weighted = np.bincount(firsts, weights=np.array(weights), minlength=VOCABULARY) / SAMPLES
    assert np.abs(weighted - p).max() < 5 * error < np.abs(plain - p).max() + 5 * error
    assert np.abs(weighted - p).sum() < np.abs(plain - p).sum()
