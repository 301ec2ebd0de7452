"""Folders of EAGLE-3 heads: `speculators`' format, and the flat one of SGLang and SpecForge.

``config.json`` has the shapes and ``model.safetensors`` the weights; both are checked before a
weight is loaded. vLLM reads the same folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from specbench.drafters.head import EagleConfig, EagleHead, EagleRunner
from specbench.engine.runner import Runner
from specbench.errors import UsageError
from specbench.files import clear_errors, make_folder, write_atomically

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LAYER = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
)
ROTARY = ("rope_parameters", "rope_theta", "rope_scaling")  # the last two in older files
UNUSED = ("t2d",)  # which the draft's tokens imply
Shapes = dict[str, tuple[int, ...]]


def default_layers(layers: int) -> tuple[int, int, int]:
    """Return the layers that heads read by default of a target with so many."""
    return 2, layers // 2, layers - 3


def eagle_config(values: Mapping[str, Any], target: Any, stored: Shapes) -> EagleConfig:
    """Return the shape of a head from its ``config.json`` and the shapes of its tensors.

    ``target`` is the target's configuration.

    Raises:
        UsageError: It is not an EAGLE-3 head with one Llama layer, or is for another target.
    """
    layer = values.get("transformer_layer_config") or values
    kinds = {values.get("speculators_model_type", "eagle3"), layer.get("model_type", "llama")}
    named = values.get("architectures") or ["unknown"]
    if kinds != {"eagle3", "llama"} or not str(named[0]).lower().replace("-", "").count("eagle3"):
        raise UsageError(
            f"its architecture {named[0]} ({', '.join(sorted(map(str, kinds)))}) is not an EAGLE-3 "
            "head with a Llama layer: choose one in the format of speculators or SpecForge"
        )
    if layer.get("attention_bias"):
        raise UsageError("its attention has biases: choose a head without")
    shape = LlamaConfig(**{name: layer[name] for name in LAYER + ROTARY if name in layer})
    nested = (values.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    layers = values.get("eagle_aux_hidden_state_layer_ids") or nested
    config = EagleConfig(
        shape,
        tuple(layers or default_layers(target.num_hidden_layers)),
        values.get("target_hidden_size") or shape.hidden_size,
        values.get("draft_vocab_size") or shape.vocab_size,
        own_embedding="embed_tokens.weight" in stored,
        own_output="lm_head.weight" in stored,
        **{name: bool(values.get(name, False)) for name in OPTIONS},
    )
    depth = target.num_hidden_layers
    for what, own, other in (
        ("states of width", config.target_hidden, target.hidden_size),
        ("a vocabulary of", shape.vocab_size, target.vocab_size),
        ("layers up to", max(config.layers), min(max(config.layers), depth)),
    ):
        if own != other:
            raise UsageError(
                f"it reads {what} {own}, and the target has {other}: choose a head of this target"
            )
    return config


def stored_name(name: str) -> str:
    """Return a tensor's name in speculators' format."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)


def build_head(values: Mapping[str, Any], target: Any, stored: Shapes) -> EagleHead:
    """Return a head without values that has the tensors of a file.

    Raises:
        UsageError: The head is not supported, or the file's tensors do not fit it.
    """
    stored = {stored_name(name): shape for name, shape in stored.items()}
    config = eagle_config(values, target, stored)
    with torch.device("meta"):
        head = EagleHead(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    for name in sorted(wanted.keys() | stored.keys() - {*UNUSED}):
        if wanted.get(name) != stored.get(name):
            has, wants = (list(s[name]) if name in s else "none" for s in (stored, wanted))
            raise UsageError(
                f"{WEIGHTS} does not fit {CONFIG}: {name} has the shape {has} instead of {wants}; "
                "download or train the head again"
            )
    return head


def load_eagle(folder: Path, target: Runner) -> EagleRunner:
    """Load a head for a target.

    Raises:
        UsageError: The folder has no such head, or one for another target.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        with safe_open(folder / WEIGHTS, "pt") as file:
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        head = build_head(values, target.config, stored)
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError, AttributeError) as error:
        raise UsageError(
            f"--drafter {folder}: {error}: name a folder with {CONFIG} and {WEIGHTS} of a head"
        ) from error
    except UsageError as error:
        raise UsageError(f"--drafter {folder}: {error}") from error
    named = {stored_name(name): tensor for name, tensor in weights.items()}
    wanted = {name: named[name] for name in head.state_dict()}
    head.load_state_dict(wanted, assign=True)
    return EagleRunner(head, target)


def save_eagle(head: EagleHead, folder: Path, verifier: Mapping[str, Any], drafts: int) -> None:
    """Write a head in speculators' format, in bfloat16.

    Args:
        head: The head.
        folder: Where to write it.
        verifier: ``name_or_path`` and ``architectures`` of the target.
        drafts: The number of drafts that servers use by default.
    """
    config, proposal = head.config, {"proposal_type": "greedy", "speculative_tokens": drafts}
    values = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": config.draft_vocabulary,
        "target_hidden_size": config.target_hidden,
        "eagle_aux_hidden_state_layer_ids": list(config.layers),
        **{name: getattr(config, name) for name in OPTIONS},
        "transformer_layer_config": {
            **{name: getattr(config.layer, name) for name in LAYER},
            **{"num_hidden_layers": 1, "rope_parameters": dict(config.layer.rope_parameters or {})},
            "tie_word_embeddings": False,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": dict(verifier),
        },
        "torch_dtype": "bfloat16",
    }
    weights = {
        name: tensor.detach().cpu().to(torch.bfloat16 if tensor.is_floating_point() else None)
        for name, tensor in head.state_dict().items()
    }
    with clear_errors(folder):
        make_folder(folder)
        save_file(weights, folder / WEIGHTS)
        write_atomically(folder / CONFIG, json.dumps(values, indent=2) + "\n")
