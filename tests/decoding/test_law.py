"""The loop's samples follow the law in the rule's closed form, by chi-square with fixed seeds."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from specbench.decoding.loop import Request
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.methods import METHODS, Rule, get_method, laws, strict
from specbench.methods.laws import Split, total

from ..engine.tiny import build, config, pair_of, random_prompt
from ..methods.test_block import greedy_block
from ..methods.test_laws import residual_p, unprocessed_q
from ..told import listed
from .exact import LOWEST_P, Enumeration, last_logits, p_value
from .helpers import constantly, run_all

RULES = Path(__file__).parents[2] / "specbench" / "docs" / "my_rules.py"
VOCABULARY = 6
N = 2
LENGTH = 3  # a whole round with its bonus token
SAMPLES = 2500
CERTAIN = 1e-6


class Lookup:
    """A stand-in for a runner: every prefix is run once, for all samples that begin with it."""

    saved_seconds = 0.0

    def __init__(self, model: Any) -> None:
        self.model, self.vocabulary, self.device = model, VOCABULARY, torch.device("cpu")
        self.context, self.hidden_size = None, VOCABULARY

    def reserve(self, rows: int, capacity: int) -> int:
        self.tokens = [[0] * capacity for _ in range(rows)]
        return capacity

    def prefill(self, prompt: Tensor, row: int = 0) -> None:
        self.tokens[row][: len(prompt)] = prompt.tolist()

    def read(self, tokens: Tensor, at: Tensor, kv_length: int | None = None, last: bool = False):
        """In place of hidden states, it returns the logits a second time."""
        said = []
        for row, (token_ids, places) in enumerate(zip(tokens.tolist(), at.tolist(), strict=True)):
            for token, place in zip(token_ids, places, strict=True):
                self.tokens[row][place] = token
                said.append(last_logits(self.model, tuple(self.tokens[row][: place + 1])))
        logits = torch.stack(said).unflatten(0, at.shape)
        logits = logits[:, -1:] if last else logits
        return logits, logits


@cache
def pair(family: str = "llama") -> LoadedPair:
    sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "initializer_range": 0.3}
    if family == "gemma3":
        sizes["num_hidden_layers"] = 2
    return pair_of(build(config(family, **sizes), seed=3), build(config(family, **sizes), seed=4))


@cache
def lookup_pair() -> LoadedPair:
    real = pair()
    target, draft = (cast(Runner, Lookup(runner.model)) for runner in (real.target, real.draft))
    return replace(real, target=target, draft=draft)


def sample(pair: LoadedPair, rule: Rule | None, count: int = SAMPLES, **changes: Any):
    prompt = changes.pop("prompt", random_prompt(3, VOCABULARY))
    requests = [Request(prompt, f"sample {i}") for i in range(count)]
    settings = {"draft_length": N, "max_new_tokens": LENGTH, "seed": 11, "batch_size": 500}
    generations = run_all(pair, rule, requests, **(settings | changes))
    return [tuple(generation.token_ids) for generation in generations]


def enumeration(prompt: list[int] | None = None, **processing: Any) -> Enumeration:
    real = pair()
    prompt = prompt or random_prompt(3, VOCABULARY)
    return Enumeration(real.target.model, real.draft.model, prompt, **processing)


CASES = listed("decoding/law.txt")


@pytest.mark.parametrize(("method", "parameters", "processing"), CASES)
def test_samples_follow_the_closed_form(method, parameters, processing):
    rule = METHODS[method].rule
    verify, n = (partial(rule, **parameters), N) if rule else (None, 0)
    samples = sample(lookup_pair(), verify, sampling=Sampling(**processing))
    models = enumeration(**processing)
    law = models.law(partial(METHODS[method].law or laws.sd, **parameters), n, LENGTH)
    assert sum(law.values()) == pytest.approx(1) and p_value(samples, law) > LOWEST_P
    if parameters:
        assert p_value(samples, models.law(laws.sd, N, LENGTH)) < CERTAIN


def test_samples_follow_a_law_that_depends_on_the_position():
    """A rule of the user's own, whose weight decays along the round."""
    method = get_method(f"{RULES}:decaying")
    assert method.law is not None and callable(method.rule)
    samples = sample(lookup_pair(), partial(method.rule, decay=0.3))
    models = enumeration()
    assert p_value(samples, models.law(partial(method.law, decay=0.3), N, LENGTH)) > LOWEST_P

    def forgets(at):
        assert method.law is not None
        return method.law(at._replace(position=torch.zeros_like(at.position)), decay=0.3)

    assert p_value(samples, models.law(forgets, N, LENGTH)) < CERTAIN


def test_samples_of_the_engine_follow_the_closed_form():
    """Gemma 3 with a prompt longer than its window, without the table of logits."""
    real, prompt = pair("gemma3"), random_prompt(12, VOCABULARY)
    samples = sample(real, strict.sd, 600, prompt=prompt)
    models = Enumeration(real.target.model, real.draft.model, prompt)
    assert p_value(samples, models.law(laws.sd, N, LENGTH)) > LOWEST_P
    assert p_value(samples, models.law(partial(laws.static, weight=0.0), N, LENGTH)) < CERTAIN


# Negative controls.


def test_a_wrong_law_is_rejected():
    def replaced_by_p(at):
        accepted, gain = laws.sd(at)
        return Split(accepted, total(gain) * at.p)

    samples, models = sample(lookup_pair(), strict.sd), enumeration()
    right = models.law(laws.sd, N, LENGTH)
    wrong = {
        "the draft's": models.law(partial(laws.static, weight=0.0), N, LENGTH, bonus="q"),
        "bonus token from the draft": models.law(laws.sd, N, LENGTH, bonus="q"),
        "residual p": models.law(replaced_by_p, N, LENGTH),
        "a weight of 0.8": models.law(partial(laws.static, weight=0.8), N, LENGTH),
        "temperature 0.8": enumeration(temperature=0.8).law(laws.sd, N, LENGTH),
    }
    assert p_value(samples, right) > LOWEST_P
    p_values = {name: p_value(samples, law) for name, law in wrong.items()}
    assert max(p_values.values()) < CERTAIN, p_values


def test_a_wrong_rule_is_rejected():
    for broken, processing in (
        *((residual_p, {}), (unprocessed_q, {"temperature": 0.4}), (unprocessed_q, {"top_k": 3})),
        *((constantly(0.7), {}), (greedy_block, {"temperature": 2.0})),
    ):
        samples = sample(lookup_pair(), broken, sampling=Sampling(**processing))
        assert p_value(samples, enumeration(**processing).law(laws.sd, N, LENGTH)) < CERTAIN
