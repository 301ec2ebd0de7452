"""Counts of Transformers' loops beside specbench's, with and without forced acceptance."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import utils

from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine import packing
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.methods.method import Rates
from specbench.methods.serving import synthetic
from specbench.methods.strict import sd
from tasks.measure.assisted import DECISION, Assisted, forced_in_transformers
from tests.engine.tiny import random_prompt, tiny_pair

TEXTS = 3


def decoded(assisted: Assisted, tokens: int, batch_size: int = 1) -> list[Generation]:
    """Decode some texts, with end tokens ignored."""
    prompts = [random_prompt(5) for _ in range(TEXTS * batch_size)]
    requests = [Request(prompt, f"{number}") for number, prompt in enumerate(prompts)]
    options = DecodeOptions(Sampling(), assisted._draft_length, tokens, batch_size=batch_size)
    return [generation for _, generation in assisted.decode(requests, options)]


def ours(pair: LoadedPair, tokens: int, rates: str | None) -> list[Generation]:
    """Decode the same texts by specbench's loop."""
    rule = partial(synthetic, acceptance=Rates(rates).by_position) if rates else sd
    requests = [Request(random_prompt(5), f"{number}") for number in range(TEXTS)]
    return [g for _, g in decode_all(pair, rule, requests, DecodeOptions(Sampling(), 5, tokens))]


def share(texts: list[Generation]) -> tuple[float, int]:
    """The share of judged drafts that were accepted, and how many were judged."""
    rounds = [record for text in texts for record in text.rounds]
    judged = sum(len(record.expected) for record in rounds)
    return sum(record.accepted for record in rounds) / judged, judged


@pytest.mark.parametrize(("length", "texts"), [(0, 2), (3, 1)], ids=["generate", "assisted"])
def test_all_tokens_are_decoded_though_the_model_has_end_tokens(length, texts):
    pair = tiny_pair("llama")
    models = [runner.model for runner in pair.runners]
    configs = [GenerationConfig(eos_token_id=list(range(40)), pad_token_id=0) for _ in models]
    originals = [model.generation_config for model in models]
    for model, settings in zip(models, configs, strict=True):
        model.generation_config = settings
    try:
        rates = Rates("0") if length else None
        generations = decoded(Assisted(pair, length, acceptance=rates), 20, texts)
        assert [model.generation_config for model in models] == configs
    finally:
        for model, settings in zip(models, originals, strict=True):
            model.generation_config = settings
    assert len(generations) == TEXTS * texts
    for text in generations:
        # The first round reads the prompt. Every draft is rejected, so each round emits one token.
        assert (text.output_tokens, len(text.rounds), text.full_rounds) == (20, 19, 19)
        assert text.shared_rounds == pytest.approx(19 / texts)
        # With two tokens left there is room for one draft, with one token left for none.
        proposed = sum(record.proposed for record in text.rounds)
        assert proposed == (16 * 3 + 2 + 1 + 0 if length else 0)
        assert math.isnan(text.verify_seconds)
        assert text.prefill_seconds > 0 < text.decode_seconds == text.full_seconds


@pytest.mark.parametrize("length", [0, 3], ids=["generate", "assisted"])
def test_transformers_is_timed_with_the_weights_themselves(length, monkeypatch):
    pair = tiny_pair("llama")
    layers = [module for runner in pair.runners for module in runner.model.modules()]
    linear = [layer for layer in layers if type(layer) is torch.nn.Linear]
    calls: list[object] = []
    # Stands in for products of packed weights, which need a processor of their own.
    monkeypatch.setattr(packing, "_product", lambda layer, packed, tokens: calls.append(tokens))
    for layer in linear:
        vars(layer)["forward"] = partial(packing._product, layer, None)
    try:
        assert decoded(Assisted(pair, length), 6)[0].output_tokens and not calls
        assert all("forward" in vars(layer) for layer in linear)
    finally:
        for layer in linear:
            vars(layer).pop("forward", None)


RATES = ("0", "0.6", "1", "0.9/0.3")


@pytest.mark.parametrize("rates", RATES)
def test_the_forced_share_of_drafts_is_accepted(rates):
    pair, tokens = tiny_pair("llama"), 30 if rates == "1" else 80
    loops: list[Callable[[], list[Generation]]] = [
        lambda: decoded(Assisted(pair, 5, Rates(rates)), tokens),
        lambda: ours(pair, tokens, rates),
    ]
    for loop in loops:
        records = [record for text in loop() for record in text.rounds]
        for position, rate in enumerate(Rates(rates).by_position):
            judged = [r for r in records if len(r.expected) > position]
            accepted = sum(r.accepted > position for r in judged) / len(judged)
            assert abs(accepted - rate) <= 4 * math.sqrt(rate * (1 - rate) / len(judged))
            assert len(judged) > 10


@pytest.mark.parametrize("rates", ["0.6", "0.9/0.3"])
def test_assisted_generation_accepts_with_the_uniforms_of_our_loop(rates):
    """Both take the same number of rounds; Transformers' first round is not counted."""
    pair = tiny_pair("llama")
    theirs = decoded(Assisted(pair, 5, acceptance=Rates(rates)), 60)
    assert [len(text.rounds) + 1 for text in theirs] == [
        len(text.rounds) for text in ours(pair, 60, rates)
    ]


def test_unforced_acceptance_is_the_models_own():
    """The tiny draft agrees with its target on nearly all tokens."""
    pair = tiny_pair("llama")
    for texts in (decoded(Assisted(pair, 5), 60), ours(pair, 60, None)):
        assert 0.5 < share(texts)[0] < 1


def test_transformers_is_restored_and_a_missing_function_reported(monkeypatch):
    decision: Any = getattr(utils, DECISION)
    with pytest.raises(ZeroDivisionError), forced_in_transformers(Rates("0.5"), []):
        assert getattr(utils, DECISION) is not decision
        raise ZeroDivisionError
    assert getattr(utils, DECISION) is decision
    monkeypatch.delattr(utils, DECISION)
    with pytest.raises(UsageError, match="has no"):
        Assisted(tiny_pair("llama"), 5, acceptance=Rates("0.5"))
    with forced_in_transformers(None, []):
        assert not hasattr(utils, DECISION)
