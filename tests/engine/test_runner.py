"""A runner reproduces the model's own forward pass, however the tokens are split."""

from collections.abc import Callable
from itertools import accumulate
from unittest.mock import Mock

import pytest
import torch
import transformers

from specbench.engine import runner as module
from specbench.engine.cache import CAPACITY_STEP
from specbench.engine.runner import Runner
from specbench.errors import RunError, UsageError
from specbench.methods.strict import sd

from ..decoding.helpers import GREEDY, generate, run
from .tiny import (
    FAMILIES,
    SIZES,
    VOCABULARY,
    WINDOW,
    blurred,
    build,
    config,
    own_logits,
    pair_of,
    random_prompt,
    read,
)

TOKENS = random_prompt(40)  # several windows


def runner(settings: transformers.PreTrainedConfig) -> Runner:
    return Runner(build(settings), VOCABULARY)


@pytest.mark.parametrize("keyword", ["cache", "past_key_values"])
def test_layers_take_their_cache_by_the_name_of_their_version(keyword):
    model = build(config("llama"))
    installed = Runner(model, VOCABULARY)
    expected = read(installed, TOKENS)[0]

    def named(whole):
        def old(hidden, past_key_values=None, **others):
            return whole(hidden, **{installed.cache_keyword: past_key_values}, **others)

        def new(hidden, cache=None, **others):
            return old(hidden, **({"past_key_values": cache} | others))

        return new if keyword == "cache" else old

    for layer in model.get_decoder().layers:
        layer.forward = named(layer.forward)
    renamed = Runner(model, VOCABULARY)
    assert renamed.cache_keyword == keyword
    assert torch.equal(read(renamed, TOKENS)[0], expected)


WINDOWED = {
    # Every layer has the window, although the configuration has no layer types.
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen3 with a window": transformers.Qwen3Config(
        **SIZES, sliding_window=WINDOW, use_sliding_window=True, max_window_layers=1
    ),
    "tied": transformers.LlamaConfig(**(SIZES | {"tie_word_embeddings": True})),
    "a soft cap": config("gemma3", final_logit_softcapping=2.0),
}


@pytest.mark.parametrize("settings", [*map(config, FAMILIES), *WINDOWED.values()])
def test_pieces_equal_one_forward_pass(settings):
    subject = runner(settings)
    expected = own_logits(subject.model, TOKENS)
    for pieces in ([40], [1] * 40, [13, 1, 6, 2, 6, 12]):
        subject.reserve(1, len(TOKENS))
        parts = zip(torch.tensor(TOKENS).split(pieces), accumulate(pieces, initial=0), strict=False)
        logits = torch.cat([read(subject, part.tolist(), start)[0] for part, start in parts])
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_reads_all_but_the_last_token_and_rereading_equals_a_first_read(family):
    subject = runner(config(family))
    for length in (30, 1, 2):
        subject.reserve(1, len(TOKENS))
        subject.prefill(torch.tensor(TOKENS[:length]))
        logits, _ = read(subject, TOKENS[length - 1 :], length - 1)
        expected = own_logits(subject.model, TOKENS)[length - 1 :]
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    subject, fresh = runner(config(family)), runner(config(family))
    other = TOKENS[::-1]
    for length in (1, WINDOW, 20, 39):
        read(subject, TOKENS)
        expected = read(fresh, TOKENS[:length] + other)[0][length:]
        torch.testing.assert_close(read(subject, other, length)[0], expected, rtol=1e-3, atol=1e-3)


def test_capacity_grows_with_a_request_and_logits_are_cut_to_the_shared_vocabulary():
    subject = runner(config("gemma3"))
    long = TOKENS * 8
    assert len(long) > CAPACITY_STEP
    with pytest.raises(IndexError, match="beyond the cache"):
        read(subject, long)
    subject.reserve(1, len(long))
    subject.prefill(torch.tensor(long))
    expected = own_logits(subject.model, long)[-1:]
    logits, _ = read(subject, long[-1:], len(long) - 1)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    model = build(config("llama"))
    whole, cut = Runner(model, VOCABULARY), Runner(model, 50)
    tokens = [token % 50 for token in TOKENS]
    logits, _ = read(cut, tokens)
    assert logits.shape == (len(tokens), 50)
    torch.testing.assert_close(logits, read(whole, tokens)[0][:, :50])


def test_unsupported_architectures_are_refused_in_one_sentence():
    gpt2 = build(transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4))
    # Key heads that differ between layers raise ``RuntimeError`` in the cache.
    mixed, other = build(config("llama")), build(config("llama", num_key_value_heads=4))
    mixed.model.layers[1].self_attn = other.model.layers[1].self_attn
    for model in (gpt2, mixed):
        with pytest.raises(UsageError, match=r"cannot be run layer by layer.*: choose a") as e:
            Runner(model, VOCABULARY)
        assert model.config.model_type in str(e.value) and "\n" not in str(e.value)


SCALED: dict[str, Callable[[float], transformers.PreTrainedConfig]] = {
    "logits, divided": lambda scale: transformers.GraniteConfig(**SIZES, logits_scaling=scale),
    "embeddings": lambda scale: transformers.GraniteConfig(**SIZES, embedding_multiplier=scale),
    "logits, multiplied": lambda scale: transformers.CohereConfig(**SIZES, logit_scale=scale),
}


@pytest.mark.parametrize("kind", SCALED)
def test_a_scale_outside_the_layers_is_refused_in_every_dtype(kind):
    for dtype in (torch.float32, torch.bfloat16):
        Runner(build(SCALED[kind](1.0), dtype=dtype), VOCABULARY)  # a control: this one is accepted
        with pytest.raises(UsageError, match=r"logits differ by .*: choose a"):
            Runner(build(SCALED[kind](1.01), dtype=dtype), VOCABULARY)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_does_not_change_a_model(family):
    model = build(config(family), dtype=torch.bfloat16)
    expected = {name: weights.clone() for name, weights in model.state_dict().items()}
    said = own_logits(model, TOKENS)
    subject = Runner(model, VOCABULARY)
    assert subject.cache is not None and subject.cache.keys[0].dtype == torch.bfloat16
    for name, weights in model.state_dict().items():
        assert weights.dtype == torch.bfloat16 and torch.equal(weights, expected[name])
    assert torch.equal(own_logits(model, TOKENS), said)


def test_lack_of_memory_is_not_reported_as_an_unsupported_architecture():
    model = build(config("llama"))
    model.register_forward_hook(Mock(side_effect=torch.OutOfMemoryError("no room")))
    with pytest.raises(torch.OutOfMemoryError):
        Runner(model, VOCABULARY)


# Rotary tables that depend on the length of the text.

ORIGINAL = 32
LENGTH_DEPENDENT = {
    "longrope": transformers.LlamaConfig(
        **SIZES,
        max_position_embeddings=8 * ORIGINAL,
        rope_parameters={
            **{"rope_type": "longrope", "rope_theta": 10000.0},
            **{"original_max_position_embeddings": ORIGINAL, "short_factor": [1.0] * 4},
            "long_factor": [4.0] * 4,
        },
    ),
    "dynamic": transformers.LlamaConfig(
        **SIZES,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    ),
}


@pytest.mark.parametrize("kind", LENGTH_DEPENDENT)
def test_a_text_within_the_first_table_is_that_of_transformers_or_found(kind, monkeypatch):
    target = build(LENGTH_DEPENDENT[kind])
    pair = pair_of(target, blurred(target, noise=0.01))
    prompt = TOKENS[:20]
    expected = generate(pair, prompt, ORIGINAL - 20)
    for capacity in (ORIGINAL, 4 * CAPACITY_STEP):  # as needed by another text of the run
        pair.reserve(capacity)
        for verify in (None, sd):
            decoded = run(pair, prompt, verify, sampling=GREEDY, max_new_tokens=ORIGINAL - 20)
            assert decoded.token_ids == expected
    with pytest.raises(RunError, match="20 tokens and 13 new ones exceed the context of 32"):
        run(pair, prompt, sd, max_new_tokens=ORIGINAL - 19)
    monkeypatch.setattr(module, "context_length", lambda config: 8 * ORIGINAL)
    with pytest.raises(UsageError, match="angles depend on the length of the text"):
        runner(LENGTH_DEPENDENT[kind])


def test_a_fingerprint_depends_on_the_model_and_not_on_its_dtype():
    model = build(config("llama"))
    others = [build(config("llama"), seed=5), build(config("qwen3")), blurred(model, 0.01)]
    half = build(config("llama"), dtype=torch.float16)
    prints = [Runner(each, VOCABULARY).fingerprint() for each in (model, half, *others)]
    assert prints[0] == prints[1] and len(set(prints)) == 4
