"""Tiny random heads that draft from a target's states."""

from typing import Any

import torch
from transformers import LlamaConfig

from specbench.decoding.drafters.drafter import HeadDrafter
from specbench.decoding.drafters.heads import KINDS, DraftHead, HeadConfig
from specbench.engine.pair import LoadedPair

SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim")


def random_head(pair: LoadedPair, kind: str = "eagle3", **changes: Any) -> DraftHead:
    """A head for a pair's target."""
    runner: Any = pair.target
    layer = LlamaConfig(**{name: getattr(runner.config, name) for name in SHAPE})
    shape = {"draft_vocabulary": layer.vocab_size} | changes
    layers = (0, 1, 1) if kind == "eagle3" else (runner.config.num_hidden_layers,)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return KINDS[kind](HeadConfig(layer, layers, layer.hidden_size, **shape))


def head_drafter(pair: LoadedPair, kind: str = "eagle3", **changes: Any) -> HeadDrafter:
    """The same, ready to draft."""
    runner: Any = pair.target
    return HeadDrafter(random_head(pair, kind, **changes), runner)
