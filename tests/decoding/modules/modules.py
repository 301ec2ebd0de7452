"""Tiny random modules that draft from a target's states."""

from typing import Any

import torch
from transformers import LlamaConfig

from specbench.decoding.modules.loaded import LoadedModule
from specbench.decoding.modules.module import MODULES, DraftModule, ModuleConfig
from specbench.engine.pair import LoadedPair

SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim")


def random_module(pair: LoadedPair, kind: str = "eagle3", **changes: Any) -> DraftModule:
    """A module for a pair's target."""
    runner: Any = pair.target
    layer = LlamaConfig(**{name: getattr(runner.config, name) for name in SHAPE})
    shape = {"draft_vocabulary": layer.vocab_size} | changes
    layers = (0, 1, 1) if kind == "eagle3" else (runner.config.num_hidden_layers,)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODULES[kind](ModuleConfig(layer, layers, layer.hidden_size, **shape))


def module_drafter(pair: LoadedPair, kind: str = "eagle3", **changes: Any) -> LoadedModule:
    """The same, ready to draft."""
    runner: Any = pair.target
    return LoadedModule(random_module(pair, kind, **changes), runner)
