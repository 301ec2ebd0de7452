"""Prices of drafters and policies on scored texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.decoding.drafters.policies import Drafting, Floats, Policy, replay
from specbench.methods.drafters import GREEDY, MODEL, ngram_lengths
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
DRAFT_COST = 0.1  # seconds of a draft step / seconds of a target pass, for the oracle


def drafting(
    scores: Scores, drafter: str = MODEL, rule: str = "sd", most: int = MOST
) -> Drafting:
    """Return what is known of all rounds of texts, with up to ``most`` drafts.

    Args:
        scores: The texts.
        drafter: A name of ``methods.drafters``, or of a head in ``scores.heads``.
        rule: What judges drawn drafts: ``match``, ``block``, or ``sd`` and its like.
        most: N.
    """
    seconds: Floats = 1 + DRAFT_COST * np.arange(most + 1.0)
    if sizes := ngram_lengths(drafter):
        return _copied(scores, sizes, most, seconds)
    scores = scores.heads.get(drafter, scores)
    top, entropy = windows(scores.top_q, most), windows(scores.entropy_q, most)
    if likeliest := drafter == GREEDY or scores.temperature == 0:  # every rule accepts these alike
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
        seconds,
    )


def _copied(scores: Scores, sizes: tuple[int, int], most: int, seconds: Floats) -> Drafting:
    """Return the rounds of prompt lookup, whose proposals depend on where a round starts."""
    import torch

    from specbench.decoding.drafters.lookup import lookup

    shape = (*scores.tokens.shape, most)
    copied, proposed = np.full(shape, -1), np.zeros(shape[:2], dtype=np.int64)
    for text, prompt in enumerate(scores.prompts):
        size = int(scores.length[text])
        whole = torch.tensor([*prompt, *scores.tokens[text, :size].tolist()])
        length = len(prompt) + torch.arange(size)
        drafts, number = lookup(whole.expand(size, -1), length, most, *sizes)
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


def visits(rounds: Drafting, policy: Policy, skipped_tokens: int = 0) -> Visits:
    """Walk along texts with a policy; see ``rounds.starts`` for ``skipped_tokens``."""
    if policy.replayed:
        law = replay(policy, rounds, skipped_tokens, range(len(rounds.length)))
        return Visits(law.sum(-1), law @ np.arange(rounds.longest + 1))
    drafts = np.minimum(policy(rounds), rounds.most)
    started = starts(rounds.reach, drafts, rounds.length, skipped_tokens)
    return Visits(started, started * drafts)


def price(
    scores: Scores,
    drafter: str,
    policy: Policy,
    lengths: Sequence[int],
    *,
    rule: str = "sd",
) -> PricedRounds:
    """Return the expected rounds and drafts of each prompt for each N of ``lengths``."""
    whole = drafting(scores, drafter, rule, max(lengths))
    walks = [visits(whole.within(length), policy) for length in lengths]
    rounds = [walk.rounds.sum(-1) for walk in walks]
    drafted = [walk.drafted.sum(-1) for walk in walks]
    sums = scores.by_prompt(np.column_stack([scores.length, *rounds, *drafted]))
    return PricedRounds(
        drafter_label(drafter, rule),
        policy.label,
        tuple(lengths),
        sums[:, 0],
        *np.split(sums[:, 1:], 2, axis=1),
    )


def drafter_label(drafter: str, rule: str) -> str:
    """Return a drafter's name, with the rule where it matters."""
    alike = drafter == GREEDY or ngram_lengths(drafter) or rule not in ("match", "block")
    return drafter if alike else f"{drafter}, {rule}"
