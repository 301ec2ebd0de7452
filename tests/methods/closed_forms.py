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
    return static(at, target_weight(at, head))


def target_weight(at: Case, head: LinearHead) -> float:
    draft, target = np.exp(head.scores @ np.concatenate([at.h_q, at.h_p]))
    return float(target / (draft + target))


def block(at: Case) -> Law:
    """Of a block of one draft."""
    return sd(at)


def mentored(at: Case, budget: float) -> Law:
    """By bisection of the rejection; sum (p/b - q)+ is the largest P/b - Q of any set of tokens."""
    if at.greedy:
        return sd(at)
    p, q = at.p, at.q
    order = np.argsort(np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0))
    low_p, low_q = np.cumsum(p[order]), np.cumsum(q[order])
    high_p, high_q = np.cumsum(p[order][::-1]), np.cumsum(q[order][::-1])

    def clipped(rejection: float) -> Array:
        cut = low_q > rejection + 1e-15
        a = min(1.0, np.min(low_p[cut] / (low_q[cut] - rejection), initial=1.0))
        b = max(1.0, np.max(high_p / (rejection + high_q)))
        most = p / a if a > 0 else np.where(p > 0, np.inf, 0.0)
        return np.clip(q, p / b, most)

    def divergence(pi: Array) -> float:
        seen = p > 0
        return float((p[seen] * np.log(p[seen] / pi[seen])).sum())

    least, most = float(q[p == 0].sum()), tv(p, q)
    if least == 0 and divergence(q + 1e-300) <= budget:
        return q, 1.0
    for _ in range(50):
        middle = (least + most) / 2
        if divergence(clipped(middle)) > budget:
            least = middle
        else:
            most = middle
    return clipped(most), 1 - most


def typical(at: Case, epsilon: float, delta: float) -> Law:
    seen = at.p[at.p > 0]
    entropy = -(seen * np.log(seen)).sum()
    kept = np.where(at.p > min(epsilon, delta * np.exp(-entropy)), at.q, 0.0)
    return kept + (1 - kept.sum()) * point(int(at.p.argmax()), at.p.size), float(kept.sum())


def sharpened(at: Case, target_temperature: float, target_min_p: float) -> Law:
    power = (at.p / at.p.max()) ** (1 / target_temperature)
    power[power < target_min_p] = 0.0
    target = power / power.sum()
    return target, float(np.minimum(target, at.q).sum())


def cactus(at: Case, divergence: float) -> Law:
    """One drafted token after the other: each is verified against a distribution of its own."""
    p, q = at.p, at.q
    pi, kept = np.zeros_like(p), 0.0
    for x in range(p.size):
        g = min(1.0, p[x] + np.sqrt(2 * divergence * p[x] * (1 - p[x])))
        h = p * (1 - g) / (1 - p[x]) if p[x] < 1 else np.zeros_like(p)
        h[x] = g
        accepted = min(q[x], g)
        pi[x] += accepted
        kept += accepted
        if q[x] > accepted:
            more = np.maximum(h - q, 0)
            pi += (q[x] - accepted) * more / more.sum()
    return pi, kept


def gated(at: Case, gate: float, weight: float) -> Law:
    head = at.p1 >= gate * at.p1.max()
    if at.greedy:
        if not head.any():
            return sd(at)
        y = int(np.where(head, weight * at.p1 + (1 - weight) * at.q1, -1.0).argmax())
        return point(y, at.p1.size), float(y == at.q1.argmax())
    p, q = at.p, at.q
    distance = tv(p, q)
    if distance == 0:
        return q, 1.0
    excess = np.maximum(q - p, 0)
    bias = (1 - weight) * excess[head].sum()
    pi = np.empty_like(p)
    for y in range(p.size):
        if q[y] > p[y]:
            pi[y] = weight * p[y] + (1 - weight) * q[y] if head[y] else p[y]
        else:
            pi[y] = q[y] + (1 - bias / distance) * (p[y] - q[y])
    return pi, 1 - distance + bias


def gated_diversed(at: Case, gate: float, head: LinearHead) -> Law:
    return gated(at, gate, target_weight(at, head))


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
