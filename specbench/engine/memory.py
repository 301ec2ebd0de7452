"""The memory that a pair needs, compared with the free memory, and the bytes that rounds read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig

from specbench.engine.cache import cache_bytes, capacity_for, context_length, head_sizes
from specbench.engine.device import choose_device
from specbench.engine.hardware import available_memory
from specbench.engine.hub import gguf_path
from specbench.engine.loading import choose_dtype
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec, stored_bytes
from specbench.engine.sources import build_model, is_gguf, load_config
from specbench.errors import UsageError

GIB = 2**30
BITS = {"8bit": 8, "4bit": 4.5}  # per quantised weight, including its share of the scales
# Vocabulary-wide float32 rows held at once per drafted token: logits, p, q, the unprocessed
# distributions, the residuals, and the buffers of sorting and cumulative sums.
VOCABULARY_ROWS = 12
# The same per text in training: logits, p, q, their mixture, their difference, and the float64
# sums of the draw.
TEXT_ROWS = 9
# Copies of the hidden states of all tokens of a batch of roll-outs: two batches are scored, and
# concatenation doubles them.
KEPT = 4
# Below the ratio of any tokenizer of these pairs on plain text, so memory is not underestimated.
CHARACTERS_PER_TOKEN = 2.5


class Need(NamedTuple):
    """Memory that one model needs, in bytes."""

    weights: float  # parameters and buffers
    cache: float  # keys and values of all positions
    work: float  # masks, rotary tables, activations of the prefill, logits


def model_need(
    config: PretrainedConfig,
    dtype: torch.dtype,
    prompt_tokens: int,
    new_tokens: int,
    draft_length: int,
    rows: int = 1,
    bits: float | None = None,
    weights: float | None = None,
) -> Need:
    """Estimate the memory for decoding ``rows`` texts together, with prompts prefilled one by one.

    ``prompt_tokens`` is the length of the longest prompt, ``new_tokens`` the limit on new tokens
    and ``draft_length`` N. ``bits`` is the size of a quantised weight, None without quantisation.
    ``weights`` is the size of all weights in bytes, None to count them.
    """
    capacity = capacity_for(prompt_tokens + new_tokens + draft_length + 1)
    states = 4 * config.hidden_size + 3 * config.intermediate_size
    states += 2 * config.num_attention_heads * head_sizes(config)[1]
    return Need(
        weights=_weights(config, dtype, bits) if weights is None else weights,
        cache=rows * cache_bytes(config, dtype, capacity),
        work=_tables(config, dtype, capacity)
        + states * prompt_tokens * dtype.itemsize
        + rows * VOCABULARY_ROWS * (draft_length + 1) * config.vocab_size * 4,
    )


def training_need(
    config: PretrainedConfig,
    dtype: torch.dtype,
    prompt_tokens: int,
    new_tokens: int,
    texts: int,
    bits: float | None = None,
    weights: float | None = None,
) -> Need:
    """Estimate the memory for sampling ``texts`` in lockstep to train a head.

    The update itself uses neither cache nor vocabulary and takes little memory.
    """
    capacity = prompt_tokens + new_tokens
    layers, size = config.num_hidden_layers, dtype.itemsize
    heads = config.num_attention_heads * head_sizes(config)[1]
    attention = 2 * config.hidden_size + 4 * heads + prompt_tokens
    mlp = 4 * config.hidden_size + 3 * config.intermediate_size
    reading = texts * prompt_tokens * (max(attention, mlp) * size + 2 * prompt_tokens)
    return Need(
        weights=_weights(config, dtype, bits) if weights is None else weights,
        # While ended texts are dropped, one layer exists twice.
        cache=texts * cache_bytes(config, dtype, capacity) * (layers + 1) / layers,
        work=_tables(config, dtype, capacity)
        + KEPT * texts * new_tokens * config.hidden_size * 4
        + max(reading, TEXT_ROWS * texts * config.vocab_size * 4),
    )


def estimate_tokens(prompts: Iterable[str]) -> int:
    """Return an upper estimate of the tokens in the longest prompt."""
    return int(max(map(len, prompts)) / CHARACTERS_PER_TOKEN)


def check_memory(
    spec: PairSpec,
    loading: Loading,
    prompt_tokens: int,
    new_tokens: int,
    draft_length: int,
    rows: int = 1,
) -> None:
    """Compare the memory that decoding needs with the free memory, before loading weights.

    See ``model_need`` for the sizes.

    Raises:
        UsageError: The pair does not fit, or a model's configuration is not available.
    """
    needs = decoding_needs(spec, loading, prompt_tokens, new_tokens, draft_length, rows)
    _require(spec, loading, needs, sum(need.work for need in needs.values()), "to decode", rows)


def decoding_needs(
    spec: PairSpec,
    loading: Loading,
    prompt_tokens: int,
    new_tokens: int,
    draft_length: int,
    rows: int = 1,
) -> dict[str, Need]:
    """Estimate the memory of each model; prompts are cut to the context."""
    context = context_length(load_config(spec, "target", loading))
    room = (context or math.inf) - new_tokens - draft_length - 1
    prompt = int(max(min(prompt_tokens, room), 0))
    return _needs(spec, loading, model_need, prompt, new_tokens, draft_length, rows)


def check_training_memory(
    spec: PairSpec, loading: Loading, prompt_tokens: int, new_tokens: int, texts: int
) -> float:
    """Compare the bytes that training a head needs with the free ones, and return them.

    See ``check_memory``.
    """
    needs = _needs(spec, loading, training_need, prompt_tokens, new_tokens, texts)
    # The models run one after the other, and each frees its working memory.
    work = max(need.work for need in needs.values())
    return _require(spec, loading, needs, work, "to train a head")


def _needs(
    spec: PairSpec, loading: Loading, need: Callable[..., Need], *sizes: int
) -> dict[str, Need]:
    dtype = choose_dtype(spec, loading, choose_device(loading.device))
    needs = {}
    for role in spec.models:
        config = load_config(spec, role, loading)
        bits = _bits(config, loading.quantization if role == "target" else None)
        # GGUF files are mapped.
        weights = stored_bytes(gguf_path(spec, role, loading)) if is_gguf(spec, role) else None
        needs[role] = need(config, dtype, *sizes, bits=bits, weights=weights)
    return needs


def _require(
    spec: PairSpec,
    loading: Loading,
    needs: Mapping[str, Need],
    work: float,
    purpose: str,
    rows: int = 1,
) -> float:
    """Return the bytes that a pair needs; raise ``UsageError`` if more than is free, if known."""
    device = choose_device(loading.device)
    free = available_memory(device, spread=loading.device_map is not None)
    parts = {role: need.weights for role, need in needs.items()}
    parts |= {"caches": sum(need.cache for need in needs.values()), "the rest": work}
    total = sum(parts.values())
    if free is None or total <= free:
        return total
    sizes = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    ways = ["a smaller --batch-size"] if rows > 1 else []
    if choose_dtype(spec, loading, device).itemsize > 2:
        ways.append("--dtype bfloat16")
    if device.type == "cuda" and not loading.dummy:
        if torch.cuda.device_count() > 1 and loading.device_map is None:
            ways.append("--device-map auto")
        if loading.quantization is None:
            ways.append("--quantization 8bit")
    raise UsageError(
        f"{spec.name} needs {total / GIB:.1f} GiB {purpose} ({sizes}) and {device} has "
        f"{free / GIB:.1f} free: choose {', '.join([*ways, 'a smaller pair'])} or shorter prompts"
    )


def _weights(config: PretrainedConfig, dtype: torch.dtype, bits: float | None) -> float:
    """Bytes of parameters and buffers; all linear layers but the last are quantised."""
    with torch.device("meta"):
        model = build_model(config, dtype)
    quantised: set[int] = set()
    if bits is not None:
        output = model.get_output_embeddings()
        layers = (m for m in model.modules() if isinstance(m, nn.Linear) and m is not output)
        quantised = {id(layer.weight) for layer in layers}
    return sum(
        tensor.numel() * (bits / 8 if bits and id(tensor) in quantised else tensor.element_size())
        for tensor in (*model.parameters(), *model.buffers())
    )


def _tables(config: PretrainedConfig, dtype: torch.dtype, capacity: int) -> int:
    """Bytes of masks and rotary tables."""
    kinds = len(set(getattr(config, "layer_types", None) or ["full_attention"]))
    return kinds * (capacity**2 + 2 * head_sizes(config)[1] * capacity * dtype.itemsize)


def _bits(config: PretrainedConfig, requested: str | None) -> float | None:
    """Bits per weight: as requested, else as in the checkpoint's configuration."""
    if requested is not None:
        return BITS[requested]
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    settings = stored if isinstance(stored, dict) else stored.to_dict()
    four = settings.get("load_in_4bit") or settings.get("bits") == 4
    return BITS["4bit" if four else "8bit"]


def bytes_per_round(pair: LoadedPair, draft_length: int, texts: int, tokens: float) -> float:
    """Return the bytes that a round reads: one target pass and N draft steps."""
    passes = [(pair.target, 1), (pair.draft, draft_length)]
    return sum(n * (m.weight_bytes() + texts * m.cache_bytes(tokens)) for m, n in passes)
