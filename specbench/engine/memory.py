"""How much memory a pair will need, compared with what is free before anything is loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from specbench.engine.loading import choose_device, choose_dtype
from specbench.engine.runner import capacity_for
from specbench.engine.settings import Loading
from specbench.engine.sources import build_model, load_config
from specbench.errors import UsageError
from specbench.pairs.checked import ROLES
from specbench.pairs.registry import PairSpec

GIB = 2**30
BITS = {"8bit": 8, "4bit": 4.5}  # of a quantised weight, with its share of the scales
# Vocabulary-wide float32 rows held at once per drafted token: logits, p, q, the unprocessed
# distributions, the residuals, and what sorting and cumulative sums take.
VOCABULARY_ROWS = 12
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class Need(NamedTuple):
    """Bytes that one model needs.

    Attributes:
        weights: Parameters and buffers.
        cache: Keys and values of all positions.
        work: Masks, rotary tables, the activations of reading the prompt, and the logits.
    """

    weights: float
    cache: float
    work: float


def model_need(
    config: PretrainedConfig,
    dtype: torch.dtype,
    prompt_tokens: int,
    new_tokens: int,
    draft_length: int,
    bits: float | None = None,
) -> Need:
    """Estimate what a model needs to decode one sequence.

    Args:
        config: Of its decoder.
        dtype: Number format of weights and cache.
        prompt_tokens: Longest prompt.
        new_tokens: Most new tokens.
        draft_length: Drafted tokens per round, N.
        bits: Bits of a quantised weight; None where none is.
    """
    with torch.device("meta"):
        model = build_model(config, dtype)
    capacity = capacity_for(prompt_tokens + new_tokens + draft_length + 1)
    kinds = len(set(getattr(config, "layer_types", None) or ["full_attention"]))
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    states = 4 * config.hidden_size + 3 * config.intermediate_size
    states += 2 * width * config.num_attention_heads
    return Need(
        weights=_weights(model, bits),
        cache=2 * config.num_hidden_layers * heads * width * capacity * dtype.itemsize,
        work=kinds * (capacity**2 + 2 * width * capacity * dtype.itemsize)
        + states * prompt_tokens * dtype.itemsize
        + VOCABULARY_ROWS * (draft_length + 1) * config.vocab_size * 4,
    )


def check_memory(
    spec: PairSpec, loading: Loading, prompt_tokens: int, new_tokens: int, draft_length: int
) -> None:
    """Compare what a pair will need with what is free; look at no weights.

    Args:
        spec: The pair.
        loading: How it will be loaded.
        prompt_tokens: Longest prompt.
        new_tokens: Most new tokens.
        draft_length: Drafted tokens per round, N.

    Raises:
        UsageError: It will not fit, or the configuration of a model cannot be had.
    """
    device = choose_device(loading.device)
    free = available_memory(device, spread=loading.device_map is not None)
    if free is None:
        return
    dtype = choose_dtype(spec, loading, device)
    needs = {}
    for role in ROLES:
        config = load_config(spec, role, loading)
        bits = _bits(config, loading.quantization if role == "target" else None)
        sizes = (prompt_tokens, new_tokens, draft_length)
        needs[role] = model_need(config, dtype, *sizes, bits=bits)
    total = sum(map(sum, needs.values()))
    if total > free:
        parts = ", ".join(
            [f"{role} {_gib(need.weights)}" for role, need in needs.items()]
            + [f"caches {_gib(sum(need.cache for need in needs.values()))}"]
            + [f"the rest {_gib(sum(need.work for need in needs.values()))}"]
        )
        raise UsageError(
            f"{spec.name} needs {_gib(total)} GiB ({parts}) and {device} has {_gib(free)} free: "
            f"{_remedies(dtype, device, loading)}"
        )


def available_memory(device: torch.device, spread: bool = False) -> int | None:
    """Return the bytes that are free on a device; None where that cannot be found out.

    Args:
        device: Where the models are to be.
        spread: Count all GPUs, as a device map may use them all.
    """
    if device.type != "cuda":
        return _main_memory()
    if spread:
        return sum(map(_gpu_memory, range(torch.cuda.device_count())))
    return _gpu_memory(device)


def free_memory() -> None:
    """Give back what a failed sample left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _weights(model: PreTrainedModel, bits: float | None) -> float:
    """Bytes of parameters and buffers; quantised are the linear layers but the last."""
    quantised: set[int] = set()
    if bits is not None:
        output = model.get_output_embeddings()
        layers = (m for m in model.modules() if isinstance(m, nn.Linear) and m is not output)
        quantised = {id(layer.weight) for layer in layers}
    return sum(
        tensor.numel() * (bits / 8 if bits and id(tensor) in quantised else tensor.element_size())
        for tensor in (*model.parameters(), *model.buffers())
    )


def _bits(config: PretrainedConfig, asked: str | None) -> float | None:
    """Bits of a weight: as asked for, or as the checkpoint says of itself."""
    if asked is not None:
        return BITS[asked]
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    said = stored if isinstance(stored, dict) else stored.to_dict()
    four = said.get("load_in_4bit") or said.get("bits") == 4
    return BITS["4bit" if four else "8bit"]


def _gpu_memory(device: torch.device | int) -> int:
    """Free bytes of a GPU and those that this process holds without using them."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def _main_memory() -> int | None:
    """What the system has to give, and no more than what is left to this container."""
    return min([*_system_memory(), *_container_memory()], default=None)


def _system_memory() -> Iterator[int]:
    try:
        lines = MEMINFO.read_text().splitlines()
        yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, IndexError, StopIteration):
        return


def _container_memory() -> Iterator[int]:
    """The limit of the control group, less what is used and cannot be given back."""
    try:
        limit, used = (
            int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current")
        )
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        yield limit - used + int(counts["inactive_file"])
    except (OSError, ValueError, KeyError):  # no such group, or its limit is "max"
        return


def _remedies(dtype: torch.dtype, device: torch.device, loading: Loading) -> str:
    ways = ["--dtype bfloat16"] if dtype.itemsize > 2 else []
    if device.type == "cuda" and not loading.dummy:
        several = torch.cuda.device_count() > 1
        ways += ["--device-map auto"] if several and loading.device_map is None else []
        ways += ["--quantization 8bit"] if loading.quantization is None else []
    return f"choose {', '.join([*ways, 'a smaller pair'])} or shorter prompts"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
