"""Processing logits into distributions, and drawing tokens from uniform numbers.

All random numbers of a sample come from a counter-based generator with the key (seed, sample), so a
text depends neither on the other samples nor on their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from specbench import config
from specbench.methods.lazy import Tensor, torch
from specbench.methods.lazy import numpy as np
from specbench.methods.verdict import BLOCK, in_blocks

# Tokens from which a float64 sum of all would take longer than a draft's layers, and from which a
# GPU has kernels of our own.
LARGE = 2**14

_PLAIN = ContextVar("_PLAIN", default=False)  # see ``without_kernels``


class Sampling(config.SamplingOptions):
    """The sampling settings, with the processing of logits."""

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0."""
        return self.temperature == 0

    def distributions(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the processed distributions and the plain softmax of logits ``[..., V]``.

        Both have the logits' shape, in float32. Processing applies temperature, then top-k, top-p
        and min-p; at temperature 0 the result is one-hot. Without processing, both are the same
        tensor.
        """
        plain = softmax(logits)
        if self.greedy:
            best = logits.argmax(-1, keepdim=True)
            return torch.zeros_like(plain).scatter_(-1, best, 1.0), plain
        if self.temperature == 1 and self.top_k is self.top_p is self.min_p is None:
            return plain, plain
        # The shift does not change the softmax and avoids overflow at small temperatures.
        scaled = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            top = scaled.topk(self.top_k, -1)
            scaled = torch.full_like(scaled, -torch.inf).scatter(-1, top.indices, top.values)
        processed = softmax(scaled)
        if self.top_p is not None and self.top_p < 1:
            # The most likely tokens up to and including the one that reaches this mass.
            ordered, tokens = processed.sort(-1, descending=True)
            ordered = torch.where(ordered.cumsum(-1) - ordered < self.top_p, ordered, 0.0)
            nucleus = torch.zeros_like(processed).scatter(-1, tokens, ordered)
            processed = nucleus / nucleus.sum(-1, keepdim=True)
        if self.min_p is not None:
            least = self.min_p * processed.amax(-1, keepdim=True)
            processed = torch.where(processed >= least, processed, 0.0)
            processed = processed / processed.sum(-1, keepdim=True)
        return processed, plain


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax of logits ``[..., V]``."""
    kernels = _kernels_for(logits)
    return kernels.softmax(logits) if kernels else logits.softmax(-1)


def _kernels_for(rows: Tensor) -> Any:
    """Return the kernels for rows ``[..., V]`` if they are large and on a GPU, else None."""
    if not rows.is_cuda or rows.shape[-1] < LARGE or torch.compiler.is_compiling():
        return None
    return None if _PLAIN.get() else _kernels()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Use PyTorch's operations alone within the context, to compare the kernels with them."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


@cache
def _kernels() -> Any:
    return import_module("specbench.engine.vocabulary_kernels") if find_spec("triton") else None


def draw(distribution: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row ``[B]`` by inverting the cumulative distribution ``[B, V]``.

    ``distribution`` need not be normalised; a token without mass is never drawn. ``uniform``
    ``[B]`` holds float64 numbers in [0, 1). Of a large vocabulary a block is drawn first.
    """
    if kernels := _kernels_for(distribution):
        token: Tensor = kernels.draw(distribution, uniform)
        return token
    if distribution.shape[-1] >= LARGE:
        return _draw_by_block(distribution, uniform)
    cumulative = distribution.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    # Without this limit a NaN would draw a token that no model has.
    return tokens.clamp_max(distribution.shape[-1] - 1)


def _draw_by_block(distribution: Tensor, uniform: Tensor) -> Tensor:
    """Draw as ``draw`` does, summing all but one block of ``BLOCK`` tokens at once."""
    blocks = in_blocks(distribution, 0.0)
    mass = blocks.sum(-1, dtype=torch.float64)
    ends = mass.cumsum(-1)
    threshold = uniform[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, threshold, right=True).clamp_max(mass.shape[-1] - 1)
    inside = (threshold - (ends - mass).gather(1, block)).clamp_min(0)  # of rounding
    tokens = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]]
    cumulative = tokens.cumsum(-1, dtype=torch.float64)
    # Rounding may leave the threshold at the block's end, behind its last token with mass.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    index = torch.minimum(torch.searchsorted(cumulative, inside, right=True), last)
    return (block * BLOCK + index)[:, 0].clamp_max(distribution.shape[-1] - 1)


def uniforms(seed: int, sample: str, rounds: int, draft_length: int) -> Tensor:
    """Return all uniform numbers for decoding one sample, ``[rounds, 2 N + 1]`` float64.

    Each round uses N for drafts, N for acceptance and one for its last token. The generator is
    Philox with the key (seed, hash of the sample's identity).
    """
    digest = hashlib.blake2b(sample.encode(), digest_size=8).digest()
    key = np.array([seed % 2**64, int.from_bytes(digest, "little")], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    return torch.from_numpy(generator.random((rounds, 2 * draft_length + 1)))
