"""The sampled loop against a naive one: whole forward passes, NumPy, no cache, no tensors.

Every model call processes the whole sequence, so an error in caching, rereading, the bonus token or
a wrapped window shows up as a different token.
"""

import numpy as np
import numpy.typing as npt
import pytest
from transformers import PreTrainedModel

from specbench.decoding.sampling import uniforms
from specbench.engine.pair import LoadedPair
from specbench.methods.strict import sd

from ..engine.tiny import FAMILIES, own_logits, random_prompt, tiny_pair
from .helpers import run

Array = npt.NDArray[np.float64]
LIMIT = 20
PROMPTS = [random_prompt(length) for length in (1, 6, 13)]


def softmax(model: PreTrainedModel, tokens: list[int]) -> Array:
    logits = own_logits(model, tokens)[-1].double().numpy()
    mass = np.exp(logits - logits.max())
    distribution: Array = mass / mass.sum()
    return distribution


def pick(distribution: Array, uniform: float) -> int:
    cumulative = distribution.cumsum()
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def naive_round(pair: LoadedPair, tokens: list[int], chance: Array) -> list[int]:
    """New tokens of one round."""
    n = len(chance) // 2
    drafts: list[int] = []
    qs: list[Array] = []
    for i in range(n):
        qs.append(softmax(pair.draft.model, tokens + drafts))
        drafts.append(pick(qs[i], chance[i]))
    for i, (q, x) in enumerate(zip(qs, drafts, strict=True)):
        p = softmax(pair.target.model, tokens + drafts[:i])
        if chance[n + i] >= p[x] / q[x]:
            return [*drafts[:i], pick(np.maximum(p - q, 0), chance[-1])]
    return [*drafts, pick(softmax(pair.target.model, tokens + drafts), chance[-1])]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [0, 1, 3, 5])
def test_the_sampled_loop_equals_the_naive_one(family: str, n: int) -> None:
    pair = tiny_pair(family)
    for prompt in PROMPTS:
        expected = list(prompt)
        for chance in uniforms(7, "naive", LIMIT, n).numpy():
            if len(expected) < len(prompt) + LIMIT:
                expected += naive_round(pair, expected, chance)
        output = run(
            pair,
            prompt,
            sd if n else None,
            draft_length=n,
            max_new_tokens=LIMIT,
            seed=7,
            sample_key="naive",
        )
        assert prompt + output.token_ids == expected[: len(prompt) + LIMIT]
