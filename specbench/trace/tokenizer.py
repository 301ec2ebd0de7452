"""The tokenizer of a finished run, without its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.experiment.folders import CONFIG
from specbench.pairs.registry import PairSpec, custom_pair, pairs
from specbench.trace.pieces import Decode


def run_decoder(folder: Path) -> Decode:
    """Return what turns token ids of a run into text.

    Raises:
        UsageError: The run does not say with which models it was made, or their tokenizer cannot
            be had.
    """
    from specbench.engine.sources import load_tokenizer

    config = read_config(folder)
    tokenizer = load_tokenizer(run_pair(config, folder), "target", _loading(config))

    def decode(ids: Any) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    return decode


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return ``config.json`` of a run.

    Raises:
        UsageError: It is missing or not readable.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{folder} is no run, {CONFIG} cannot be read ({error.strerror}): give the folder of "
            "a run"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: give the folder of another run") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} is no configuration of a run: give the folder of another run")
    return config


def run_pair(config: Mapping[str, Any], folder: Path) -> PairSpec:
    """Return the models of a run; those that come with specbench are found where it lies now.

    Args:
        config: The run's ``config.json``.
        folder: The run's folder, for messages.

    Raises:
        UsageError: The run does not say what they are.
    """
    known = config.get("pair")
    if not isinstance(known, dict) or not isinstance(known.get("target"), str):
        raise UsageError(f"{folder / CONFIG} names no pair: give the folder of another run")
    target, draft = known["target"], str(known.get("draft"))
    # Wherever the package lay when it ran, its own models are here.
    for spec in pairs().values():
        if spec.bundled and _end(spec.target) == _end(target):
            return spec if _end(spec.draft) == _end(draft) else replace(spec, draft=draft)
    pair = custom_pair(target, draft)
    return replace(
        pair,
        target_revision=known.get("target_revision"),
        draft_revision=known.get("draft_revision"),
    )


def _end(path: str) -> tuple[str, ...]:
    return Path(path).parts[-3:]


def _loading(config: Mapping[str, Any]) -> Loading:
    """Only what a tokenizer depends on; runs of before that was written loaded plain models."""
    known = config.get("loading", {})
    return Loading(
        load_format=known.get("load_format", Loading.load_format),
        trust_remote_code=bool(known.get("trust_remote_code", False)),
    )
