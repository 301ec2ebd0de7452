"""The decoding loop, for every method alike.

A round drafts N tokens with the draft model, reads them with the target in one pass, lets the rule
judge each, keeps those before the first rejection and adds one more token: a draw from the residual
of the rejected position, or from p after the last draft (the bonus token). With N = 0 a round is
one autoregressive step. The loop knows no rule by name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.records import Generation, RoundRecord, StopReason
from specbench.decoding.sampling import Sampling, draw, uniforms
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import RunError
from specbench.methods import Positions, Verdict

Verify = Callable[[Positions, Tensor], Verdict]
"""A rule with its parameters bound: ``verify(positions, x) -> verdict``."""


class Round(NamedTuple):
    """Outcome of one round on the device: accepted drafts and what the rule said of each draft."""

    accepted: Tensor  # [] number of drafts accepted
    expected: Tensor  # [N]
    weights: Tensor | None  # [N]


def play_round(
    target: Runner,
    draft: Runner | None,
    verify: Verify | None,
    tokens: Tensor,
    length: int,
    chance: Tensor,
    sampling: Sampling,
) -> Round:
    """Draft, verify and append up to N + 1 tokens.

    Args:
        target: Target model; its cache holds the first ``length - 1`` tokens.
        draft: Draft model; its cache holds ``length - 1`` tokens or one fewer. None for N = 0.
        verify: The rule; None for N = 0.
        tokens: ``[capacity]`` all tokens so far; written in place after ``length``.
        length: Number of tokens so far.
        chance: ``[2 N + 1]`` uniform numbers.
        sampling: Processing of the logits.
    """
    n = len(chance) // 2
    said: list[tuple[Tensor, Tensor, Tensor]] = []
    for i in range(n):
        assert draft is not None
        logits, hidden = draft.forward(tokens[draft.length : length + i])
        q, q1 = sampling.distributions(logits[-1:])
        tokens[length + i : length + i + 1] = draw(q[0], chance[i])
        said.append((q, q1, hidden[-1:]))

    logits, h_p = target.forward(tokens[target.length : length + n])
    p, p1 = sampling.distributions(logits)
    if verify is None:
        tokens[length : length + 1] = draw(p[0], chance[0])
        return Round(torch.zeros((), dtype=torch.long), p.new_zeros(0), None)

    q, q1, h_q = (torch.cat(rows) for rows in zip(*said, strict=True))
    at = Positions(p[:n], q, p1[:n], q1, h_p[:n], h_q, sampling.greedy)
    verdict = verify(at, tokens[length : length + n])
    accepted = (chance[n : 2 * n] < verdict.accept).cumprod(0).sum()
    last = torch.cat((verdict.residual, p[n:]))[accepted]
    tokens[length + accepted : length + accepted + 1] = draw(last, chance[-1])
    return Round(accepted, verdict.expected, verdict.weight)


@torch.inference_mode()
def decode(
    pair: LoadedPair,
    verify: Verify | None,
    prompt_ids: Sequence[int],
    *,
    sampling: Sampling,
    draft_length: int,
    max_new_tokens: int,
    seed: int,
    sample_key: str,
    stop: Sequence[str] = (),
) -> Generation:
    """Decode one sample.

    Args:
        pair: Loaded models and tokenizer.
        verify: The rule; None decodes autoregressively, whatever the draft length.
        prompt_ids: At least one token.
        sampling: Processing of the logits, the same for both models.
        draft_length: Drafted tokens per round, N.
        max_new_tokens: Limit on the output, the end token included.
        seed: Seed of the run.
        sample_key: Identity of the sample; with the seed it decides every draw.
        stop: Strings that end the output where they appear.

    Raises:
        RunError: Prompt and output do not fit the models' context.
    """
    n = 0 if verify is None else draft_length
    draft = pair.draft if n else None
    runners = [pair.target, draft] if draft else [pair.target]
    begin, device = len(prompt_ids), pair.target.device
    context = min((r.context for r in runners if r.context), default=math.inf)
    if begin + max_new_tokens > context:
        raise RunError(
            f"a prompt of {begin} tokens and {max_new_tokens} new ones exceed the context of "
            f"{context}: shorten the prompt or lower --max-new-tokens"
        )
    capacity = begin + max_new_tokens + n + 1
    tokens = torch.zeros(capacity, dtype=torch.long, device=device)
    tokens[:begin] = torch.tensor(prompt_ids)
    chances = uniforms(seed, sample_key, max_new_tokens, n).to(device)

    started = _now(device)
    for runner in runners:
        runner.start(tokens[:begin], capacity)
    prefilled = _now(device)
    rounds: list[RoundRecord] = []
    output: list[int] = []
    reason: StopReason | None = None
    while reason is None:
        length = begin + len(output)
        outcome = play_round(
            pair.target, draft, verify, tokens, length, chances[len(rounds)], sampling
        )
        accepted = int(outcome.accepted)
        fresh = tokens[length : length + accepted + 1].tolist()
        kept, reason = _append(output, fresh, pair, max_new_tokens, stop)
        rounds.append(_record(outcome, n, accepted, kept))
        for runner in runners:
            runner.rewind(length + accepted)
        assert pair.target.length == length + accepted, "the target's cache is out of step"
    finished = _now(device)

    ids = output[:-1] if reason == "eos" else output
    text = str(pair.tokenizer.decode(ids, skip_special_tokens=True))
    for string in stop:
        text = text.split(string, 1)[0]
    return Generation(
        token_ids=ids,
        text=text,
        prompt_tokens=begin,
        output_tokens=len(output),
        stopped_by=reason,
        prefill_seconds=prefilled - started,
        decode_seconds=finished - prefilled,
        rounds=rounds,
    )


def _append(
    output: list[int], fresh: list[int], pair: LoadedPair, limit: int, stop: Sequence[str]
) -> tuple[int, StopReason | None]:
    """Append a round's tokens up to where the output ends; return how many and why it ended."""
    for kept, token in enumerate(fresh, 1):
        output.append(token)
        if token in pair.eos_ids:
            return kept, "eos"
        if stop and any(string in pair.tokenizer.decode(output) for string in stop):
            return kept, "stop"
        if len(output) == limit:
            return kept, "length"
    return len(fresh), None


def _record(outcome: Round, n: int, accepted: int, kept: int) -> RoundRecord:
    """Count a round of which the output keeps ``kept`` tokens."""
    whole = kept == accepted + 1
    judged = min(accepted + 1, n) if whole else kept
    return RoundRecord(
        proposed=n if whole else kept,
        accepted=accepted if whole else kept,
        emitted=kept,
        expected=tuple(outcome.expected[:judged].tolist()),
        weights=() if outcome.weights is None else tuple(outcome.weights[:judged].tolist()),
    )


def _now(device: torch.device) -> float:
    """Seconds on a clock that has waited for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
