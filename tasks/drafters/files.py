"""Folders of trained modules, as ``specbench.decoding.modules.files`` and servers read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from specbench.decoding.modules import CONFIG, WEIGHTS
from specbench.decoding.modules.files import LAYER
from specbench.decoding.modules.module import DraftModule
from specbench.files import make_folder, write_atomically

#: What servers call each kind.
ARCHITECTURES = {"eagle3": "Eagle3Speculator", "mtp": "MTPDraftModel", "block": "BlockDraftModel"}


def save_module(
    module: DraftModule, folder: Path, verifier: Mapping[str, Any], drafts: int
) -> None:
    """Write a module in speculators' format, in bfloat16.

    ``verifier`` has the target's ``name_or_path`` and ``architectures``; servers make so many
    ``drafts`` by default.
    """
    config = module.config
    proposal = {"proposal_type": "greedy", "speculative_tokens": drafts}
    values = {
        "architectures": [ARCHITECTURES[module.kind]],
        "speculators_model_type": module.kind,
        "speculators_version": "0.3.0",
        **module.values(),
        "transformer_layer_config": {
            **{name: getattr(config.layer, name) for name in LAYER},
            **{"num_hidden_layers": 1, "rope_parameters": dict(config.layer.rope_parameters or {})},
            "tie_word_embeddings": False,
        },
        "speculators_config": {
            "algorithm": module.kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": dict(verifier),
        },
        "torch_dtype": "bfloat16",
    }
    weights = {
        name: tensor.detach().cpu().to(torch.bfloat16 if tensor.is_floating_point() else None)
        for name, tensor in module.state_dict().items()
    }
    make_folder(folder)
    write_atomically(folder / WEIGHTS, save(weights))
    write_atomically(folder / CONFIG, json.dumps(values, indent=2) + "\n")
