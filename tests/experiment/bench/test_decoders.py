"""Counts of specbench's and Transformers' loops, with and without forced acceptance."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import utils

from specbench.config import EAGER
from specbench.decoding.loop import decode_all
from specbench.decoding.records import Generation, RoundRecord
from specbench.engine import packing
from specbench.engine.engines import Engine
from specbench.experiment.bench.decoders import (
    DECISION,
    ENSEMBLE,
    Decoder,
    MissingError,
    Timing,
    forced,
    forced_in_transformers,
    specbench_decoders,
    timing_of,
    transformers_decoder,
)
from specbench.experiment.bench.plan import TRANSFORMERS, System
from specbench.methods import Positions
from specbench.methods.strict import sd

from ...engine.tiny import random_prompt, tiny_pair
from .benches import SD, bench_of, system_of

TEXTS = 3


def decoder_of(system: System) -> Decoder:
    settings, pair = bench_of(system).settings, tiny_pair("llama")
    if system.engine == TRANSFORMERS:
        return transformers_decoder(settings, system, pair)
    return specbench_decoders(settings, system, pair)[0]


def decoded(system: System, tokens: int) -> Timing:
    """Decode some texts one by one, because assisted generation supports only batch 1."""
    decode = decoder_of(system)
    timings = [decode([random_prompt(5 + text)], tokens, str(text)) for text in range(TEXTS)]
    values = [
        sum(getattr(timing, name) for timing in timings) for name in Timing.__dataclass_fields__
    ]
    return Timing(*values)


def text(*rounds: RoundRecord, seconds: float) -> Generation:
    """Return a text whose rounds took ``seconds`` each, with parts of 10, 20 and 30 per cent."""
    return Generation(
        [], "", 4, sum(r.emitted for r in rounds), "length", 0.5, seconds,
        seconds / 10, seconds / 5, 3 * seconds / 10, seconds, list(rounds),
    )  # fmt: skip


def test_texts_of_a_batch_share_their_rounds() -> None:
    whole, rejected, cut = RoundRecord(2, 2, 3), RoundRecord(2, 1, 2, 7), RoundRecord(1, 1, 1)
    timing = timing_of([text(whole, rejected, cut, seconds=1.0), text(whole, whole, seconds=2.0)])
    assert timing == Timing(
        12, 3, 5, 9, 9, 8, 1.0, 3.0, *(pytest.approx(n) for n in (0.3, 0.6, 0.9))
    )


def test_every_text_has_the_requested_number_of_tokens() -> None:
    for system, texts in ((system_of("autoregressive", 0), 1), (system_of("sd", 3), 3)):
        timing = decoder_of(system)([random_prompt(5)] * texts, 20, "key")
        assert timing.output_tokens == 20 * texts
        assert timing.rounds <= 20
        parts = timing.draft_seconds + timing.verify_seconds + timing.accept_seconds
        assert 0 < parts < timing.decode_seconds


def test_the_warm_up_covers_every_length_of_an_adaptive_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Static(Engine):
        static = True

    drafted: list[int | None] = []

    def watched(pair: Any, rule: Any, requests: Any, options: Any) -> Any:
        drafted.append(getattr(options.control, "drafts", None))
        return decode_all(pair, rule, requests, options)

    monkeypatch.setattr("specbench.experiment.bench.decoders.decode_all", watched)
    system = system_of("sd-adaptive", 3, cost=0.1)
    pair = replace(tiny_pair("llama"), engine=Static())
    decoder, rehearsals = specbench_decoders(bench_of(system).settings, system, pair)
    for decode in (*rehearsals, decoder):
        decode([random_prompt(5)], 20, "0")
    assert drafted == [1, 2, 3, None]
    assert specbench_decoders(bench_of(SD).settings, SD, pair)[1] == []


@pytest.mark.parametrize(
    ("system", "texts"),
    [
        (system_of("autoregressive", 0, TRANSFORMERS), 2),
        (system_of("sd", 3, TRANSFORMERS, rate=0.0), 1),
    ],
    ids=["generate", "assisted"],
)
def test_transformers_decodes_all_tokens_though_the_model_has_end_tokens(
    system: System, texts: int
) -> None:
    pair = tiny_pair("llama")
    models = [runner.model for runner in (pair.target, pair.draft)]
    configs = [GenerationConfig(eos_token_id=list(range(40)), pad_token_id=0) for _ in models]
    originals = [model.generation_config for model in models]
    for model, settings in zip(models, configs, strict=True):
        model.generation_config = settings
    try:
        decode = transformers_decoder(bench_of(system).settings, system, pair)
        timing = decode([random_prompt(5)] * texts, 20, "key")
        assert [model.generation_config for model in models] == configs
    finally:
        for model, settings in zip(models, originals, strict=True):
            model.generation_config = settings
    # The first round reads the prompt. Every draft is rejected, so each round emits one token.
    assert timing.output_tokens == 19 * texts
    assert (timing.rounds, timing.text_rounds) == (19, 19 * texts)
    # With two tokens left there is room for one draft, with one token left for none.
    assert timing.proposed == (16 * 3 + 2 + 1 + 0 if system.cell.draft_length else 0)
    assert math.isnan(timing.verify_seconds)
    assert timing.prefill_seconds > 0 < timing.decode_seconds


@pytest.mark.parametrize("system", [("autoregressive", 0), ("sd", 3)], ids=["generate", "assisted"])
def test_transformers_is_timed_with_the_weights_themselves(
    system: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = tiny_pair("llama")
    layers = [module for runner in pair.runners for module in runner.model.modules()]
    linear = [layer for layer in layers if type(layer) is torch.nn.Linear]
    calls: list[object] = []
    # Stands in for products of packed weights, which need a processor of their own.
    monkeypatch.setattr(packing, "_product", lambda layer, packed, tokens: calls.append(tokens))
    for layer in linear:
        vars(layer)["forward"] = partial(packing._product, layer, None)
    try:
        timed = system_of(*system, TRANSFORMERS)
        decode = transformers_decoder(bench_of(timed).settings, timed, pair)
        assert decode([random_prompt(8)], 6, "0").output_tokens and not calls
        assert all("forward" in vars(layer) for layer in linear)
    finally:
        for layer in linear:
            vars(layer).pop("forward", None)


def test_only_the_acceptance_of_a_verdict_is_forced() -> None:
    p, q = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    at, x = Positions(p, q, p, q, p, q, False), torch.arange(4)
    plain, other = sd(at, x), forced(sd, 0.25)(at, x)
    assert other.accept.tolist() == [0.25] * len(x)
    assert torch.equal(other.residual, plain.residual)
    assert torch.equal(other.expected, plain.expected)


@pytest.mark.parametrize(
    ("method", "engine", "rate"),
    [
        *(("sd", engine, rate) for engine in (EAGER, TRANSFORMERS) for rate in (0.0, 0.6, 1.0)),
        ("static", TRANSFORMERS, 0.6),
    ],
)
def test_the_forced_share_of_drafts_is_accepted(method: str, engine: str, rate: float) -> None:
    if method == "static" and not hasattr(GenerationConfig(), ENSEMBLE):
        pytest.skip("this version of Transformers has no ensemble")
    parameters = {"weight": 0.5} if method == "static" else {}
    system = system_of(method, 5, engine, rate, **parameters)
    timing = decoded(system, tokens=80 if 0 < rate < 1 else 30)
    spread = math.sqrt(rate * (1 - rate) / timing.judged)
    assert abs(timing.accepted / timing.judged - rate) <= 4 * spread
    assert timing.judged > 50


def test_assisted_generation_accepts_with_the_uniforms_of_our_loop() -> None:
    """Both take the same number of rounds; Transformers' first round is not counted."""
    ours, theirs = (decoded(system_of("sd", 5, e, 0.6), 60) for e in (EAGER, TRANSFORMERS))
    assert ours.rounds == theirs.rounds + TEXTS


def test_unforced_acceptance_is_the_models_own() -> None:
    """The tiny draft agrees with its target on nearly all tokens."""
    for engine in (EAGER, TRANSFORMERS):
        timing = decoded(system_of("sd", 5, engine), 60)
        assert 0.5 < timing.accepted / timing.judged < 1, engine


def test_transformers_is_restored_and_a_missing_function_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decision = getattr(utils, DECISION)
    with pytest.raises(ZeroDivisionError), forced_in_transformers(0.5, []):
        assert getattr(utils, DECISION) is not decision
        raise ZeroDivisionError
    assert getattr(utils, DECISION) is decision
    monkeypatch.delattr(utils, DECISION)
    with pytest.raises(MissingError, match="has no"), forced_in_transformers(0.5, []):
        pass
    with forced_in_transformers(None, []):
        assert not hasattr(utils, DECISION)
