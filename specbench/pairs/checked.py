"""What a table of a pair file may hold; the first thing wrong is told with its place."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from specbench.errors import UsageError
from specbench.words import unknown

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
ROLES = ("target", "draft")

_NAME = re.compile(r"\w[\w.+-]*")  # also names folders
_PAIR: dict[str, type] = {
    "description": str,
    "target": str,
    "draft": str,
    "heads": str,
    "dtype": str,
    "training": dict,
    "target_revision": str,
    "draft_revision": str,
    "thinking": bool,
    "architecture": dict,
}
# The names of Transformers' configurations, for decoders that are a plain stack of layers.
_ARCHITECTURE: dict[str, type] = {
    "model_type": str,
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "max_position_embeddings": int,
    "rms_norm_eps": float,
    "tie_word_embeddings": bool,
    "attention_bias": bool,
    "rope_theta": float,
    "rope_local_base_freq": float,
    "rope_scaling": dict,
    "rope_parameters": dict,
    "sliding_window": int,
    "sliding_window_pattern": int,
    "use_sliding_window": bool,
    "max_window_layers": int,
    "layer_types": list,
    "query_pre_attn_scalar": int,
    "initializer_range": float,
}
_KINDS = {
    str: "a string that is not empty",
    int: "a positive integer",
    float: "a positive number",
    bool: "true or false",
    list: "a list of strings",
    dict: "a table",
}


def checked(name: str, table: object) -> dict[str, Any]:
    """Return the values of a pair's table, numbers in the type that is meant.

    Raises:
        UsageError: An unknown or missing key, or a value of the wrong kind; the message begins with
            the table in square brackets.
    """
    if not isinstance(table, dict):
        raise UsageError(f"`{name}` must be a table: write [{name}] above the keys of a pair")
    if not _NAME.fullmatch(name):
        raise UsageError(f"[{name!r}] cannot name a pair: use letters, digits, '-', '_', '.', '+'")
    values = _table(f"[{name}]", table, _PAIR, ROLES)
    if values.get("dtype", "auto") not in DTYPES:
        raise UsageError(f"[{name}] {unknown('dtype', values['dtype'], DTYPES)}")
    for role, architecture in values.get("architecture", {}).items():
        place = f"[{name}.architecture.{role}]"
        if role not in ROLES:
            raise UsageError(f"[{name}.architecture] {unknown('key', role, ROLES)}")
        if not isinstance(architecture, dict):
            raise UsageError(f"{place} must be a table, not {architecture!r}")
        sizes = _table(place, architecture, _ARCHITECTURE, ("model_type",))
        values["architecture"] = values["architecture"] | {role: sizes}
    return values


def _table(
    place: str, table: Mapping[str, Any], kinds: Mapping[str, type], required: Iterable[str]
) -> dict[str, Any]:
    for key, value in table.items():
        if key not in kinds:
            raise UsageError(f"{place} {unknown('key', key, kinds)}")
        if not _fits(value, kinds[key]):
            raise UsageError(f"{place} `{key}` must be {_KINDS[kinds[key]]}, not {value!r}")
    if missing := [key for key in required if key not in table]:
        raise UsageError(f"{place} missing key `{missing[0]}`; add it")
    return {key: float(v) if kinds[key] is float else v for key, v in table.items()}


def _fits(value: object, kind: type) -> bool:
    # Exact types: to isinstance, true is an integer.
    if type(value) is int and kind in (int, float):
        return value > 0
    if type(value) is float:
        return kind is float and 0 < value < math.inf
    if type(value) is list:
        return kind is list and all(isinstance(entry, str) for entry in value)
    return type(value) is kind and value != ""
