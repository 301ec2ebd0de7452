"""What each method must emit, in NumPy, straight from the table of formulas.

Independent of the implementation on purpose: one position at a time, no coupling, no residual.
Each function returns the emitted distribution and the probability that the draft is accepted.
"""

from collections.abc import Callable

import numpy as np

from .cases import Array, Case, LinearHead, Mask

Law = tuple[Array, float]


def tv(a: Array, b: Array) -> float:
    return float(np.abs(a - b).sum() / 2)


def point(token: int, size: int) -> Array:
    return np.where(np.arange(size) == token, 1.0, 0.0)


def sd(at: Case) -> Law:
    if at.greedy:
        agreed = at.p1.argmax() == at.q1.argmax()
        return point(int(at.p1.argmax()), at.p1.size), float(agreed)
    return at.p, 1 - tv(at.p, at.q)


def lossy(at: Case, lenience: float) -> Law:
    if at.greedy:
        x = at.q1.argmax()
        kept = at.p1[x] >= lenience * at.p1.max()
        return point(int(x if kept else at.p1.argmax()), at.p1.size), float(kept)
    p, q = at.p, at.q
    rejected = float(np.maximum(q - p / lenience, 0).sum())
    distance = tv(p, q)
    if distance == 0:
        return q, 1.0
    d = rejected / distance
    pi = np.empty_like(p)
    for y in range(p.size):
        if q[y] <= p[y]:
            pi[y] = d * p[y] + (1 - d) * q[y]
        elif q[y] < p[y] / lenience:
            pi[y] = q[y]
        else:
            pi[y] = p[y] / lenience
    return pi, 1 - rejected


def static(at: Case, weight: float) -> Law:
    if at.greedy:
        v1 = weight * at.p1 + (1 - weight) * at.q1
        agreed = v1.argmax() == at.q1.argmax()
        return point(int(v1.argmax()), v1.size), float(agreed)
    v = weight * at.p + (1 - weight) * at.q
    return v, 1 - weight * tv(at.p, at.q)


def diversed(at: Case, head: LinearHead) -> Law:
    draft, target = np.exp(head.scores @ np.concatenate([at.h_q, at.h_p]))
    return static(at, target / (draft + target))


def speccascade(at: Case, rule: str, alpha: float) -> Law:
    pi = DEFERRAL[rule](at, alpha)
    return pi, 1 - tv(at.q, pi)


def chow(at: Case, alpha: float) -> Array:
    return at.q if at.q1.max() >= 1 - alpha else at.p


def diff(at: Case, alpha: float) -> Array:
    return at.q if at.q1.max() >= at.p1.max() - alpha else at.p


def opt(at: Case, alpha: float) -> Array:
    distance = float(at.p1.argmax() != at.q1.argmax()) if at.greedy else tv(at.p, at.q)
    return at.q if at.q1.max() >= at.p1.max() - alpha * distance else at.p


def token_v1(at: Case, alpha: float) -> Array:
    return trusting(at, at.q1 >= at.p1.max() - alpha)


def token_v2(at: Case, alpha: float) -> Array:
    return trusting(at, at.p1 >= at.p1.max() - alpha)


def token_v3(at: Case, alpha: float) -> Array:
    if at.greedy:
        x = at.q1.argmax()
        kept = at.p1[x] >= (1 - alpha) * at.p1.max()
        return point(int(x if kept else at.p1.argmax()), at.p1.size)
    return trusting(at, at.p1 >= (1 - alpha) * at.p1.max())


def trusting(at: Case, trusted: Mask) -> Array:
    eta = float(1 - at.q[trusted].sum())
    return np.where(trusted, at.q, 0.0) + eta * at.p


DEFERRAL: dict[str, Callable[[Case, float], Array]] = {
    "chow": chow,
    "diff": diff,
    "opt": opt,
    "token-v1": token_v1,
    "token-v2": token_v2,
    "token-v3": token_v3,
}
