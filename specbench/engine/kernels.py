"""Triton kernels for a pass over few tokens on a GPU, where memory and launches take the time.

A pass over M tokens reads every weight once. Transformers' layers launch some fifty kernels each
for that; here they are five per layer. Inputs and outputs have the model's dtype, except logits and
sums of squares, which are float32, as all sums are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Tokens of a pass that one tile of a product holds; above it cuBLAS is faster.
MOST_TOKENS = 32
LEAST_TILE = 16  # of a matrix unit
SLOTS = 64  # keys and values that a step of the attention reads
MOST_SPLITS = 16  # of the keys of a text
PROGRAMS = 132  # that a GPU runs at once, about
MANY_COLUMNS = 2**15  # above it, a product has the tiles of an output head
MOST_TEXT_HEADS = 2**14  # key heads of all texts of a pass


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


def tile_of(columns: int, width: int, rows: int, gated: bool, added: bool) -> Tile:
    """Return the tiles of a product with weights ``[columns, width]``: the fastest on an H200."""
    if columns > MANY_COLUMNS:
        tile = Tile(64, 128, 4, 4)
    elif gated:
        tile = Tile(64, 64, 4, 6) if width <= 2048 else Tile(64, 128, 4, 3)
    elif added:
        tile = Tile(8, 512, 2, 4) if columns < 4096 else Tile(16, 512, 2, 3)
    else:
        tile = Tile(16, 256, 2, 4)
    # With more rows, one stage less fits into the 99 KiB that a block of a small GPU has.
    return tile if rows == LEAST_TILE else tile._replace(stages=tile.stages - 1)


@cache
def _starts_early(device: torch.device) -> bool:
    """Whether a kernel can start while the previous one ends: from Hopper on.

    Such a kernel waits for the previous one's results before it reads them. The gated product
    starts late, and lets none start beside it: its tiles fill a processor.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit(do_not_specialize=["tokens", "parts"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x, weight, squares, bias, residual, gain, out, scaled, new_squares,
    tokens, columns, parts, epsilon,
    width: tl.constexpr, rows: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
    most_parts: tl.constexpr,
    normed: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, gated: tl.constexpr,
    early: tl.constexpr,
):  # fmt: skip
    """One tile ``[wide, rows]`` of a product with ``weight`` ``[columns, width]``."""
    column = tl.program_id(0) * wide + tl.arange(0, wide)
    row = tl.arange(0, rows)
    place = tl.arange(0, deep)
    inside, real = column < columns, row < tokens
    first = weight + column[:, None].to(tl.int64) * width
    second = weight + (columns + column)[:, None].to(tl.int64) * width
    sums = tl.zeros([wide, rows], tl.float32)
    up_sums = tl.zeros([wide, rows], tl.float32)
    if early:
        gdc_wait()
    for start in range(0, width, deep):
        at = start + place
        fits = at < width
        w_mask = inside[:, None] & fits
        x_mask = real[None] & fits[:, None]
        tile = tl.load(x + row[None] * width + at[:, None], mask=x_mask, other=0.0)
        w = tl.load(first + at, mask=w_mask, other=0.0, eviction_policy="evict_first")
        sums = tl.dot(w, tile, sums)
        if gated:
            w = tl.load(second + at, mask=w_mask, other=0.0, eviction_policy="evict_first")
            up_sums = tl.dot(w, tile, up_sums)
    if early:
        gdc_launch_dependents()
    if normed:
        part = tl.arange(0, most_parts)[:, None]
        part_mask = (part < parts) & real[None]
        square = tl.sum(tl.load(squares + row[None] * parts + part, mask=part_mask, other=0.0), 0)
        scale = tl.rsqrt(square / width + epsilon)[None]
        sums *= scale
        up_sums *= scale
    if biased:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    if gated:
        sums = sums / (1 + tl.exp(-sums)) * up_sums
    places = row[None].to(tl.int64) * columns + column[:, None]
    mask = inside[:, None] & real[None]
    kind = x.dtype.element_ty
    if added:
        sums = (sums + tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)).to(kind)
        exact = sums.to(tl.float32)
        factor = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)[:, None]
        tl.store(scaled + places, (exact * factor).to(kind), mask=mask)
        square = tl.sum(tl.where(mask, exact * exact, 0.0), 0)
        at = row * tl.num_programs(0) + tl.program_id(0)
        tl.store(new_squares + at, square, mask=real)
    tl.store(out + places, sums.to(kind).to(out.dtype.element_ty), mask=mask)


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
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply by ``weight``; return the product and, of a sum, what ``States`` has.

    With another ``dtype``, the product is converted after it was rounded to that of ``x``.
    """
    tokens, width = x.shape
    columns = len(weight) // (2 if gated else 1)
    rows = max(LEAST_TILE, triton.next_power_of_2(tokens))
    wide, deep, warps, stages = tile_of(columns, width, rows, gated, residual is not None)
    programs = triton.cdiv(columns, wide)
    out = x.new_empty(tokens, columns, dtype=dtype)
    scaled, new = x, x
    if residual is not None:
        scaled, new = torch.empty_like(out), x.new_empty(tokens, programs, dtype=torch.float32)
    squares = x if norm is None or norm.squares is None else norm.squares
    parts = squares.shape[1] if norm is not None else 1
    optional = (part if part is not None else x for part in (bias, residual, gain))
    flags = norm is not None, bias is not None, residual is not None, gated
    early = _starts_early(x.device) and not gated
    _product[(programs,)](
        x, weight, squares, *optional, out, scaled, new, tokens, columns, parts, epsilon,
        width, rows, wide, deep, triton.next_power_of_2(parts), *flags, early,
        num_warps=warps, num_stages=stages, launch_pdl=early,
    )  # fmt: skip
    return out, scaled, new


@triton.jit  # type: ignore[untyped-decorator]
def _embed(  # type: ignore[no-untyped-def]
    tokens, table, gain, hidden, scaled, squares, width, most: tl.constexpr
):
    """Look up one token."""
    row, place = tl.program_id(0), tl.arange(0, most)
    inside = place < width
    x = tl.load(table + tl.load(tokens + row) * width + place, mask=inside, other=0.0)
    exact = x.to(tl.float32)
    factor = tl.load(gain + place, mask=inside, other=0.0).to(tl.float32)
    at = row * width + place
    tl.store(hidden + at, x, mask=inside)
    tl.store(scaled + at, (exact * factor).to(x.dtype), mask=inside)
    tl.store(squares + row, tl.sum(exact * exact))


def first_states(tokens: Tensor, table: Tensor, gain: Tensor) -> States:
    """Return the embeddings of tokens ``[M]``, rows of ``table``, as states before a norm."""
    if len(tokens) > MOST_TOKENS:
        return States(table[tokens], gain)
    hidden = table.new_empty(len(tokens), table.shape[1])
    scaled, squares = torch.empty_like(hidden), hidden.new_empty(len(tokens), 1, dtype=torch.float)
    width = table.shape[1]
    most = triton.next_power_of_2(width)
    _embed[(len(tokens),)](tokens, table, gain, hidden, scaled, squares, width, most)
    return States(hidden, gain, scaled, squares)


def normed_product(
    states: States, epsilon: float, weight: Tensor, bias: Tensor | None = None, gated: bool = False
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


def float_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x @ weight.T`` in float32, ``[M, N]``, rounded as the dtype of ``x`` rounds."""
    if len(x) > MOST_TOKENS:
        return linear(x, weight).float()
    return _launch(x.contiguous(), weight, dtype=torch.float32)[0]


def added_product(x: Tensor, weight: Tensor, states: States, gain: Tensor) -> States:
    """Return ``states + x @ weight.T`` before a norm with ``gain``."""
    if len(x) > MOST_TOKENS:
        return States(torch.addmm(states.hidden, x, weight.T), gain)
    hidden, scaled, squares = _launch(x, weight, residual=states.hidden, gain=gain)
    return States(hidden, gain, scaled, squares)


@triton.jit  # type: ignore[untyped-decorator]
def _halves(  # type: ignore[no-untyped-def]
    source, real, gain, cosines, sines, position, epsilon,
    width: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    """Load heads at ``source`` ``[rows]``, norm them if ``normed``, and rotate their halves."""
    half: tl.constexpr = width // 2
    first, real = tl.arange(0, half), real[:, None]
    a = tl.load(source[:, None] + first, mask=real, other=0.0)
    b = tl.load(source[:, None] + half + first, mask=real, other=0.0)
    kind = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    if normed:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / width + epsilon)[:, None]
        a *= scale * tl.load(gain + first).to(tl.float32)
        b *= scale * tl.load(gain + half + first).to(tl.float32)
    angle = position[:, None] * width + first
    cos = tl.load(cosines + angle, mask=real, other=0.0).to(tl.float32)
    sin = tl.load(sines + angle, mask=real, other=0.0).to(tl.float32)
    return (a * cos - b * sin).to(kind), (b * cos + a * sin).to(kind)


@triton.jit
def _weighed(largest, total, mixed, score, v):  # type: ignore[no-untyped-def]
    """Add values ``v`` to a softmax over scores so far, of which ``largest`` is the largest."""
    now = tl.maximum(largest, tl.max(score, 1))
    safe = tl.where(now == -float("inf"), 0.0, now)
    shrink = tl.exp(largest - safe)
    weight = tl.exp(score - safe[:, None])
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
    return now, total * shrink + tl.sum(weight, 1), mixed


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, at, cosines, sines, gain_q, gain_k, keys, values, parts, logs, finished, out,
    capacity, scale, epsilon,
    tokens: tl.constexpr, heads: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, added: tl.constexpr, slots: tl.constexpr, splits: tl.constexpr,
    normed: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Attend from the queries of a text and key head to one part of its keys.

    The last part has the keys of the new tokens, and moves them to the cache. The program that
    finishes last adds all parts.
    """
    program, split = tl.program_id(0), tl.program_id(1)
    text, head = program // key_heads, program % key_heads
    group: tl.constexpr = heads // key_heads
    half: tl.constexpr = width // 2
    states: tl.constexpr = (heads + 2 * key_heads) * width  # of a token
    row, place, first = tl.arange(0, rows), tl.arange(0, width), tl.arange(0, half)
    token, member = row // group, head * group + row % group
    real = row < tokens * group
    position = tl.load(at + text * tokens + token, mask=real, other=-1)
    if early:
        gdc_wait()
    query = qkv + (text * tokens + token) * states + member * width
    q_a, q_b = _halves(query, real, gain_q, cosines, sines, position, epsilon, width, normed)
    old = tl.load(at + text * tokens)  # keys in the cache
    blocks = tl.cdiv(old, slots)
    share = tl.cdiv(blocks, splits)
    base = (text * key_heads + head).to(tl.int64) * capacity * width
    largest = tl.full([rows], -float("inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, width], tl.float32)
    for block in range(split * share, tl.minimum(split * share + share, blocks)):
        slot = block * slots + tl.arange(0, slots)
        where, fits = base + slot[:, None] * width, (slot < old)[:, None]
        k_a = tl.load(keys + where + first, mask=fits, other=0.0)
        k_b = tl.load(keys + where + half + first, mask=fits, other=0.0)
        score = (tl.dot(q_a, tl.trans(k_a)) + tl.dot(q_b, tl.trans(k_b))) * scale
        score = tl.where((slot < old)[None], score, -float("inf"))
        v = tl.load(values + where + place, mask=fits, other=0.0)
        largest, total, mixed = _weighed(largest, total, mixed, score, v)
    if split == splits - 1:
        new = tl.arange(0, added)
        is_new = new < tokens
        slot = tl.load(at + text * tokens + new, mask=is_new, other=0)
        key = qkv + (text * tokens + new) * states + (heads + head) * width
        k_a, k_b = _halves(key, is_new, gain_k, cosines, sines, slot, epsilon, width, normed)
        value = key + key_heads * width
        v = tl.load(value[:, None] + place, mask=is_new[:, None], other=0.0)
        where = base + slot[:, None] * width
        tl.store(keys + where + first, k_a, mask=is_new[:, None])
        tl.store(keys + where + half + first, k_b, mask=is_new[:, None])
        tl.store(values + where + place, v, mask=is_new[:, None])
        score = (tl.dot(q_a, tl.trans(k_a)) + tl.dot(q_b, tl.trans(k_b))) * scale
        seen = is_new[None] & (slot[None] <= position[:, None])
        score = tl.where(seen, score, -float("inf"))
        largest, total, mixed = _weighed(largest, total, mixed, score, v)
    if early:
        gdc_launch_dependents()
    part = (program * splits + split) * rows + row
    mixed /= tl.maximum(total, 1e-30)[:, None]
    tl.store(parts + part[:, None] * width + place, mixed, mask=real[:, None])
    tl.store(logs + part, largest + tl.log(total))
    tl.debug_barrier()  # all threads have stored their numbers before one of them counts
    if tl.atomic_add(finished + program, 1) == splits - 1:
        part = program * splits * rows + row
        largest = tl.full([rows], -float("inf"), tl.float32)
        for _ in tl.static_range(splits):
            largest = tl.maximum(largest, tl.load(logs + part))
            part += rows
        part = program * splits * rows + row
        total = tl.zeros([rows], tl.float32)
        mixed = tl.zeros([rows, width], tl.float32)
        for _ in tl.static_range(splits):
            weight = tl.exp(tl.load(logs + part) - largest)
            some = tl.load(parts + part[:, None] * width + place, mask=real[:, None], other=0.0)
            total += weight
            mixed += weight[:, None] * some
            part += rows
        to = ((text * tokens + token) * heads + member) * width
        result = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + to[:, None] + place, result, mask=real[:, None])
        tl.store(finished + program, 0)  # for the next launch


class Attention(NamedTuple):
    """What a layer's attention needs beside its inputs."""

    angles: tuple[Tensor, Tensor]  # cosines and sines [capacity, width] whose halves are equal
    gains: tuple[Tensor, Tensor] | None  # [width] of the RMS norms of queries and keys
    epsilon: float  # of the norms
    scale: float  # of the scores
    finished: Tensor  # [MOST_TEXT_HEADS] zeros, before and after


def attend(qkv: Tensor, at: Tensor, keys: Tensor, values: Tensor, how: Attention) -> Tensor:
    """Rotate queries and keys, move keys and values to the cache, and attend to it.

    The keys of a text are split among programs, since one would not reach the memory's bandwidth.
    ``qkv`` is ``[B * k, (heads + 2 key heads) * width]``, before norm and rotation, the result
    ``[B * k, heads * width]``. The slots ``at`` ``[B, k]`` ascend in each row, and all before the
    first are in use. Keys and values of the cache are ``[B, key heads, capacity, width]``.
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
    out = torch.empty(len(qkv), heads * width, dtype=qkv.dtype, device=qkv.device)
    added = max(LEAST_TILE, triton.next_power_of_2(tokens))
    early = _starts_early(qkv.device)
    _attend[(texts * key_heads, splits)](
        qkv, at, *how.angles, *(how.gains or (qkv, qkv)), keys, values, parts, logs, how.finished,
        out, capacity, how.scale, how.epsilon, tokens, heads, key_heads, width, rows, added,
        SLOTS, splits, how.gains is not None, early, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return out
