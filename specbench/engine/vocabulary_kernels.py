"""Triton kernels for distributions over a large vocabulary on a GPU.

PyTorch's softmax gives a row to one of a GPU's processors, and a draw launches some twenty
kernels: for a single text both take longer than a layer of the draft. Here many programs share a
row. Sums are float32 in a softmax and float64 in a draw, as on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 1024  # tokens of a block


@triton.jit  # type: ignore[untyped-decorator]
def _block_sums(  # type: ignore[no-untyped-def]
    logits, largest, sums, vocabulary, blocks, size: tl.constexpr
):
    """Store the largest logit of a block, and the sum of exponentials relative to it."""
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * size + tl.arange(0, size)
    at = row.to(tl.int64) * vocabulary + token
    x = tl.load(logits + at, mask=token < vocabulary, other=-float("inf"))
    most = tl.max(x)
    safe = tl.where(most == -float("inf"), 0.0, most)
    tl.store(largest + row * blocks + block, most)
    tl.store(sums + row * blocks + block, tl.sum(tl.exp(x - safe)))


@triton.jit  # type: ignore[untyped-decorator]
def _softmax(  # type: ignore[no-untyped-def]
    logits, largest, sums, out, vocabulary, blocks,
    size: tl.constexpr, most_blocks: tl.constexpr,
):  # fmt: skip
    """Store the softmax of a block, given the sums of all blocks of the row."""
    row, block = tl.program_id(0), tl.program_id(1)
    other = tl.arange(0, most_blocks)
    part, inside = row * blocks + other, other < blocks
    tops = tl.load(largest + part, mask=inside, other=-float("inf"))
    top = tl.max(tops)
    total = tl.sum(tl.load(sums + part, mask=inside, other=0.0) * tl.exp(tops - top))
    token = block * size + tl.arange(0, size)
    at = row.to(tl.int64) * vocabulary + token
    x = tl.load(logits + at, mask=token < vocabulary, other=-float("inf"))
    tl.store(out + at, tl.exp(x - top) / total, mask=token < vocabulary)


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax of float32 logits ``[..., V]``."""
    rows = logits.reshape(-1, logits.shape[-1])
    vocabulary = rows.shape[1]
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    blocks = triton.cdiv(vocabulary, SIZE)
    largest, sums = rows.new_empty(2, len(rows), blocks)
    grid, whole = (len(rows), blocks), rows.contiguous()
    _block_sums[grid](whole, largest, sums, vocabulary, blocks, SIZE)
    most = triton.next_power_of_2(blocks)
    _softmax[grid](whole, largest, sums, out, vocabulary, blocks, SIZE, most)
    return out.view(logits.shape)


@triton.jit  # type: ignore[untyped-decorator]
def _block_masses(  # type: ignore[no-untyped-def]
    distribution, masses, vocabulary, blocks, size: tl.constexpr
):
    """Store the sum of a block."""
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * size + tl.arange(0, size)
    at = row.to(tl.int64) * vocabulary + token
    p = tl.load(distribution + at, mask=token < vocabulary, other=0.0)
    tl.store(masses + row * blocks + block, tl.sum(p.to(tl.float64)))


@triton.jit
def _first_above(threshold, mass, ends):  # type: ignore[no-untyped-def]
    """The first place with mass that ends above a threshold, or else the last one with mass."""
    place = tl.arange(0, mass.shape[0])
    above = tl.min(tl.where((ends > threshold) & (mass > 0), place, mass.shape[0]))
    last = tl.max(tl.where(mass > 0, place, 0))
    return tl.minimum(above, last)


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    distribution, masses, uniforms, tokens, vocabulary, blocks, step,
    size: tl.constexpr, most_blocks: tl.constexpr,
):  # fmt: skip
    """Draw a block of a row, then a token of the block."""
    row = tl.program_id(0)
    other = tl.arange(0, most_blocks)
    mass = tl.load(masses + row * blocks + other, mask=other < blocks, other=0.0)
    ends = tl.cumsum(mass)
    total = tl.sum(tl.where(other == most_blocks - 1, ends, 0.0))
    threshold = tl.load(uniforms + row * step) * total
    block = _first_above(threshold, mass, ends)
    inside = threshold - tl.sum(tl.where(other == block, ends - mass, 0.0))
    token = block * size + tl.arange(0, size)
    at = row.to(tl.int64) * vocabulary + token
    p = tl.load(distribution + at, mask=token < vocabulary, other=0.0).to(tl.float64)
    tl.store(tokens + row, (block * size + _first_above(inside, p, tl.cumsum(p))).to(tl.int64))


def draw(distribution: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token per row ``[B]`` of ``distribution`` ``[B, V]``, as ``sampling.draw`` does."""
    rows, vocabulary = distribution.shape
    blocks = triton.cdiv(vocabulary, SIZE)
    masses = distribution.new_empty(rows, blocks, dtype=torch.float64)
    tokens = distribution.new_empty(rows, dtype=torch.long)
    whole = distribution.contiguous()
    _block_masses[(rows, blocks)](whole, masses, vocabulary, blocks, SIZE)
    sizes = (vocabulary, blocks, uniform.stride(0), SIZE, triton.next_power_of_2(blocks))
    _draw[(rows,)](whole, masses, uniform, tokens, *sizes)
    return tokens
