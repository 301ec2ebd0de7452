"""The verifier's head: a small network that predicts the weight on the target at each position.

Its input is known before the drafted token: the hidden states or the distributions that predict it.
Therefore ``v = w p + (1 - w) q`` is a valid conditional distribution.

A head may come from anyone and is checked before use. ``head.safetensors`` holds ``summary.weight``
``[2, D]`` and ``summary.bias`` ``[2]`` in the layout of the authors' release (columns [draft ;
target], row 0 the draft's score, row 1 the target's), and ``hidden.weight`` and ``hidden.bias`` if
there is a hidden layer, and ``shift`` and ``scale`` if its inputs are standardised. ``head.json``
describes its training.

Source: DIVERSED, arXiv:2604.07622.
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
from torch import Tensor, nn

from specbench.decoding.heads import registry
from specbench.decoding.heads.kinds import KINDS, LINEAR
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError, shown
from specbench.files import make_folder, write_atomically
from specbench.methods.verdict import Positions
from specbench.runs.labels import UNTRAINED

SMALLEST_SPREAD = 1e-3  # of an input
MOST_NAMED = 6  # weights in a message; a broken file may contain anything


class Head(nn.Module):
    """A softmax over two scores per position, the draft's first.

    An untrained head has weight ``initial_weight`` on the target everywhere; ``seed`` initialises
    the hidden layer. ``sizes`` are the hidden sizes of target and draft.
    """

    def __init__(
        self, kind: str, sizes: tuple[int, int], initial_weight: float = 0.5, seed: int = 0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.shift: Tensor
        self.scale: Tensor
        _, _, self.inputs, width_of_kind, hidden, self.standardised = KINDS[kind]
        self.width = width = width_of_kind or sum(sizes)
        if self.standardised:
            self.register_buffer("shift", torch.zeros(width))
            self.register_buffer("scale", torch.ones(width))
        self.hidden: nn.Linear | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if hidden:
                self.hidden, width = nn.Linear(width, hidden), hidden
            self.summary = nn.Linear(width, 2)
        nn.init.zeros_(self.summary.weight)
        share = torch.tensor([1 - initial_weight, initial_weight])
        self.summary.bias = nn.Parameter(share.log())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the weight on the target ``[K]`` from inputs ``[K, D]``; see ``inputs``."""
        inputs = inputs.to(self.summary.weight.dtype)
        if self.standardised:
            inputs = (inputs - self.shift) * self.scale
        if self.hidden is not None:
            inputs = nn.functional.silu(self.hidden(inputs))
        scores: Tensor = self.summary(inputs)
        # A softmax over two scores is the sigmoid of their difference.
        return (scores[..., 1] - scores[..., 0]).sigmoid()

    def standardise(self, mean: Tensor, spread: Tensor) -> None:
        """Shift and scale each input to mean 0 and variance 1; both are ``[D]``.

        At most positions the models agree, so the features hardly vary there. Without scaling,
        training often ends at one of the models.
        """
        self.shift = mean.to(self.shift)
        self.scale = 1 / spread.clamp_min(SMALLEST_SPREAD).to(self.scale)

    def weigh(self, at: Positions) -> Tensor:
        """Return the weight on the target ``[K]`` at K positions."""
        weight: Tensor = self(self.inputs(at))
        return weight


def save_head(head: Head, folder: Path, description: dict[str, Any]) -> None:
    """Write a head and its description; the description comes last and marks a complete head."""
    make_folder(folder)
    weights = {name: tensor.cpu() for name, tensor in head.state_dict().items()}
    write_atomically(folder / registry.WEIGHTS, save(weights))
    write_atomically(folder / registry.DESCRIPTION, json.dumps(description, indent=2) + "\n")


def load_head(path: Path, pair: LoadedPair) -> Head:
    """Load a head from a folder or the authors' file, or create the ``untrained`` one.

    The authors' file does not name its models, so only its sizes are checked.
    """
    sizes = (pair.target.hidden_size, pair.draft.hidden_size)
    if path == Path(UNTRAINED):
        return Head(LINEAR, sizes).to(pair.target.device).eval().requires_grad_(False)
    if path.suffix == registry.RELEASED:
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
        **{f"{role}_type": file["type"] for role, file in pair.weights.items()},
        **pair.facts,
    }


def _described(folder: Path, pair: LoadedPair) -> tuple[str, dict[str, Tensor]]:
    """Return kind and weights of a head trained by specbench, checked against the pair's models."""
    description = registry.read_description(folder)
    try:
        weights = load(registry.read_bounded(folder / registry.WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise registry.unreadable(folder, error) from error
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
            "or leave out methods with a head"
        )
    return kind, weights


def _released(path: Path) -> dict[str, Tensor]:
    try:  # weights_only: run no code from the file
        content = io.BytesIO(registry.read_bounded(path))
        weights = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # of any type, as the file may hold anything
        raise registry.unreadable(path, error) from error
    is_state = isinstance(weights, dict) and all(
        isinstance(name, str) and isinstance(w, Tensor) for name, w in weights.items()
    )
    # Sparse and nested tensors and those without values support few operations.
    if not is_state or any(
        w.is_meta or w.is_nested or w.layout != torch.strided for w in weights.values()
    ):
        raise UsageError(f"{path} holds no named weights: give the authors' file or train a head")
    return dict(weights)


def _shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    first = islice(shapes.items(), MOST_NAMED)
    return ", ".join(f"{shown(name)} {list(shape)}" for name, shape in first)
