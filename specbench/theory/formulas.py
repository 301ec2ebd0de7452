"""The closed forms of speculative decoding.

Functions of arrays whose last axis is the vocabulary (``p`` the target, ``q`` the draft) or the
positions of a block of drafts, N of them; leading axes are free. A round's accepted length is how
many of its drafts are kept; it emits one token more, the target's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def total_variation(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return TV(p, q) = 1/2 sum |p - q|, of [..., V] each."""
    distance: Floats = np.abs(np.asarray(p) - np.asarray(q)).sum(axis=-1) / 2
    return distance


def static_acceptance(p: ArrayLike, q: ArrayLike, weight: ArrayLike) -> Floats:
    """Return the probability 1 - w TV(p, q) that a static ensemble accepts a draft.

    At any temperature above 0. ``sd`` is w = 1; ``diversed`` has a weight per position.

    Args:
        p: [..., V] target probabilities.
        q: [..., V] draft probabilities.
        weight: [...] w on the target, 0 to 1.

    Source: DIVERSED, arXiv:2604.07622; for w = 1 Leviathan et al. 2023, arXiv:2211.17192,
    corollary 3.6.
    """
    return 1 - np.asarray(weight) * total_variation(p, q)


def accepted_length(acceptance: ArrayLike) -> Floats:
    """Return the expected accepted length of a block: sum over k of a_1 a_2 ... a_k.

    Exact, whatever the positions have to do with each other, where a_k is the probability that the
    k-th draft is accepted given that all before it were: then a_1 ... a_k is the probability that k
    drafts or more are. That is the mean of sum_z q(z) a(z) over the contexts in which a k-th draft
    is judged, and not over all that the draft model would reach. Of the acceptance probabilities
    min(1, v(x_k) / q(x_k)) of one block drawn from q, all N of them, it is an unbiased estimate.

    Args:
        acceptance: [..., N] a_1 to a_N.

    Source: DIVERSED, arXiv:2604.07622, the step-dependent expression.
    """
    length: Floats = np.cumprod(np.asarray(acceptance, dtype=np.float64), axis=-1).sum(axis=-1)
    return length


def iid_accepted_length(acceptance: ArrayLike, n: int) -> Floats:
    """Return a (1 - a^N) / (1 - a): the accepted length where each draft passes with the same a.

    Args:
        acceptance: [...] a.
        n: Drafts of a block, N.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1, less the target's own token.
    """
    return iid_tokens_per_round(acceptance, n) - 1


def iid_tokens_per_round(acceptance: ArrayLike, n: int) -> Floats:
    """Return (1 - a^(N + 1)) / (1 - a), which is N + 1 at a = 1.

    Args:
        acceptance: [...] a, the same at every position and independent of all else.
        n: Drafts of a block, N.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1.
    """
    # As the sum 1 + a + ... + a^N, which needs no special case and loses no digits near a = 1.
    powers = np.power.outer(np.asarray(acceptance, dtype=np.float64), np.arange(n + 1))
    tokens: Floats = powers.sum(axis=-1)
    return tokens


def memory_bound_speedup(tokens: ArrayLike, n: ArrayLike, bytes_ratio: float) -> Floats:
    """Return the speed-up where reading the weights is all that takes time: tau / (N c + 1).

    Args:
        tokens: [...] tau, tokens per round.
        n: Drafts of a round, N.
        bytes_ratio: c, bytes of the draft's parameters over those of the target's.

    Source: the MBSU of Goel et al. 2024, arXiv:2403.00858.
    """
    gained: Floats = np.asarray(tokens) / (np.asarray(n) * bytes_ratio + 1)
    return gained


def emitted_law(q: ArrayLike, accept: ArrayLike, residual: ArrayLike) -> Floats:
    """Return what a rule emits: pi(y) = q(y) a(y) + (1 - sum_z q(z) a(z)) r(y).

    Args:
        q: [..., V] what drafts are drawn from.
        accept: [..., V] a, the acceptance probability of each token.
        residual: [..., V] r, what replaces a rejected one.

    Source: Leviathan et al. 2023, arXiv:2211.17192, appendix A.1.
    """
    kept: Floats = np.asarray(q) * np.asarray(accept)
    law: Floats = kept + (1 - kept.sum(axis=-1, keepdims=True)) * np.asarray(residual)
    return law


def front_gap(p: ArrayLike, q: ArrayLike, law: ArrayLike, acceptance: ArrayLike) -> Floats:
    """Return how far a rule lies from the front of rejection and bias: 0 on it, above 0 off it.

    The rejection 1 - a, plus the bias TV(pi, p), minus TV(p, q). No rule that emits pi rejects less
    than TV(q, pi), which is at least TV(p, q) - TV(pi, p). So this is the excess of the law's bias
    over the least that its acceptance allows; and where it accepts less than ``sd`` does, which
    needs no bias at all, what it rejects in vain too. ``sd``, ``lossy``, ``static`` and
    ``diversed`` lie on the front at any temperature above 0; rules with a threshold need not.

    Args:
        p: [..., V] target probabilities.
        q: [..., V] draft probabilities.
        law: [..., V] pi, what the rule emits.
        acceptance: [...] a = sum_z q(z) a(z), the probability that it accepts.

    Source: DIVERSED, arXiv:2604.07622, the Pareto front of the static ensemble.
    """
    gap: Floats = 1 - np.asarray(acceptance) + total_variation(law, p) - total_variation(p, q)
    return gap
