"""A comparison of an engine with eager execution, on a few rounds of short texts.

The engine decodes the texts as in a run. After each of its parts, eager PyTorch does the same from
the same state, on caches of its own: plain passes over the engine's drafts give q and p, and draws
and verification are repeated. So stale memory, a wrong position or a wrong mask shows in the round
in which it arises, and rounding in a half precision does not: where distributions differ within
the tolerance, different draws from them are no difference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specbench.decoding.drafting import Drafter, Drafts, State, joined
from specbench.decoding.loop import Batch, DecodeOptions, Request
from specbench.decoding.round import (
    StepOutput,
    StepTimes,
    TargetOutput,
    autoregressive_step,
    target_forward,
    verify,
)
from specbench.decoding.sampling import Sampling, draw, without_kernels
from specbench.engine.device import now, timestamp
from specbench.engine.engines import Engine
from specbench.engine.pair import LoadedPair
from specbench.methods import Rule

ROUNDS = 4
PROMPT_TOKENS = (9, 2, 17, 5)  # by row, repeated
# Largest total variation between the distributions of the two. Kernels round differently.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}
# Largest change of a logit's lead by the number of tokens in a pass. Quantised weights are computed
# with quantised inputs, which rounds like bfloat16.
ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 1.0}


def rounding_of(pair: LoadedPair) -> float:
    """Return by how much rounding may change the difference of two logits of the target."""
    return ROUNDING[pair.target.dtype if pair.library.exact else torch.bfloat16]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison, for ``environment.json``."""

    engine: str
    device: str
    dtype: str
    rounds: int  # compared
    total_variation: float  # the largest between distributions of the engine and of eager
    difference: str | None  # the first difference beyond rounding
    seconds: float


@torch.inference_mode()
def compare_with_eager(pair: LoadedPair, rule: Rule | None, options: DecodeOptions) -> Comparison:
    """Decode a few rounds on the pair's engine, and check each part against eager execution.

    Rule, draft length, drafter and batch size are those of a run, so that what is compiled or
    captured here serves the run too; a control is not used. ``rule`` is None for N = 0.
    """
    began, name = time.perf_counter(), pair.engine.name
    rule = rule if options.draft_length else None
    n = options.draft_length if rule else 0
    prompts = [
        [(7 * row + 3 * i) % pair.target.vocabulary for i in range(1, length + 1)]
        for row in range(options.batch_size)
        for length in [PROMPT_TOKENS[row % len(PROMPT_TOKENS)]]
    ]
    limit = ROUNDS * (n + 1) + 1  # no text ends
    context = pair.context or limit + max(PROMPT_TOKENS)
    limit = min(limit, context - max(PROMPT_TOKENS))
    options = replace(options, max_new_tokens=limit, stop=(), control=None)
    batch = Batch(
        replace(pair, eos_ids=frozenset()),
        rule,
        [Request(prompt, f"comparison {row}") for row, prompt in enumerate(prompts)],
        options,
    )
    eager = replace(pair, target=pair.target.twin(), draft=pair.draft.twin(), engine=Engine())
    drafter = options.drafter.twin(eager) if rule else None
    eager.target.layers = pair.target.layers
    for model in (eager.target, *(drafter.runners(eager) if drafter else ())):
        model.reserve(len(prompts), max(PROMPT_TOKENS) + limit + n + 1)
    for row, ids in enumerate(prompts):
        prompt = torch.tensor(ids, device=pair.target.device)
        states = eager.target.prefill(prompt, row)
        if drafter is not None:
            drafter.prefill(eager, prompt, row, states)

    rounds, worst, difference = 0, 0.0, None
    while difference is None and rounds < (limit - 1) // (n + 1):
        started, state = now(pair.target.device), batch.state()
        plain = state._replace(kv_length=batch.longest)
        drafts, output, chosen = _round(pair, rule, state, options)
        eagerly = replace(options, drafter=drafter or options.drafter)
        with without_kernels():
            variation, difference = _difference(eager, rule, plain, eagerly, drafts, output, chosen)
        worst, rounds = max(worst, variation), rounds + 1
        if difference is None:
            batch.advance(chosen, StepTimes(*[timestamp(pair.target.device)] * 4), started)
    device, dtype = str(pair.target.device), str(pair.target.dtype).removeprefix("torch.")
    seconds = round(time.perf_counter() - began, 3)
    return Comparison(name, device, dtype, rounds, worst, difference, seconds)


def _round(
    pair: LoadedPair, rule: Rule | None, state: State, options: DecodeOptions
) -> tuple[Drafts | None, TargetOutput, StepOutput]:
    """Run a round as ``speculative_step`` does, and return the outputs of its parts."""
    engine, sampling = pair.engine, options.sampling
    state = engine.place(state)
    if rule is None:
        output = engine(target_forward)(pair.target, state, None, sampling)
        return None, output, engine(autoregressive_step)(pair.target, state, sampling)
    drafts = options.drafter(pair, state, sampling, None)
    output = engine(target_forward)(pair.target, state, drafts.x, sampling)
    return drafts, output, engine(verify)(rule, state, drafts, output, sampling.greedy, None)


def _difference(
    eager: LoadedPair,
    rule: Rule | None,
    state: State,
    options: DecodeOptions,
    drafts: Drafts | None,
    output: TargetOutput,
    chosen: StepOutput,
) -> tuple[float, str | None]:
    """Return the largest total variation of a round, and its first difference, if any."""
    sampling, tolerance, worst = options.sampling, TOLERANCE[eager.target.dtype], 0.0
    if drafts is not None:
        x = drafts.x
        if not bool(((x >= 0) & (x < eager.target.vocabulary)).all()):
            return worst, "drafts are no tokens"
        if options.drafter.runners(eager):
            worst = _variation(drafts.q1, _draft_laws(options.drafter, eager, state, x, sampling))
            if not worst <= tolerance:
                return worst, f"the draft's distributions differ by {worst:.2g}"
            draws = (draw(drafts.q[:, i], state.uniforms[:, i]) for i in range(x.shape[1]))
            if not torch.equal(torch.stack(list(draws), 1), x):
                return worst, "drafts are not drawn from the draft's distributions"
    p1 = target_forward(eager.target, state, drafts and drafts.x, sampling).p1
    worst = max(worst, variation := _variation(output.p1, p1))
    if not variation <= tolerance:
        return worst, f"the target's distributions differ by {variation:.2g}"
    if drafts is None or rule is None:
        tokens = draw(output.p[:, 0], state.uniforms[:, 0])[:, None]
        same = torch.equal(chosen.last, torch.cat((state.last[:, 1:], tokens), 1))
        same = same and torch.equal(chosen.length, state.length + state.active)
    else:
        redone = verify(rule, state, drafts, output, sampling.greedy)
        same = torch.equal(chosen.last, redone.last) and torch.equal(chosen.length, redone.length)
    return worst, None if same else "other tokens follow from the same distributions"


def _draft_laws(
    drafter: Drafter, pair: LoadedPair, state: State, x: Tensor, sampling: Sampling
) -> Tensor:
    """Return q1 ``[B, n, V]`` of drafts ``x`` ``[B, n]``, from one step after the other."""
    (model,) = drafter.runners(pair)
    steps: list[Drafts] = []
    for i in range(x.shape[1]):
        previous = steps[-1]._replace(x=x[:, i - 1 : i]) if steps else None
        steps.append(drafter.step(model, state, previous, i, sampling))
    return joined(steps).q1


def _variation(first: Tensor, second: Tensor) -> float:
    """Return the largest total variation of distributions ``[..., V]``; NaN if one has a NaN."""
    return float((first - second).abs().sum(-1).max() / 2)
