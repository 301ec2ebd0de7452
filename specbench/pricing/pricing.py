"""Prices of drafters and policies on scored texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafters.policies import Drafting, Floats, Policy, replay
from specbench.pricing.rounds import (
    PricedRounds,
    acceptance,
    block,
    reach_of,
    starts,
    windows,
    with_one,
)
from specbench.pricing.scores import Scores

MOST = 16  # drafts of a round
DRAFT_COST = 0.1  # seconds of a draft step / seconds of a target pass


def drafting(
    scores: Scores,
    drafter: DrafterKind = ModelDrafter(),  # noqa: B008 (frozen)
    rule: str = "sd",
    most: int = MOST,
    seconds: Floats | None = None,
) -> Drafting:
    """Return what is known of all rounds of texts, with up to ``most`` drafts.

    Args:
        scores: The texts.
        drafter: What proposes drafts; with weights of its own, one of ``scores.modules``.
        rule: What judges drawn drafts: ``match``, ``block``, or ``sd`` and its like.
        most: N.
        seconds: ``[N + 1]`` of a round with so many drafts; by default those of a target pass and
            ``DRAFT_COST`` for each draft, in units of the target pass.
    """
    costs: Floats = (1 + DRAFT_COST * np.arange(most + 1.0)) if seconds is None else seconds
    if drafter.copies:
        return _copied(scores, drafter, most, costs)
    scores = scores.modules.get(drafter, scores)
    top, entropy = windows(scores.top_q, most), windows(scores.entropy_q, most)
    if likeliest := drafter.greedy or scores.temperature == 0:  # every rule accepts these alike
        reach = reach_of((scores.rank_q == 1).astype(np.float64), most)
    elif rule == "block":
        reach = block(scores, most)
    else:
        reach = reach_of(scores.q if rule == "match" else acceptance(scores), most)
    return Drafting(
        top if likeliest else windows(scores.q, most),
        top,
        entropy,
        reach,
        np.full(scores.tokens.shape, most),
        scores.length,
        costs,
    )


def _copied(scores: Scores, drafter: DrafterKind, most: int, seconds: Floats) -> Drafting:
    """Return the rounds of copied drafts, which depend on where a round starts."""
    shape = (*scores.tokens.shape, most)
    copied, proposed = np.full(shape, -1), np.zeros(shape[:2], dtype=np.int64)
    for text, prompt in enumerate(scores.prompts):
        size = int(scores.length[text])
        drafts, number = drafter.copied(prompt, scores.tokens[text, :size].tolist(), most)
        copied[text, :size], proposed[text, :size] = drafts.numpy(), number.numpy()
    following = windows(scores.tokens.astype(np.float64), most)
    is_proposed = np.arange(most) < proposed[..., None]
    equal = ((copied == following) & is_proposed).astype(np.float64)
    sure, reach = np.ones(shape), with_one(equal.cumprod(-1))
    return Drafting(sure, sure, np.zeros(shape), reach, proposed, scores.length, seconds)


class Visits(NamedTuple):
    """Where rounds start and how many drafts they have."""

    rounds: Floats  # [B, T] expected rounds that start at each token
    drafted: Floats  # [B, T] expected drafts of these rounds
    seconds: Floats  # [B, T] expected seconds of these rounds


def visits(rounds: Drafting, policy: Policy, first: int = 0) -> Visits:
    """Walk along texts with a policy; see ``rounds.starts`` for ``first``."""
    if policy.replayed:
        law = replay(policy, rounds, first, range(len(rounds.length)))
        numbers = np.arange(rounds.longest + 1)
        return Visits(law.sum(-1), law @ numbers, law @ rounds.seconds)
    drafts = np.minimum(policy(rounds), rounds.most)
    started = starts(rounds.reach, drafts, rounds.length, first)
    return Visits(started, started * drafts, started * rounds.seconds[drafts])


def price(
    scores: Scores,
    drafter: DrafterKind,
    policy: Policy,
    lengths: Sequence[int],
    *,
    rule: str = "sd",
    first: int = 0,
) -> PricedRounds:
    """Return the expected rounds and drafts of each prompt for each N of ``lengths``."""
    whole = drafting(scores, drafter, rule, max(lengths))
    walks = [visits(whole.within(length), policy, first) for length in lengths]
    tokens = np.maximum(scores.length - first, 0)
    rounds = [walk.rounds.sum(-1) for walk in walks]
    drafted = [walk.drafted.sum(-1) for walk in walks]
    sums = scores.by_prompt(np.column_stack([tokens, *rounds, *drafted]))
    return PricedRounds(
        drafter,
        policy.label,
        tuple(lengths),
        sums[:, 0],
        *np.split(sums[:, 1:], 2, axis=1),
    )


def drafter_label(drafter: DrafterKind, rule: str) -> str:
    """Return a drafter's name, with the rule where it matters."""
    alike = drafter.one_hot or rule not in ("match", "block")
    return f"{drafter}" if alike else f"{drafter}, {rule}"
