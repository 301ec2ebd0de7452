"""Seconds of passes and rounds from a machine's figures, an engine's overheads and shapes.

A pass over t tokens reads weights and caches, multiplies t rows with the weights, and starts its
layers; several devices also add up each layer's results, twice. A round is a pass of the target
over N + 1 tokens of each text, after N passes of what drafts (one, if it drafts a block). Page
*price* has the formulas, and compares them with measurements.

Source: reading and computing as in Williams et al. 2009, doi:10.1145/1498765.1498785, joined by a
p-norm in place of the longer of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.errors import UsageError, require
from specbench.pricing.bounds import Kind, bound
from specbench.pricing.costs import LARGE_VOCABULARY, OF_SERVER, Costs
from specbench.pricing.heads import DraftPasses
from specbench.pricing.machines import GIB, Deployment
from specbench.pricing.shapes import ServedModel

FEW = 8  # rows that kernels without tiles multiply, in llama.cpp
TILE = 32  # rows that a tile of other kernels has there


class Workload(NamedTuple):
    """The length of requests in tokens."""

    prompt: float
    answer: float
    shared: float = 0.0  # of the prompt, in the prefix cache for all requests

    @property
    def context(self) -> float:
        """Tokens in the cache of a text, in the mean."""
        return self.prompt + self.answer / 2


def pass_seconds(
    server: Deployment,
    model: ServedModel,
    batch: float,
    tokens: float,
    context: float,
    shared: float = 0.0,
) -> float:
    """Return the seconds of a pass over so many tokens of each text, without fixed overhead.

    Each of ``batch`` texts has ``context`` tokens in its cache; those that all share are read once.
    """
    machine, engine, together = server.machine, server.engine, server.together
    rows = batch * tokens
    further = (batch - 1) * _cached(server, model, context - shared)  # of texts behind the first
    caches = _cached(server, model, context) + further
    read = model.bytes_read(rows) + caches
    reading = read / (engine.share * machine.bandwidth * together)
    computing = rows * _row_seconds(server, model)
    if (lanes := engine.few_rows.get(machine.backend)) and model.precision.layers < 16:
        if rows <= FEW:  # such a kernel reads a weight once, and unpacks it for each further row
            shape = model.shape
            again = rows * shape.multiplied - shape.weights_read(rows) - shape.of_head
            few = 2 * again / (lanes * (machine.vector or machine.flops))
            is_dearer = machine.backend == "cuda"  # than a tile, and used nevertheless
            computing = few if is_dearer else min(few, computing * TILE / rows)
        else:
            computing *= max(rows, TILE) / rows
    joined = float(np.linalg.norm([reading, computing], engine.overlap))
    layers = model.shape.layers * engine.layer
    if together > 1:
        sums = 2 * model.shape.layers
        layers += sums * (machine.hop + rows * model.shape.width * 2 / machine.link)
    return joined + layers


def _cached(server: Deployment, model: ServedModel, tokens: float) -> float:
    """Return the bytes of a text's cache on all devices: more of them than heads store copies."""
    heads = 1 if model.shape.cache_values else model.shape.kv_heads  # compressed keys are shared
    copies = max(1, server.together // heads)
    return model.shape.values_cached(tokens) * model.precision.cache / 8 * copies


def _row_seconds(server: Deployment, model: ServedModel) -> float:
    """Return the seconds of multiplying one token with all weights, in large products."""
    machine, engine, bits = server.machine, server.engine, model.precision.layers
    flops = machine.flops8 if 8 <= bits < 16 and machine.flops8 else machine.flops
    share = engine.compute * (engine.quantised if bits < 8 else 1)
    return 2 * model.shape.multiplied / (share * flops * server.together)


def round_seconds(
    server: Deployment,
    target: ServedModel,
    drafting: DraftPasses | None,
    drafts: int,
    batch: float,
    workload: Workload,
) -> tuple[float, float]:
    """Return the seconds of a round with N drafts, and those of them that drafting takes."""
    machine, engine = server.machine, server.engine
    context, shared = workload.context, workload.shared
    target_pass = pass_seconds(server, target, batch, drafts + 1, context, shared)
    target_pass += engine.fixed
    if drafting is None or drafts == 0:
        return target_pass, 0.0
    if target.precision.cache <= 8.5 and machine.flops8 is None:
        target_pass += engine.cache8
    drafted = 0.0
    if (model := drafting.model) is not None:
        passes, tokens = (1, drafts + 1) if drafting.in_blocks else (drafts, 1)
        step = engine.step + (engine.eagle3 if model.name == "eagle3" else 0.0)
        drafted = passes * (pass_seconds(server, model, batch, tokens, context, shared) + step)
        once = drafting.once * model.precision.layers / 8
        drafted += once / (engine.share * machine.bandwidth * server.together)
    return target_pass + drafted + engine.round, drafted


def prompt_seconds(
    server: Deployment, target: ServedModel, batch: float, workload: Workload
) -> float:
    """Return the seconds per token of a text in which prompts of other requests are read.

    Where a request ends another one begins, so each token of a text comes with its share of the
    prompts of all others.
    """
    unshared = workload.prompt - workload.shared
    rows = server.engine.prefill * unshared * (batch - 1) / workload.answer
    sums = 0.0
    if server.together > 1:
        sums = 2 * target.shape.layers * target.shape.width * 2 / server.machine.link
    return rows * (_row_seconds(server, target) + sums)


def most_texts(
    server: Deployment, target: ServedModel, drafting: DraftPasses | None, workload: Workload
) -> float:
    """Return how many texts fit into the memory at once; at most 0 if the weights do not.

    What all prompts share is stored once.
    """
    models = [target, *([drafting.model] if drafting and drafting.model else [])]
    room = server.gpus * server.machine.memory * server.engine.memory
    room -= sum(model.bytes_stored for model in models)
    shared = sum(_cached(server, model, workload.shared) for model in models)
    tokens = workload.context - workload.shared
    of_text = sum(_cached(server, model, tokens) for model in models)
    return (room - shared) / max(of_text, 1.0)


def require_fits_machine(
    server: Deployment, target: ServedModel, drafting: DraftPasses, workload: Workload, batch: int
) -> None:
    """Refuse a batch or models that the machines cannot hold."""
    shapes = [("target", target.shape)]
    shapes += [("draft", drafting.model.shape)] if drafting.model else []
    for role, shape in shapes:
        queries, heads = shape.heads, shape.kv_heads
        sharing = (n for n in range(2, queries + 1) if queries % n == 0)
        fitting = [n for n in sharing if min(heads % n, n % heads) == 0]
        require(
            server.together == 1 or server.gpus in fitting,
            f"--gpus {server.gpus} cannot share the {queries} heads and {heads} key-value heads of "
            f"the {role}: choose {' or '.join(map(str, fitting[:4])) or 1}",
        )
    most = most_texts(server, target, drafting, workload)
    needed = target.bytes_stored + (drafting.model.bytes_stored if drafting.model else 0)
    if most < 1:
        raise UsageError(
            f"the weights ({needed / GIB:.0f} GiB) and a text do not fit the memory of "
            f"{server.place}: give more --gpus, a larger --machine, or --weights of fewer bits"
        )
    require(
        batch <= most,
        f"--batch-size {batch} does not fit the memory of {server.place} beside "
        f"{needed / GIB:.0f} GiB of weights: at most {int(most)} texts do, with prompts of "
        f"{workload.prompt:.0f} tokens and answers of {workload.answer:.0f}",
    )


def computed_costs(
    server: Deployment,
    target: ServedModel,
    drafting: DraftPasses,
    workload: Workload,
    batches: Sequence[int],
    lengths: Sequence[int],
    drafter: str,
) -> Costs:
    """Return the costs by formulas; ``lengths`` are those of drafts, without 0."""
    grid = [0, *lengths]
    seconds = np.array(
        [[round_seconds(server, target, drafting, n, b, workload) for n in grid] for b in batches]
    )
    prompts = np.array([prompt_seconds(server, target, b, workload) for b in batches])
    is_large = target.shape.vocabulary >= LARGE_VOCABULARY
    return Costs(
        f"{server.place}, {server.engine.description}",
        np.array(batches, dtype=float),
        np.array(grid, dtype=float),
        seconds[None, ..., 0],
        seconds[None, ..., 1],
        prompts,
        bound(Kind.of(server, target, drafter)),
        OF_SERVER if is_large and server.engine.few_rows else "",
    )
