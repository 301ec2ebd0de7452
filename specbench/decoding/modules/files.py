"""Folders of modules: `speculators`' format, and the flat one of SGLang and SpecForge for EAGLE-3.

``config.json`` has the shapes and ``model.safetensors`` the weights; both are checked before a
weight is loaded. vLLM reads the same folders of EAGLE-3 modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specbench.decoding.modules import CONFIG, WEIGHTS
from specbench.decoding.modules.module import MODULES, DraftModule, require_layers
from specbench.errors import UsageError

LAYER = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
)
ROTARY = ("rope_parameters", "rope_theta", "rope_scaling")  # the last two in older files
UNUSED = ("t2d",)  # which the draft's tokens imply
Shapes = dict[str, tuple[int, ...]]


def configured(values: Mapping[str, Any], target: Any, stored: Shapes) -> DraftModule:
    """Return a module without values from its ``config.json`` and the shapes of its tensors.

    ``target`` is the target's configuration.

    Raises:
        UsageError: It is no module of a known kind with one Llama layer, or is for another target.
    """
    layer = values.get("transformer_layer_config") or values
    architecture = str((values.get("architectures") or ["unknown"])[0])
    flat = "eagle3" if "eagle3" in architecture.lower() else "unknown"
    name, model = values.get("speculators_model_type", flat), layer.get("model_type", "llama")
    if name not in MODULES or model != "llama":
        raise UsageError(
            f"its architecture {architecture} ({name}, {model}) is none of {', '.join(MODULES)} "
            "with a Llama layer: choose a module in the format of speculators or SpecForge"
        )
    kind, depth = MODULES[name], target.num_hidden_layers
    if layer.get("attention_bias"):
        raise UsageError("its attention has biases: choose a module without")
    sizes = {name: layer[name] for name in LAYER + ROTARY if name in layer}
    # Without a context of its own, a module reads as far as the target does.
    sizes.setdefault("max_position_embeddings", target.max_position_embeddings)
    shape = LlamaConfig(**sizes)
    rope_type = (shape.rope_parameters or {}).get("rope_type", "default")
    for name, value, supported in (
        ("hidden_act", shape.hidden_act, ("silu",)),
        ("rope_type", rope_type, ("default", *ROPE_INIT_FUNCTIONS)),
        ("head_dim modulo 2", (shape.head_dim or 0) % 2, (0,)),
    ):
        if value not in supported:
            accepted = " or ".join(map(str, supported))
            raise UsageError(f"its {name} is {value!r}: choose a module with {accepted}")
    config = kind.configured(values, shape, depth, stored)
    for noun, of_module, of_target in (
        ("states of width", config.target_hidden, target.hidden_size),
        ("a vocabulary of", shape.vocab_size, target.vocab_size),
    ):
        if of_module != of_target:
            raise UsageError(
                f"it reads {noun} {of_module}, and the target has {of_target}: choose a module of "
                "this target"
            )
    require_layers(config.layers, depth)
    with torch.device("meta"):
        return kind(config)


def stored_name(name: str) -> str:
    """Return a tensor's name in speculators' format."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)


def build_module(values: Mapping[str, Any], target: Any, stored: Shapes) -> DraftModule:
    """Return a module without values that has the tensors of a file.

    Raises:
        UsageError: The module is not supported, or the file's tensors do not fit it.
    """
    stored = {stored_name(name): shape for name, shape in stored.items()}
    module = configured(values, target, stored)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name in sorted(expected.keys() | stored.keys() - {*UNUSED}):
        if expected.get(name) != stored.get(name):
            has, wants = (list(s[name]) if name in s else "none" for s in (stored, expected))
            raise UsageError(
                f"{WEIGHTS} does not fit {CONFIG}: {name} has the shape {has} instead of {wants}; "
                "download or train the module again"
            )
    return module


def load_module(folder: Path, target: Any) -> DraftModule:
    """Load a module for a target with this configuration.

    Raises:
        UsageError: The folder has no such module, or one for another target.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        with safe_open(folder / WEIGHTS, "pt") as file:
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        module = build_module(values, target, stored)
        weights = {stored_name(n): tensor for n, tensor in load_file(folder / WEIGHTS).items()}
        require_weights(weights, module)
        module.load_state_dict({name: weights[name] for name in module.state_dict()}, assign=True)
    except (
        *(OSError, ValueError, SafetensorError, AttributeError, TypeError, StrictDataclassError),
        *(KeyError, ArithmeticError, RuntimeError),  # RecursionError is a RuntimeError
    ) as error:
        raise UsageError(
            f"--drafter {folder}: {error}: name a folder with {CONFIG} and {WEIGHTS} of a module"
        ) from error
    except UsageError as error:
        raise UsageError(f"--drafter {folder}: {error}") from error
    return module


def require_weights(weights: Mapping[str, torch.Tensor], module: DraftModule) -> None:
    """Check the types of a module's tensors, and the tokens that its vocabulary stands for.

    Raises:
        UsageError: A weight is not a floating number, or ``d2t`` does not name different tokens of
            the target's vocabulary.
    """
    for name, _ in module.named_parameters():
        if not weights[name].is_floating_point():
            raise UsageError(f"{name} has the type {weights[name].dtype}: store floating numbers")
    if isinstance(offsets := weights.get("d2t"), torch.Tensor) and hasattr(module, "d2t"):
        if offsets.dtype != torch.long:
            raise UsageError(f"d2t has the type {offsets.dtype}: store it as int64")
        tokens = (offsets + torch.arange(len(offsets))).tolist()
        vocabulary = module.config.layer.vocab_size
        if len({*tokens}) < len(tokens) or not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise UsageError(
                f"d2t must lead to different tokens from 0 to {vocabulary - 1}: convert the module "
                "again"
            )
