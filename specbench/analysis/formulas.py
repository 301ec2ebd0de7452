"""Closed forms of speculative decoding.

The functions take arrays whose last axis is the vocabulary (``p`` target, ``q`` draft) or the N
positions of a block of drafts; leading axes are free. The accepted length of a round is the number
of drafts accepted. A round emits one more token, the target's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def total_variation(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return TV(p, q) = 1/2 sum |p - q| of distributions [..., V]."""
    distance: Floats = np.abs(np.asarray(p) - np.asarray(q)).sum(axis=-1) / 2
    return distance


def accepted_length(acceptance: ArrayLike) -> Floats:
    """Return the expected accepted length of a block: sum over k of a_1 a_2 ... a_k.

    The formula is exact for dependent positions too, if a_k [..., N] is the probability that the
    k-th draft is accepted given that all drafts before it were. This is the mean of
    sum_z q(z) a(z) over the contexts in which a k-th draft is judged, not over all contexts that
    the draft model reaches. For one block drawn from q, a_k = min(1, v(x_k) / q(x_k)) gives an
    unbiased estimate.

    Source: DIVERSED, arXiv:2604.07622, the step-dependent expression.
    """
    length: Floats = np.cumprod(np.asarray(acceptance, dtype=np.float64), axis=-1).sum(axis=-1)
    return length


def iid_accepted_length(acceptance: ArrayLike, n: int) -> Floats:
    """Return a (1 - a^N) / (1 - a): the accepted length if every draft has acceptance rate a.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1, without the target's own token.
    """
    # The sum a + ... + a^N needs no special case and keeps its precision near a = 1.
    return accepted_length(np.repeat(np.asarray(acceptance)[..., None], n, axis=-1))


def memory_bound_speedup(tokens: ArrayLike, n: int, bytes_ratio: float) -> Floats:
    """Return the speed-up if only reading the weights takes time: tau / (N c + 1).

    tau [...] is tokens per round; c is the bytes of the draft's parameters / the target's.

    Source: the MBSU of Goel et al. 2024, arXiv:2403.00858.
    """
    gained: Floats = np.asarray(tokens) / (n * bytes_ratio + 1)
    return gained


def front_gap(p: ArrayLike, q: ArrayLike, law: ArrayLike, acceptance: ArrayLike) -> Floats:
    """Return a rule's distance from the Pareto front of rejection and bias; 0 on the front.

    The gap is (1 - a) + TV(pi, p) - TV(p, q): rejection plus bias minus the distance of the models.
    A rule that emits pi rejects at least TV(q, pi) >= TV(p, q) - TV(pi, p), so the gap is never
    negative. It is the bias beyond the minimum for the rule's acceptance. ``sd``, ``lossy``,
    ``static`` and ``diversed`` lie on the front at any temperature above 0; threshold rules need
    not.

    ``law`` [..., V] is pi, what the rule emits; ``acceptance`` [...] is a = sum_z q(z) a(z).

    Source: DIVERSED, arXiv:2604.07622, the Pareto front of the static ensemble.
    """
    gap: Floats = 1 - np.asarray(acceptance) + total_variation(law, p) - total_variation(p, q)
    return gap
