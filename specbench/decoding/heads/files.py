"""Reading and writing heads; a head may come from anyone and is checked before use.

``head.safetensors`` holds ``summary.weight`` ``[2, D]`` and ``summary.bias`` ``[2]`` in the layout
of the authors' release (columns [draft ; target], row 0 the draft's score, row 1 the target's), and
``hidden.weight`` and ``hidden.bias`` if there is a hidden layer, and ``shift`` and ``scale`` if its
inputs are standardised. ``head.json`` describes its training.
"""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from specbench.decoding.heads.head import Head
from specbench.decoding.heads.kinds import KINDS, LINEAR
from specbench.decoding.heads.registry import (
    DESCRIPTION,
    RELEASED,
    WEIGHTS,
    read_bounded,
    read_description,
    unreadable,
)
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError, shown
from specbench.files import clear_errors, make_folder, write_atomically
from specbench.runs.labels import UNTRAINED

MOST_NAMED = 6  # weights in a message; a broken file may contain anything


def save_head(head: Head, folder: Path, description: dict[str, Any]) -> None:
    """Write a head and its description; the description comes last and marks a complete head.

    Raises:
        SpecbenchError: The files cannot be written.
    """
    with clear_errors(folder):
        make_folder(folder)
    contents = {
        WEIGHTS: save({name: weights.cpu() for name, weights in head.state_dict().items()}),
        DESCRIPTION: (json.dumps(description, indent=2) + "\n").encode(),
    }
    for name, content in contents.items():
        write_atomically(folder / name, content)


def load_head(path: Path, pair: LoadedPair) -> Head:
    """Load a head from a folder or the authors' file, or create the ``untrained`` one.

    The authors' file does not name its models, so only its sizes are checked.

    Raises:
        UsageError: The head cannot be read, does not fit the pair, or has numbers that are not
            finite.
    """
    sizes = (pair.target.hidden_size, pair.draft.hidden_size)
    if path == Path(UNTRAINED):
        return Head(LINEAR, sizes).to(pair.target.device).eval().requires_grad_(False)
    if path.suffix == RELEASED:
        kind, weights = LINEAR, _released(path)
    else:
        kind, weights = _described(path, pair)
    head = Head(kind, sizes)
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != expected:
        raise UsageError(
            f"the head in {path} has the wrong shape for {pair.name} ({_shapes(shapes)} instead of "
            f"{_shapes(expected)}): train one for this pair"
        )
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not tensor.float().isfinite().all():
            raise UsageError(
                f"the head in {path} has numbers in {name} that are not finite: train one again"
            )
    head.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return head.to(pair.target.device).eval().requires_grad_(False)


def fingerprints(pair: LoadedPair) -> dict[str, str]:
    """Return hashes of the pair's weights, independent of model names and dtype."""
    hashes = {"target": pair.target.fingerprint()}
    return hashes if pair.draft is pair.target else hashes | {"draft": pair.draft.fingerprint()}


def describe_models(pair: LoadedPair) -> dict[str, Any]:
    """Return plain values that identify a pair's models and how they run."""
    return {
        "device": str(pair.target.device),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        **fingerprints(pair),
        **pair.facts,
    }


def _described(folder: Path, pair: LoadedPair) -> tuple[str, dict[str, Tensor]]:
    """Return kind and weights of a head trained by specbench, checked against the pair's models."""
    description = read_description(folder)
    try:
        weights = load(read_bounded(folder / WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise unreadable(folder, error) from error
    kind = description.get("kind")
    if kind not in KINDS:
        raise UsageError(
            f"the head in {folder} is of an unknown kind ({shown(str(kind))}): train one of "
            f"{', '.join(KINDS)}"
        )
    # A head that reads no hidden states works with any pair.
    if KINDS[kind].width is None and description.get("models") != fingerprints(pair):
        raise UsageError(
            f"the head in {folder} was trained for other weights than those of {pair.name} (it "
            f"names {shown(description.get('pair') or 'another pair')}): train one for this pair "
            "or leave out diversed"
        )
    return kind, weights


def _released(path: Path) -> dict[str, Tensor]:
    try:  # weights_only: run no code from the file
        content = io.BytesIO(read_bounded(path))
        weights = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # of any type, as the file may hold anything
        raise unreadable(path, error) from error
    named = isinstance(weights, dict) and all(
        isinstance(name, str) and isinstance(w, Tensor) for name, w in weights.items()
    )
    # Sparse and nested tensors and those without values support few operations.
    if not named or any(w.is_meta or w.is_nested or w.is_sparse for w in weights.values()):
        raise UsageError(f"{path} holds no named weights: give the authors' file or train a head")
    return dict(weights)


def _shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    first = islice(shapes.items(), MOST_NAMED)
    return ", ".join(f"{shown(name)} {list(shape)}" for name, shape in first)
