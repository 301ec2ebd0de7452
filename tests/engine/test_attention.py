"""Grouping query heads that share a key head changes nothing but the time."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, StableLmConfig
from transformers.integrations import sdpa_attention

from specbench.engine import attention, loading
from specbench.engine.attention import MOST_TOKENS, grouped_attention, grouped_mask, visible
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import UsageError

from ..decoding.helpers import generate
from .tiny import FAMILIES, SIZES, VOCABULARY, build, config, own_logits, random_prompt, read

KEY_HEADS, GROUPS, WIDTH, SEEN = 2, 3, 8, 40
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 1e-2}


def states(rows: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(k)
    heads = KEY_HEADS * GROUPS
    shapes = [(rows, k, heads, WIDTH), *[(rows, SEEN, KEY_HEADS, WIDTH)] * 2]
    drawn = (torch.randn(shape, generator=draw).to(dtype).transpose(1, 2) for shape in shapes)
    query, key, value = drawn
    return query, key, value


def layer() -> Any:
    return SimpleNamespace(num_key_value_groups=GROUPS, is_causal=True)


def transformers_output(*arguments: Any, **options: Any) -> Tensor:
    return sdpa_attention.sdpa_attention_forward(layer(), *arguments, **options)[0]


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_grouped_attention_equals_attention_with_repeated_keys(dtype):
    for k, rows, window, scale in product((1, 6, SEEN), (1, 3), (None, 5), (None, 0.7)):
        query, key, value = states(rows, k, dtype)
        starts = torch.arange(rows)[:, None] * (SEEN - k) // 2
        mask = visible(starts + torch.arange(k), SEEN, window)
        expected = transformers_output(query, key, value, mask, scaling=scale)
        inputs = layer(), query, key, value, grouped_mask(mask, GROUPS)
        output, weights = grouped_attention(*inputs, scaling=scale, dropout=0.0)
        assert weights is None and output.is_contiguous()
        torch.testing.assert_close(output, expected, rtol=0, atol=ROUNDING[dtype])


def test_other_masks_and_options_are_passed_on():
    inputs, mask = states(1, 6), visible(torch.arange(20, 26)[None], SEEN, None)
    for other in (None, mask):
        output = grouped_attention(layer(), *inputs, other)[0]
        assert torch.equal(output, transformers_output(*inputs, other))
    options = ({"dropout": 0.5}, {"position_bias": torch.ones(1, 6, 6, SEEN)}, {"s_aux": 1.0})
    for option in options:
        torch.manual_seed(0)
        expected = transformers_output(*inputs, mask, **option)
        torch.manual_seed(0)
        output = grouped_attention(layer(), *inputs, grouped_mask(mask, GROUPS), **option)[0]
        assert torch.equal(output, expected)


def test_cudnn_is_excluded_after_cuda_is_initialised(monkeypatch):
    happened: list[str] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: happened.append("init"))
    switch = torch.backends.cuda.enable_cudnn_sdp

    def exclude(enabled):
        happened.append("exclude")
        switch(enabled)

    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", exclude)
    try:
        loading.exclude_cudnn()
        assert happened == ["init", "exclude"]
        assert loading.enabled_backends() == ["flash", "mem_efficient", "math"]
    finally:
        switch(True)
    assert "cudnn" in loading.enabled_backends()


@pytest.mark.parametrize("family", FAMILIES)
def test_only_a_prompt_repeats_keys(family, monkeypatch):
    subject = Runner(build(config(family)), VOCABULARY)
    lengths: list[int] = []

    def repeated(states, times):
        lengths.append(states.shape[2])
        return states.repeat_interleave(times, 1)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeated)
    tokens = random_prompt(MOST_TOKENS + 20)
    subject.reserve(2, len(tokens))
    for k in (1, 6, MOST_TOKENS):
        at = torch.tensor([[3], [9]]) + torch.arange(k)
        for seen in (None, int(at.max()) + 1):
            subject.forward(torch.tensor([tokens[:k], tokens[-k:]]), at, seen)
    assert not lengths
    subject.prefill(torch.tensor(tokens))
    assert set(lengths) == {len(tokens) - 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_models_own_forward_pass_is_unchanged(family):
    plain, ours = (build(config(family)) for _ in range(2))
    subject = Runner(ours, VOCABULARY)
    kinds = plain.config._attn_implementation, ours.config._attn_implementation
    assert kinds == (attention.SDPA, attention.GROUPED)
    tokens = random_prompt(40)
    assert torch.equal(own_logits(plain, tokens), own_logits(ours, tokens))
    pair = LoadedPair("own", subject, subject, None, frozenset())  # type: ignore[arg-type]
    before = SimpleNamespace(target=SimpleNamespace(model=plain), eos_ids=frozenset())
    assert generate(pair, tokens, 12) == generate(before, tokens, 12)  # type: ignore[arg-type]


def test_models_without_grouped_heads_are_unchanged_and_layers_may_pass_on_only_the_mask():
    for heads in (4, None):
        model = build(LlamaConfig(**(SIZES | {"num_key_value_heads": heads})))
        assert attention.group_heads(model) == 1
        assert model.config._attn_implementation == attention.SDPA
    subject, tokens = Runner(build(StableLmConfig(**SIZES)), VOCABULARY), random_prompt(6)
    assert subject.groups == 2
    logits, expected = read(subject, tokens)[0], own_logits(subject.model, tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_a_model_whose_heads_were_grouped_wrongly_is_refused(monkeypatch):
    """A negative control: the comparison with a model's own forward pass detects it."""
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="logits differ by"):
        patch.setattr(attention, "grouped_mask", lambda mask, n: mask.repeat_interleave(n, 2))
        Runner(build(config("llama")), VOCABULARY)
    Runner(build(config("llama")), VOCABULARY)
