"""Tiny random heads that draft from a target's states."""

from typing import Any

import torch
from transformers import LlamaConfig

from specbench.drafters.head import EagleConfig, EagleHead, EagleRunner
from specbench.engine.pair import LoadedPair

LAYERS = (0, 1, 1)
SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim")


def random_head(pair: LoadedPair, **changes: Any) -> EagleHead:
    """A head for a pair's target."""
    runner: Any = pair.target
    layer = LlamaConfig(**{name: getattr(runner.config, name) for name in SHAPE})
    shape = {"draft_vocabulary": layer.vocab_size} | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = EagleHead(EagleConfig(layer, LAYERS, layer.hidden_size, **shape))
    return head


def head_runner(pair: LoadedPair, **changes: Any) -> EagleRunner:
    """The same, ready to draft."""
    runner: Any = pair.target
    return EagleRunner(random_head(pair, **changes), runner)
