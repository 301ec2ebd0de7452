"""A draft that lacks tokens of the target: q is 0 there, and every law stays exact."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.engine.vocabulary import DraftTokens
from specbench.methods import METHODS, laws, strict
from specbench.methods.laws import Next

from ..engine.tiny import build, config, pair_of, random_prompt
from .exact import LOWEST_P, Array, Enumeration, last_logits, normalised, p_value, softmax
from .helpers import GREEDY, generate, module_drafter, run
from .test_law import CASES, CERTAIN, LENGTH, VOCABULARY, N, sample

ROWS, SUBSTITUTE = 5, 2  # of the draft's weights; what it reads for a token that it lacks
PRESENT = [0, 2, 3]  # token 1 has another meaning in the draft, 4 is padding, 5 has no row
PROMPT = [3, 5, 1, 0]


@cache
def pair(family: str = "llama") -> LoadedPair:
    sizes = {"num_hidden_layers": 2 if family == "gemma3" else 1, "initializer_range": 0.3}
    loaded = pair_of(
        build(config(family, vocab_size=VOCABULARY, **sizes), seed=3),
        build(config(family, vocab_size=ROWS, **sizes), seed=4),
    )
    present = torch.tensor([token in PRESENT for token in range(VOCABULARY + 1)])
    loaded.draft = Runner(loaded.draft.model, VOCABULARY, DraftTokens(present, SUBSTITUTE))
    return loaded


class Lacking(Enumeration):
    """Enumerates with a draft that lacks tokens; ``cut`` makes the target lack them too.

    That is what decoding was when it cut the target to the draft's tokens.
    """

    cut = False

    def next(self, tokens: tuple[int, ...], position: int) -> Next:
        context = (*self.prompt, *tokens)
        read = tuple(token if token in PRESENT else SUBSTITUTE for token in context)
        p = last_logits(self.target, context).double().numpy()
        q = np.full(VOCABULARY, -np.inf)
        q[PRESENT] = last_logits(self.draft, read).double().numpy()[PRESENT]
        p = np.where(np.isfinite(q), p, -np.inf) if self.cut else p
        rows = (self._processed(p), self._processed(q), softmax(p), softmax(q))
        return Next(*(torch.from_numpy(row)[None] for row in rows), torch.tensor([position]))

    def _processed(self, logits: Array) -> Array:
        finite = np.isfinite(logits)
        mass = np.zeros(len(logits))
        mass[finite] = super()._processed(logits[finite])
        return normalised(mass)


def models(cut: bool = False, **processing: Any) -> Lacking:
    lacking = Lacking(pair().target.model, pair().draft.model, PROMPT, **processing)
    lacking.cut = cut
    return lacking


@pytest.mark.parametrize(
    ("method", "parameters", "processing", "batch_size"),
    [*((*case, 64) for case in CASES), ("sd", {}, {}, 1)],
)
def test_samples_follow_the_closed_form(method, parameters, processing, batch_size):
    rule = METHODS[method].rule
    verify = None if rule is None else partial(rule, **parameters)
    settings = {"sampling": Sampling(**processing), "batch_size": batch_size, "prompt": PROMPT}
    samples = sample(pair(), verify, 700 if batch_size > 1 else 300, **settings)
    bound = partial(METHODS[method].law or laws.sd, **parameters)
    n = 0 if rule is None else N
    assert p_value(samples, models(**processing).law(bound, n, LENGTH)) > LOWEST_P
    assert p_value(samples, models(True, **processing).law(bound, n, LENGTH)) < CERTAIN


@pytest.mark.parametrize("rule", [strict.sd, METHODS["block"].rule], ids=["sd", "block"])
def test_lossless_rules_emit_every_token_of_the_target(rule):
    """A module drafts four tokens of the vocabulary; with a one-hot q the others change nothing."""
    drafter = module_drafter(pair(), draft_vocabulary=4, own_output=True)
    samples = sample(pair(), rule, 700, prompt=PROMPT, drafter=drafter)
    assert p_value(samples, models().law(laws.sd, 0, LENGTH)) > LOWEST_P
    assert p_value(samples, models(True).law(laws.sd, 0, LENGTH)) < CERTAIN


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_greedy_texts_are_those_of_transformers(family):
    for length in range(3, 9):
        prompt = random_prompt(length, VOCABULARY)
        text = run(pair(family), prompt, strict.sd, sampling=GREEDY).token_ids
        assert text == generate(pair(family), prompt, 16)
