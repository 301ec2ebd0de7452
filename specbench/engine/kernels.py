"""Triton kernels for a pass over few tokens on a GPU, where memory and launches take the time.

A pass over M tokens reads every weight once. Transformers' layers launch some fifty kernels each
for that; these are five. All inputs and outputs have the model's dtype, and sums are float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

# Tokens of a pass that one tile of a product holds; above it cuBLAS is faster.
MOST_TOKENS = 32
LEAST_TILE = 16  # of a matrix unit
SLOTS = 64  # keys and values that a step of the attention reads
MOST_SPLITS = 16  # of the keys of a text
PROGRAMS = 132  # that a GPU runs at once, about


class States(NamedTuple):
    """Hidden states of M tokens between two layers; their RMS norm needs no kernel of its own.

    The product that makes the states also multiplies them by the gain of the next norm and sums
    their squares; the product that reads them divides by the root of the mean. Without ``scaled``
    the reader does both.
    """

    hidden: Tensor  # [M, K]
    gain: Tensor  # [K] of the next norm
    scaled: Tensor | None = None  # [M, K] hidden * gain
    squares: Tensor | None = None  # [M, parts] sums over parts of the columns


class Tile(NamedTuple):
    """How a product is divided among programs."""

    wide: int  # columns of a program
    deep: int  # of them, numbers that a step reads
    warps: int
    stages: int


def tile_of(columns: int, gated: bool) -> Tile:
    """Return the tiles of a product with so many columns: the fastest of 17 on an H200."""
    if gated:
        return Tile(64, 128, 4, 3)
    return Tile(16 if columns >= 4096 else 8, 512, 2, 3)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x, weight, squares, bias, residual, gain, out, scaled, new_squares,
    tokens, columns, parts, epsilon,
    width: tl.constexpr, rows: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
    most_parts: tl.constexpr,
    normed: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, gated: tl.constexpr,
):  # fmt: skip
    """One tile ``[wide, rows]`` of a product with ``weight`` ``[columns, width]``."""
    column = tl.program_id(0) * wide + tl.arange(0, wide)
    row = tl.arange(0, rows)
    place = tl.arange(0, deep)
    inside, real = column < columns, row < tokens
    first = weight + column[:, None].to(tl.int64) * width
    second = weight + (columns + column)[:, None].to(tl.int64) * width
    sums = tl.zeros([wide, rows], tl.float32)
    others = tl.zeros([wide, rows], tl.float32)
    for start in range(0, width, deep):
        at = start + place
        fits = at < width
        filled = inside[:, None] & fits
        given = real[None] & fits[:, None]
        tile = tl.load(x + row[None] * width + at[:, None], mask=given, other=0.0)
        w = tl.load(first + at, mask=filled, other=0.0, eviction_policy="evict_first")
        sums = tl.dot(w, tile, sums)
        if gated:
            w = tl.load(second + at, mask=filled, other=0.0, eviction_policy="evict_first")
            others = tl.dot(w, tile, others)
    if normed:
        part = tl.arange(0, most_parts)[:, None]
        given = (part < parts) & real[None]
        square = tl.sum(tl.load(squares + row[None] * parts + part, mask=given, other=0.0), 0)
        scale = tl.rsqrt(square / width + epsilon)[None]
        sums *= scale
        others *= scale
    if biased:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    if gated:
        sums = sums / (1 + tl.exp(-sums)) * others
    places = row[None].to(tl.int64) * columns + column[:, None]
    mask = inside[:, None] & real[None]
    kind = out.dtype.element_ty
    if added:
        sums = (sums + tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)).to(kind)
        exact = sums.to(tl.float32)
        factor = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)[:, None]
        tl.store(scaled + places, (exact * factor).to(kind), mask=mask)
        square = tl.sum(tl.where(mask, exact * exact, 0.0), 0)
        at = row * tl.num_programs(0) + tl.program_id(0)
        tl.store(new_squares + at, square, mask=real)
    tl.store(out + places, sums.to(kind), mask=mask)


def _launch(
    x: Tensor,
    weight: Tensor,
    *,
    norm: States | None = None,
    epsilon: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gain: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply by ``weight``; return the product and, of a sum, what ``States`` has."""
    tokens, width = x.shape
    columns = len(weight) // (2 if gated else 1)
    wide, deep, warps, stages = tile_of(columns, gated)
    programs = triton.cdiv(columns, wide)
    out = x.new_empty(tokens, columns)
    scaled, new = x, x
    if residual is not None:
        scaled, new = torch.empty_like(out), x.new_empty(tokens, programs, dtype=torch.float32)
    squares = x if norm is None or norm.squares is None else norm.squares
    parts = squares.shape[1] if norm is not None else 1
    given = (part if part is not None else x for part in (bias, residual, gain))
    flags = norm is not None, bias is not None, residual is not None, gated
    rows = max(LEAST_TILE, triton.next_power_of_2(tokens))
    _product[(programs,)](
        x, weight, squares, *given, out, scaled, new, tokens, columns, parts, epsilon,
        width, rows, wide, deep, triton.next_power_of_2(parts), *flags,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, scaled, new


def first_states(hidden: Tensor, gain: Tensor) -> States:
    """Return embeddings ``[M, K]`` as states before a norm."""
    if len(hidden) > MOST_TOKENS:
        return States(hidden, gain)
    squares = hidden.float().square().sum(-1, keepdim=True)
    return States(hidden, gain, hidden * gain, squares)


def normed_product(
    states: States,
    epsilon: float,
    weight: Tensor,
    bias: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """Return ``norm(states) @ weight.T + bias``, ``[M, N]``.

    If ``gated``, the result is ``silu(a) * b`` of the halves of the product, ``[M, N / 2]``.
    """
    if states.scaled is not None:
        how: Any = {"norm": states, "epsilon": epsilon, "bias": bias, "gated": gated}
        return _launch(states.scaled, weight, **how)[0]
    x = rms_norm(states.hidden, states.hidden.shape[-1:], states.gain, epsilon)
    sums = linear(x, weight, bias)
    if not gated:
        return sums
    gate, up = sums.chunk(2, -1)
    return silu(gate) * up


def added_product(x: Tensor, weight: Tensor, states: States, gain: Tensor) -> States:
    """Return ``states + x @ weight.T`` before a norm with ``gain``."""
    if len(x) > MOST_TOKENS:
        return States(torch.addmm(states.hidden, x, weight.T), gain)
    hidden, scaled, squares = _launch(x, weight, residual=states.hidden, gain=gain)
    return States(hidden, gain, scaled, squares)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]
    qkv, cosines, sines, at, keys, values, gain_q, gain_k, tokens, capacity, epsilon,
    heads: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    """Rotate the query or key of a token and head; move keys and values to their slot."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = token // tokens
    slot = tl.load(at + token)
    half: tl.constexpr = width // 2
    first = tl.arange(0, half)
    source = qkv + (token * (heads + 2 * key_heads) + head) * width
    a = tl.load(source + first).to(tl.float32)
    b = tl.load(source + half + first).to(tl.float32)
    if head >= heads + key_heads:
        target = values + ((row * key_heads + head - heads - key_heads) * capacity + slot) * width
    else:
        if normed:
            scale = tl.rsqrt((tl.sum(a * a) + tl.sum(b * b)) / width + epsilon)
            gain = gain_q if head < heads else gain_k
            a *= scale * tl.load(gain + first).to(tl.float32)
            b *= scale * tl.load(gain + half + first).to(tl.float32)
        cos = tl.load(cosines + slot * width + first).to(tl.float32)
        sin = tl.load(sines + slot * width + first).to(tl.float32)
        a, b = a * cos - b * sin, b * cos + a * sin
        target = keys + ((row * key_heads + head - heads) * capacity + slot) * width
        if head < heads:
            target = source
    tl.store(target + first, a.to(qkv.dtype.element_ty))
    tl.store(target + half + first, b.to(qkv.dtype.element_ty))


def rotate(
    qkv: Tensor,
    at: Tensor,
    angles: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    gains: tuple[Tensor, Tensor] | None,
    epsilon: float,
) -> None:
    """Rotate the queries in ``qkv`` in place, and write keys and values to their slots.

    Args:
        qkv: ``[B * k, (heads + 2 key heads) * width]``.
        at: Slots ``[B, k]``.
        angles: Cosines and sines ``[capacity, width]`` whose halves are equal.
        keys: Of the cache, ``[B, key heads, capacity, width]``.
        values: As ``keys``.
        gains: Of the RMS norms of queries and keys with ``epsilon``, each ``[width]``.
        epsilon: See ``gains``.
    """
    _, key_heads, capacity, width = keys.shape
    heads = qkv.shape[1] // width - 2 * key_heads
    given = gains or (qkv, qkv)
    _rotate[(len(qkv), heads + 2 * key_heads)](
        qkv, *angles, at, keys, values, *given, at.shape[1], capacity, epsilon,
        heads, key_heads, width, gains is not None, num_warps=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, at, keys, values, parts, logs, capacity, scale,
    tokens: tl.constexpr, heads: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, slots: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Attend from the queries of a text and key head to one part of its keys."""
    text, head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    split = tl.program_id(1)
    group: tl.constexpr = heads // key_heads
    row, place = tl.arange(0, rows), tl.arange(0, width)
    token = row // group
    real = row < tokens * group
    query = ((text * tokens + token) * (heads + 2 * key_heads) + head * group + row % group) * width
    q = tl.load(qkv + query[:, None] + place, mask=real[:, None], other=0.0)
    position = tl.load(at + text * tokens + token, mask=real, other=-1)
    blocks = tl.cdiv(tl.max(position) + 1, slots)
    share = tl.cdiv(blocks, splits)
    base = (text * key_heads + head).to(tl.int64) * capacity * width
    largest = tl.full([rows], -float("inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, width], tl.float32)
    for block in range(split * share, tl.minimum(split * share + share, blocks)):
        slot = block * slots + tl.arange(0, slots)
        fits = slot < capacity
        where = base + slot[:, None] * width + place
        k = tl.load(keys + where, mask=fits[:, None], other=0.0)
        seen = slot[None] <= position[:, None]
        score = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        now = tl.maximum(largest, tl.max(score, 1))
        safe = tl.where(now == -float("inf"), 0.0, now)
        shrink = tl.exp(largest - safe)
        weight = tl.exp(score - safe[:, None])
        total = total * shrink + tl.sum(weight, 1)
        v = tl.load(values + where, mask=fits[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        largest = now
    part = (tl.program_id(0) * splits + split) * rows + row
    tl.store(parts + part[:, None] * width + place, mixed / tl.maximum(total, 1e-30)[:, None])
    tl.store(logs + part, largest + tl.log(total))


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    parts, logs, out,
    tokens: tl.constexpr, heads: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Add the parts of the attention of one token and head."""
    text, token = tl.program_id(0) // tokens, tl.program_id(0) % tokens
    head = tl.program_id(1)
    group: tl.constexpr = heads // key_heads
    row = token * group + head % group
    split, place = tl.arange(0, splits), tl.arange(0, width)
    part = ((text * key_heads + head // group) * splits + split) * rows + row
    log = tl.load(logs + part)
    weight = tl.exp(log - tl.max(log))
    mixed = tl.sum(weight[:, None] * tl.load(parts + part[:, None] * width + place), 0)
    to = (tl.program_id(0) * heads + head) * width + place
    tl.store(out + to, (mixed / tl.sum(weight)).to(out.dtype.element_ty))


def attend(qkv: Tensor, at: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Return the attention of rotated queries to all keys up to their own positions.

    Arguments are those of ``rotate``, after it; the result is ``[B * k, heads * width]``. The keys
    of a text are split among programs, since one would not reach the memory's bandwidth.
    """
    texts, key_heads, capacity, width = keys.shape
    heads = qkv.shape[1] // width - 2 * key_heads
    tokens = at.shape[1]
    rows = max(LEAST_TILE, triton.next_power_of_2(tokens * heads // key_heads))
    splits = triton.next_power_of_2(max(1, PROGRAMS // (texts * key_heads)))
    splits = min(splits, MOST_SPLITS)
    shape = texts * key_heads, splits, rows
    parts = torch.empty(*shape, width, dtype=torch.float32, device=qkv.device)
    logs = torch.empty(shape, dtype=torch.float32, device=qkv.device)
    sizes: Any = (tokens, heads, key_heads, width, rows)
    _attend[(texts * key_heads, splits)](
        qkv, at, keys, values, parts, logs, capacity, scale, *sizes, SLOTS, splits, num_warps=4
    )
    out = torch.empty(len(qkv), heads * width, dtype=qkv.dtype, device=qkv.device)
    _merge[(len(qkv), heads)](parts, logs, out, *sizes, splits, num_warps=1)
    return out
