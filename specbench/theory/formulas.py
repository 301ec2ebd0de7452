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


def accepted_length(acceptance: ArrayLike) -> Floats:
    """Return the expected accepted length of a block: sum over k of a_1 a_2 ... a_k.

    It is exact, however positions depend on each other, where a_k [..., N] is the probability that
    the k-th draft is accepted given that all before it were: the mean of sum_z q(z) a(z) over the
    contexts in which a k-th draft is judged, not over all that the draft model would reach. Of
    min(1, v(x_k) / q(x_k)) for one block drawn from q it is an unbiased estimate.

    Source: DIVERSED, arXiv:2604.07622, the step-dependent expression.
    """
    length: Floats = np.cumprod(np.asarray(acceptance, dtype=np.float64), axis=-1).sum(axis=-1)
    return length


def iid_accepted_length(acceptance: ArrayLike, n: int) -> Floats:
    """Return a (1 - a^N) / (1 - a): the accepted length where each draft passes with the same a.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1, less the target's own token.
    """
    # As the sum a + ... + a^N, which needs no special case and loses no digits near a = 1.
    return accepted_length(np.repeat(np.asarray(acceptance)[..., None], n, axis=-1))


def memory_bound_speedup(tokens: ArrayLike, n: int, bytes_ratio: float) -> Floats:
    """Return the speed-up where only reading the weights takes time: tau / (N c + 1).

    tau [...] are tokens per round, c the bytes of the draft's parameters over the target's.

    Source: the MBSU of Goel et al. 2024, arXiv:2403.00858.
    """
    gained: Floats = np.asarray(tokens) / (n * bytes_ratio + 1)
    return gained


def front_gap(p: ArrayLike, q: ArrayLike, law: ArrayLike, acceptance: ArrayLike) -> Floats:
    """Return how far a rule lies off the front of rejection and bias: 0 on it, above 0 off it.

    The rejection 1 - a, plus the bias TV(pi, p), minus TV(p, q). No rule that emits pi rejects less
    than TV(q, pi), which is at least TV(p, q) - TV(pi, p). So this is the excess of the bias over
    the least that its acceptance allows, and what is rejected beyond the rejections of ``sd``.
    ``sd``, ``lossy``, ``static`` and ``diversed`` lie on the front at any temperature above 0;
    rules with a threshold need not.

    ``law`` [..., V] is pi, what the rule emits; ``acceptance`` [...] is a = sum_z q(z) a(z).

    Source: DIVERSED, arXiv:2604.07622, the Pareto front of the static ensemble.
    """
    gap: Floats = 1 - np.asarray(acceptance) + total_variation(law, p) - total_variation(p, q)
    return gap
