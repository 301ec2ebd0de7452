"""The memory that a pair needs, compared with the free memory, and the bytes that rounds read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig

from specbench.engine.cache import cache_bytes, capacity_for, context_length
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
# Below the ratio of any tokenizer of these pairs on plain text, so memory is not underestimated.
CHARACTERS_PER_TOKEN = 2.5


class Need(NamedTuple):
    """Memory that one model needs, in bytes; activations and logits are not counted."""

    weights: float  # parameters and buffers
    cache: float  # keys and values of all positions


def model_need(
    config: PretrainedConfig,
    dtype: torch.dtype,
    tokens: int,
    rows: int = 1,
    bits: float | None = None,
    weights: float | None = None,
) -> Need:
    """Return the memory for ``rows`` texts of ``tokens`` tokens that are decoded together.

    ``bits`` is the size of a quantised weight, ``weights`` of all in bytes, None to count them.
    """
    return Need(
        weights=_weights(config, dtype, bits) if weights is None else weights,
        cache=rows * cache_bytes(config, dtype, capacity_for(tokens)),
    )


def estimate_tokens(prompts: Iterable[str]) -> int:
    """Return an upper estimate of the tokens in the longest prompt."""
    return int(max(map(len, prompts)) / CHARACTERS_PER_TOKEN)


def decoding_needs(
    spec: PairSpec,
    loading: Loading,
    prompt_tokens: int,
    new_tokens: int,
    draft_length: int,
    rows: int = 1,
) -> dict[str, Need]:
    """Return the memory of each model; prompts are cut to the context."""
    dtype = choose_dtype(spec, loading, choose_device(loading.device))
    context = context_length(load_config(spec, "target", loading)) or math.inf
    tokens = int(min(prompt_tokens + new_tokens, context)) + draft_length + 1
    needs = {}
    for role in spec.models:
        config = load_config(spec, role, loading)
        bits = _bits(config, loading.quantization if role == "target" else None)
        # GGUF files are mapped.
        weights = stored_bytes(gguf_path(spec, role)) if is_gguf(spec, role) else None
        needs[role] = model_need(config, dtype, tokens, rows, bits, weights)
    return needs


def check_memory(
    spec: PairSpec,
    loading: Loading,
    prompt_tokens: int,
    new_tokens: int,
    draft_length: int = 0,
    rows: int = 1,
    purpose: str = "to decode",
) -> float:
    """Compare weights and caches with the free memory before loading; return their bytes."""
    needs = decoding_needs(spec, loading, prompt_tokens, new_tokens, draft_length, rows)
    device = choose_device("cpu" if spec.gguf else loading.device)
    free = available_memory(device, spread=loading.device_map is not None)
    parts = {role: need.weights for role, need in needs.items()}
    parts["caches"] = sum(need.cache for need in needs.values())
    total = sum(parts.values())
    if free is None or total <= free:
        return total
    sizes = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    ways = ["a smaller --batch-size"] if rows > 1 else []
    if not spec.gguf and choose_dtype(spec, loading, device).itemsize > 2:
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
