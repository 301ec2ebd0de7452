"""Weights in files against the places that a model has for them, and who can read their types."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoHfQuantizer
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from specbench.engine.pairs import PairSpec
from specbench.errors import UsageError, cause, first_line, listed, require, shown

ADAPTER = "adapter_config.json"
EMBEDDING = "embed_tokens.weight"  # the end of the table's name
# Parts of a checkpoint beside the decoder: towers and projectors of other modalities, and layers
# that predict several tokens.
_OTHER_PARTS = re.compile(
    r"(^|[._])(vision|visual|vit|image|images?_newline|audio|video|speech|sam|siglip|clip|tower|"
    r"mm|multi_?modal|projector|connector|aligner|resampler|perceiver|merger|talker|token2wav|"
    r"code2wav|mtp|nextn|eagle|medusa|draft)(?=[._0-9]|$)"
)
# Buffers that a model computes, and scales of a quantised cache, which no cache here is.
_COMPUTED = re.compile(
    r"\.(inv_freq|cos_cached|sin_cached|masked_bias|attn\.bias|position_ids)$"
    r"|[._](k|v|kv|q|prob)(_proj)?[._](k_|v_|q_|output_|cache_)?(scale|zero_point)$"
)
# Packages by the method of a quantised folder; the names as their authors write them.
_QUANTISERS = {
    "gptq": ("GPTQ", "accelerate", "gptqmodel", "optimum"),
    "awq": ("AWQ", "accelerate", "gptqmodel"),
    "fp8": ("FP8", "accelerate"),
    "compressed-tensors": ("compressed-tensors", "accelerate", "compressed_tensors"),
    "bitsandbytes": ("bitsandbytes", "accelerate", "bitsandbytes"),
    "mxfp4": ("MXFP4", "accelerate"),
}

log = logging.getLogger(__name__)


def check_weights(spec: PairSpec, role: str, config: PretrainedConfig) -> None:
    """Refuse a folder with incomplete weights, or those of another model, by their headers."""
    folder = Path(spec.models[role])
    if not folder.is_dir():
        return
    files, index = sorted(folder.glob("*.safetensors")), folder / SAFE_WEIGHTS_INDEX_NAME
    file, shapes = index, {}
    try:
        if index.is_file():
            parts = json.loads(index.read_bytes())["weight_map"].values()
            files = [folder / part for part in sorted({*parts})]
        for file in files:
            with safe_open(file, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (no mapping)
                    if name.endswith(EMBEDDING):
                        shapes[file] = weights.get_slice(name).get_shape()
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"cannot read {file} ({cause(error)}): download the model again"
        ) from error
    require(
        not (whole := folder / SAFE_WEIGHTS_NAME).is_file() or whole in files,
        f"{folder} has {SAFE_WEIGHTS_NAME} beside the files of {index.name}: remove the older ones",
    )
    require(bool(files) or any(folder.glob("*.bin")), f"{folder} has no weights: download them")
    expected = [config.vocab_size, config.hidden_size]
    for file, shape in shapes.items():
        require(
            shape == expected or getattr(config, "quantization_config", None) is not None,
            f"{file} holds another model than its config.json (embeddings of {shape}, not of "
            f"{expected}): download the model again",
        )


def require_no_adapter(name: str) -> None:
    """Refuse a folder with an adapter, which nothing here applies to a model's weights."""
    file = Path(name) / ADAPTER
    if not file.is_file():
        return
    alone = not (Path(name) / "config.json").is_file()
    raise UsageError(
        f"{name} holds an adapter ({ADAPTER})"
        + (", not a model" if alone else " beside its model, which would be left out")
        + ": merge it into the model's weights"
        + ("" if alone else ", or move it elsewhere to measure the model without it")
    )


def require_place(name: str, model: PreTrainedModel, unexpected: Collection[str]) -> None:
    """Refuse weights in a file that belong to the decoder, which has no place for them.

    These are scales, biases, adapters and further layers. Weights of other parts, such as a vision
    tower, are not needed; a part that is not known is noted.
    """
    config: Any = model.config
    if getattr(config, "quantization_config", None) is not None:
        return  # its quantiser reads them
    modules = dict(model.named_modules())
    last = config.num_hidden_layers + (getattr(config, "num_nextn_predict_layers", None) or 0)
    inside: list[str] = []
    beside: list[str] = []
    for key in sorted(unexpected):
        layer = re.search(r"\.(\d+)\.", key)
        is_next = layer is not None and config.num_hidden_layers <= int(layer[1]) < last
        if _COMPUTED.search(key) or _OTHER_PARTS.search(key) or is_next:
            continue
        parents = key.split(".")[:-1]
        within = [".".join(parents[:n]) for n in range(1, len(parents) + 1)]
        owner = max((path for path in within if path in modules), key=len, default="")
        (beside if owner in ("", model.base_model_prefix) else inside).append(key)
    if inside:
        raise UsageError(
            f"{name} has {_count(inside)} that the {config.model_type} model of its "
            f"config.json has no place for ({_examples(inside)}), so it would be another model: "
            "correct config.json, or give a model that is not quantised and has its adapters merged"
        )
    if beside:
        log.warning(f"{name} has {_count(beside)} without use ({_examples(beside)})")


def _count(keys: list[str]) -> str:
    return "1 weight" if len(keys) == 1 else f"{len(keys)} weights"


def _examples(keys: list[str]) -> str:
    return listed(keys[:2]) + (" and others" if keys[2:] else "")


def require_quantiser(
    name: str, config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> None:
    """Refuse a quantised model that cannot be loaded here, with the reason; others pass."""
    if (settings := getattr(config, "quantization_config", None)) is None:
        return
    values: dict[str, Any] = settings if isinstance(settings, dict) else settings.to_dict()
    bits = "bitsandbytes" if {"load_in_4bit", "load_in_8bit"} & values.keys() else ""
    method = str(values.get("quant_method") or bits)
    shown_method, *packages = _QUANTISERS.get(method, (shown(method), "accelerate"))
    prefix = f"{name} is quantised with {shown_method}"
    other = "give the model in bfloat16, or a server that runs it (`run --server`)"
    is_known = method in AUTO_QUANTIZER_MAPPING or method == "bitsandbytes"
    require(is_known, f"{prefix}, which Transformers does not load: {other}")
    missing = [package for package in packages if find_spec(package) is None]
    require(
        not missing,
        f"{prefix}, which needs {listed(missing)}, not installed here: install "
        f"{'it' if len(missing) == 1 else 'them'}, or {other}",
    )
    try:
        quantiser = AutoHfQuantizer.from_config(values, pre_quantized=True)
        quantiser.validate_environment(device_map={"": device}, dtype=dtype)
    except (ImportError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{prefix}, which fails on {device} ({first_line(error)}): {other}"
        ) from error
