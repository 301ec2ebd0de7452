"""What a pass of each model of a pair reads and computes, from its configuration alone."""

from __future__ import annotations

from typing import Any

import torch

from specbench.config import DUMMY, Loading
from specbench.engine.gguf import read_gguf
from specbench.engine.hub import gguf_path
from specbench.engine.loading import choose_dtype
from specbench.engine.memory import cache_bytes
from specbench.engine.pairs import PairSpec, shards, stored_bytes
from specbench.engine.sources import build_model, is_gguf, load_config
from specbench.pricing.costs import PassSize


def pass_sizes(spec: PairSpec, loading: Loading) -> dict[str, PassSize]:
    """Return the size of a pass by role; nothing is loaded but configurations.

    A configuration that the pair describes needs no hub. Weights have 16 bits, as on a GPU, unless
    the user or the pair names a type. Of an input embedding a pass reads only the rows of its
    tokens, so it counts only where it is the output embedding as well. A multiplication with a
    weight is two operations.

    Raises:
        UsageError: A configuration is not available.
    """
    dtype = choose_dtype(spec, loading, torch.device("cuda"))
    described: dict[str, Any] = {"load_format": DUMMY, "device_map": None, "quantization": None}
    here = loading.updated(**described)
    sizes = {}
    for role in spec.models:
        config = load_config(spec, role, here if role in spec.architecture else loading)
        cached = cache_bytes(config, dtype, 1)
        if is_gguf(spec, role):
            path = gguf_path(spec, role, loading)
            operations = 2 * sum(read_gguf(file).parameters for file in shards(path))
            sizes[role] = PassSize(stored_bytes(path), cached, operations)
            continue
        with torch.device("meta"):
            model: Any = build_model(config, dtype)
        weights = sum(weight.numel() for weight in model.parameters())
        if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
            weights -= model.get_input_embeddings().weight.numel()
        sizes[role] = PassSize(weights * dtype.itemsize, cached, 2 * weights)
    return sizes
