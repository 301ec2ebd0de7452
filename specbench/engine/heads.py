"""DIVERSED heads: the layer that weighs target against draft, and its files on disk.

A head is a folder with ``head.safetensors`` (``summary.weight`` ``[2, hidden_q + hidden_p]`` and
``summary.bias`` ``[2]``, the layout of the authors' release: columns [draft ; target], row 0 the
draft's score, row 1 the target's) and ``head.json`` (what it was trained on, and how).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.pairs.registry import HEAD_DESCRIPTION, HEAD_WEIGHTS


class LinearHead(nn.Module):
    """One linear layer on both hidden states and a two-way softmax: the paper's head.

    Args:
        hidden_p: Width of the target's hidden states.
        hidden_q: Width of the draft's hidden states.
        initial_weight: The weight on the target that an untrained head gives everywhere.

    Source: DIVERSED, arXiv:2604.07622.
    """

    def __init__(self, hidden_p: int, hidden_q: int, initial_weight: float = 0.5) -> None:
        super().__init__()
        self.sizes = (hidden_p, hidden_q)
        self.summary = nn.Linear(hidden_q + hidden_p, 2)
        nn.init.zeros_(self.summary.weight)
        share = torch.tensor([1 - initial_weight, initial_weight])
        self.summary.bias = nn.Parameter(share.log())

    def forward(self, h_p: Tensor, h_q: Tensor) -> Tensor:
        """Return the weight on the target ``[K]`` from hidden states ``[K, hidden]``."""
        scores: Tensor = self.summary(torch.cat((h_q, h_p), -1).to(self.summary.weight.dtype))
        # A softmax over two scores is the sigmoid of their difference.
        return (scores[..., 1] - scores[..., 0]).sigmoid()


def save_head(head: LinearHead, folder: Path, description: dict[str, Any]) -> None:
    """Write a head and what is known of it; the description lands last, so a head is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        HEAD_WEIGHTS: save(dict(head.state_dict())),
        HEAD_DESCRIPTION: (json.dumps(description, indent=2) + "\n").encode(),
    }
    for name, content in contents.items():
        unfinished = folder / f".{name}.part"
        unfinished.write_bytes(content)
        unfinished.replace(folder / name)


def load_head(folder: Path, pair: LoadedPair) -> LinearHead:
    """Read a head and check that it was trained for the pair.

    Args:
        folder: Folder with the two files.
        pair: The loaded pair it is to serve.

    Raises:
        UsageError: The files cannot be read or belong to other models.
    """
    try:
        description = json.loads((folder / HEAD_DESCRIPTION).read_text(encoding="utf-8"))
        weights = load_file(folder / HEAD_WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"cannot read the head in {folder} ({error}): train it again") from error
    trained_on = description.get("models") if isinstance(description, dict) else None
    if trained_on != fingerprints(pair):
        source = description.get("pair", "another pair") if isinstance(description, dict) else "?"
        raise UsageError(
            f"the head in {folder} was trained for other weights than those of {pair.name} (it "
            f"names {source}): train one for this pair or leave out diversed"
        )
    head = LinearHead(pair.target.hidden_size, pair.draft.hidden_size)
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(f"the head in {folder} has the wrong shape: train it again") from error
    return head.to(pair.target.device).eval().requires_grad_(False)


def fingerprints(pair: LoadedPair) -> dict[str, str]:
    """Identify the pair's models by their weights, whatever their names and number format."""
    return {"target": pair.target.fingerprint(), "draft": pair.draft.fingerprint()}
