"""The distribution that each method emits at a drafted position, in closed form and float64.

The laws are written independently of the rules, because ``check`` and the tests compare rules and
the decoding loop with them. A law has no drafted token, acceptance probability or residual. It
gives the mass of every token emitted as an accepted draft, `q(y) a(y)`, and of every token emitted
as a replacement, `(1 - sum q a) r(y)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specbench.methods.lazy import Tensor, torch


class Next(NamedTuple):
    """Both models' distributions of the next token at K positions, ``[K, V]`` each, float64."""

    p: Tensor  # processed: temperature, top-k, top-p; one-hot at temperature 0
    q: Tensor
    p1: Tensor  # softmax at temperature 1, unfiltered
    q1: Tensor
    position: Tensor  # [K] index of the draft within its round, from 0
    greedy: bool = False  # at temperature 0
    top: Tensor | None = None  # [K] largest logit of the target before any processing


class Split(NamedTuple):
    """The emitted mass of every token ``[K, V]``, in two parts that together sum to 1."""

    accepted: Tensor  # emitted as an accepted draft
    replaced: Tensor  # emitted in place of a rejected draft


Law = Callable[..., Split]
"""``law(at: Next, **parameters) -> Split``, with the parameters of the method."""
BoundLaw = Callable[["Next", "Tensor | None"], Split]
"""A law with bound parameters, as a function of the positions and of a head's weights ``[K]``."""


def coupled(v: Tensor, q: Tensor) -> Split:
    """Split v ``[K, V]`` for drafts from q ``[K, V]`` that are verified losslessly against v."""
    return Split(torch.minimum(q, v), (v - q).clamp_min(0))


def sd(at: Next) -> Split:
    """Emit p."""
    return coupled(at.p, at.q)


def lossy(at: Next, lenience: float | Tensor) -> Split:
    """Keep up to p / l of each token, at T = 0 if p1 >= l max p1; replace by norm((p - q)+)."""
    if at.greedy:  # with l = 1 strict, even where two tokens share max p1
        near = at.p1 >= lenience * top(at.p1) if lenience < 1 else at.p > 0
        accepted = torch.where(near, at.q, 0)
    else:
        accepted = torch.minimum(at.q, at.p / lenience)
    return Split(accepted, (1 - total(accepted)) * normalised((at.p - at.q).clamp_min(0)))


def static(at: Next, weight: float | Tensor) -> Split:
    """Emit w p + (1 - w) q, at T = 0 the argmax of w p1 + (1 - w) q1.

    The weight is a number or one per position, ``[K, 1]``.
    """
    if at.greedy:
        return coupled(likeliest(mixed(at.p1, at.q1, weight), mixed(at.p, at.q, weight)), at.q)
    return coupled(mixed(at.p, at.q, weight), at.q)


def cooled(at: Next, cooled_weight: float) -> Split:
    """Emit the mixture of p and q, which are processed at the lower temperature already."""
    return static(at, cooled_weight)


def gated(at: Next, gate: float, weight: float | Tensor) -> Split:
    """Keep up to w p + (1 - w) q in the target's plausible set, p outside; replace as `lossy`.

    At T = 0 emit the argmax of w p1 + (1 - w) q1 within that set. The weight is a number or one per
    position, ``[K, 1]``.
    """
    plausible = at.p1 >= gate * top(at.p1)
    if at.greedy:
        inside = torch.where(plausible, mixed(at.p1, at.q1, weight), -1)
        choice = likeliest(inside, mixed(at.p, at.q, weight))
        return coupled(torch.where(plausible.any(-1, True), choice, at.p), at.q)
    v = torch.where(plausible, mixed(at.p, at.q, weight), at.p)
    accepted = torch.minimum(at.q, v)
    return Split(accepted, (1 - total(accepted)) * normalised((at.p - at.q).clamp_min(0)))


def sharpened(at: Next, target_temperature: float, target_min_p: float) -> Split:
    """Emit the target at a lower temperature, without tokens far below its argmax."""
    logits = at.p.log() / target_temperature
    plausible = logits >= top(logits) + (math.log(target_min_p) if target_min_p else -math.inf)
    return coupled(logits.masked_fill(~plausible, -torch.inf).softmax(-1), at.q)


def speccascade(at: Next, rule: str, alpha: float) -> Split:
    """Emit q on the trusted set, and give the remaining mass to p."""
    trusted = torch.where(_TRUSTED[rule](at, alpha), at.q, 0)
    return coupled(trusted + (1 - total(trusted)) * at.p, at.q)


_TRUSTED: dict[str, Callable[[Next, float], Tensor]] = {
    "chow": lambda at, alpha: top(at.q1) >= 1 - alpha,
    "diff": lambda at, alpha: top(at.q1) >= top(at.p1) - alpha,
    "opt": lambda at, alpha: top(at.q1) >= top(at.p1) - alpha * total((at.p - at.q).abs()) / 2,
    "token-v1": lambda at, alpha: at.q1 >= top(at.p1) - alpha,
    "token-v2": lambda at, alpha: at.p1 >= top(at.p1) - alpha,
    "token-v3": lambda at, alpha: at.p1 >= (1 - alpha) * top(at.p1),
}


def mentored(at: Next, budget: float) -> Split:
    """Emit clip(q, p / b, p / a) with KL(p || pi) equal to the budget, or q if within budget."""
    if budget == 0:
        return sd(at)
    curve = _Curve(at.p, at.q)
    low, high = torch.full_like(at.p[:, :1], LEAST_LOG), torch.zeros_like(at.p[:, :1])
    for _ in range(BISECTIONS):  # on log a: the divergence falls to 0 as a rises to 1
        middle = (low + high) / 2
        over = _divergence(at.p, _mentored(at, middle.exp(), curve)) > budget
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return _mentored(at, high.exp(), curve)


def fuzzy(at: Next, distance: float) -> Split:
    """Emit q where the Jensen-Shannon divergence of both is at most the distance, p elsewhere."""
    p, q = (at.p1, at.q1) if at.greedy else (at.p, at.q)
    m = (p + q).clamp_min(TINY) / 2
    apart = total(torch.xlogy(p, p / m) + torch.xlogy(q, q / m)) / 2
    return coupled(torch.where((apart <= distance) & (distance > 0), at.q, at.p), at.q)


def contrastive(at: Next, contrast: float, plausible: float) -> Split:
    """Emit norm(p (p / q)^b) on tokens with p >= a max p; at T = 0 its argmax, of p1 and q1."""
    p, q = (at.p1, at.q1) if at.greedy else (at.p, at.q)
    v = normalised(p * (p / q.clamp_min(SELDOM)) ** contrast * (p >= plausible * top(p)))
    return coupled(likeliest(v, at.p) if at.greedy else v, at.q)


def typical(at: Next, epsilon: float, delta: float) -> Split:
    """Keep tokens above the threshold on p, and replace all others by the target's argmax."""
    entropy = -total(torch.xlogy(at.p, at.p))
    accepted = torch.where(at.p > (delta * (-entropy).exp()).clamp_max(epsilon), at.q, 0)
    return Split(accepted, (1 - total(accepted)) * likeliest(at.p))


def cactus(at: Next, divergence: float) -> Split:
    """Keep up to g of each token; the residual of a rejected x is norm((c_x p - q)+).

    Here c_x = (1 - g(x)) / (1 - p(x)). The sum over all x is computed on sorted thresholds.
    """
    g = (at.p + (2 * divergence * at.p * (1 - at.p)).clamp_min(0).sqrt()).clamp_max(1)
    accepted = torch.minimum(at.q, g)
    c = (1 - g) / (1 - at.p).clamp_min(TINY)
    curve = _Curve(at.p, at.q)
    whole = curve.gain(1 / c.clamp_min(TINY))  # mass of the residual of each x
    rejected = torch.where(at.q > accepted, (at.q - accepted) / whole.clamp_min(TINY), 0)
    # A token y gains mass from the rejection of every x with c_x p(y) > q(y).
    order = c.argsort(-1, descending=True)
    needed = (at.q / at.p.clamp_min(TINY)).clamp_max(2)
    sorted_c = -c.gather(-1, order)
    count = torch.searchsorted(sorted_c, -needed)
    by_p = _cumulative((rejected * c).gather(-1, order))
    by_q = _cumulative(rejected.gather(-1, order))
    gained = at.p * by_p.gather(-1, count) - at.q * by_q.gather(-1, count)
    return Split(accepted, (1 - total(accepted)) * normalised(gained.clamp_min(0)))


def match(at: Next) -> Split:
    """Emit p: x where the target draws it too, else what the target draws."""
    return Split(at.p * at.q, at.p * (1 - at.q))


def threshold(at: Next, single: float, accumulated: float) -> Split:
    """Keep q where p >= single and q p / accumulated elsewhere; replace x by p without x."""
    share = torch.where(at.p >= single, 1, (at.p / accumulated).clamp_max(1))
    rejected = at.q * (1 - share) / (1 - at.p).clamp_min(TINY)
    return Split(at.q * share, at.p * (total(rejected) - rejected))


def relaxed(
    at: Next, form: str, keep: float, replacement: str, margin: float = 0, ratio: float = 1
) -> Split:
    """Keep q where p1 is close to its top, among the k likeliest; replace by p or its argmax."""
    least = top(at.p1) - margin if form == "margin" else ratio * top(at.p1)
    ascending = at.p1.sort(-1).values
    larger = at.p1.shape[-1] - torch.searchsorted(ascending, at.p1.contiguous(), right=True)
    accepted = torch.where((at.p1 >= least) & (larger < keep), at.q, 0)
    return Split(
        accepted, (1 - total(accepted)) * (likeliest(at.p) if replacement == "argmax" else at.p)
    )


def mars(at: Next, theta: float) -> Split:
    """Keep the likeliest token, and the second where z2 > theta z1 > 0, and their equals."""
    assert at.top is not None
    first, second = at.p1.sort(-1, descending=True).values[:, :2, None].unbind(1)
    z1, z2 = at.top[:, None], at.top[:, None] + (second / first).log()
    least = torch.where((z2 > theta * z1) & (z1 > 0), second, first)
    accepted = torch.where(at.p1 >= least, at.q, 0)
    return Split(accepted, (1 - total(accepted)) * _residual(at))


def entropy_verify(at: Next, strength: float, cap: float) -> Split:
    """Emit what `lossy` does with lenience min(exp(-s H), cap), and p at T = 0."""
    entropy = -total(torch.xlogy(at.p1, at.p1))
    return sd(at) if at.greedy else lossy(at, (-strength * entropy).exp().clamp(TINY, cap))


def ears(at: Next, tolerance: float) -> Split:
    """Keep up to p + t (1 - max p) q of each token; replace as `sd` does."""
    accepted = torch.minimum(at.q, at.p + tolerance * (1 - top(at.p)) * at.q)
    return Split(accepted, (1 - total(accepted)) * _residual(at))


def synthetic(
    at: Next, length: float | None = None, acceptance: Sequence[float] | None = None
) -> Split:
    """Keep q at the first floor(L - 1) positions, and its share L - 1 - i at the next one, i.

    Or keep its share that ``acceptance`` has for the position.
    """
    if acceptance is not None:
        rates = at.p.new_tensor(acceptance)
        share = rates[at.position.clamp_max(len(rates) - 1)][:, None]
    else:
        assert length is not None
        share = (length - 1 - at.position.to(at.p)[:, None]).clamp(0, 1)
    return Split(at.q * share, (1 - share) * _residual(at))


def _residual(at: Next) -> Tensor:
    """Return norm((p - q)+), or p where p = q."""
    mass = (at.p - at.q).clamp_min(0)
    return torch.where(total(mass) > 0, normalised(mass), at.p)


BISECTIONS, LEAST_LOG = 45, -700.0  # float64 goes down to e^-708
TINY = 1e-300
SELDOM = 1e-6  # the q of a token that the draft never proposes, in a ratio p / q


class _Curve:
    """``sum (p / b - q)+`` of rows p and q as a function of b, using sorted ratios p / q."""

    def __init__(self, p: Tensor, q: Tensor) -> None:
        ratio = torch.where(q > 0, p / q, torch.inf)
        self._ratio, order = ratio.sort(-1)
        self._p = _cumulative(p.gather(-1, order).flip(-1)).flip(-1)
        self._q = _cumulative(q.gather(-1, order).flip(-1)).flip(-1)

    def gain(self, b: Tensor) -> Tensor:
        """Return the sum at thresholds ``[K, n]``."""
        p, q = self._above(torch.searchsorted(self._ratio, b, right=True))
        return p / b - q

    def threshold(self, gain: Tensor) -> Tensor:
        """Return the b at which the sum equals ``gain``, ``[K, 1]``."""
        at_ratios = self._p[:, 1:] / self._ratio - self._q[:, 1:]
        at_ratios = torch.where(self._ratio.isinf(), 0, at_ratios)
        p, q = self._above(torch.searchsorted(-at_ratios, -gain))
        return torch.where(p > 0, p / (gain + q).clamp_min(TINY), torch.inf)

    def _above(self, place: Tensor) -> tuple[Tensor, Tensor]:
        return self._p.gather(-1, place), self._q.gather(-1, place)


def _mentored(at: Next, a: Tensor, curve: _Curve) -> Split:
    accepted = torch.minimum(at.q, at.p / a)
    b = curve.threshold((1 - total(accepted)).clamp_min(0)).clamp_min(1)
    return Split(accepted, (at.p / b - at.q).clamp_min(0))


def _divergence(p: Tensor, split: Split) -> Tensor:
    pi = split.accepted + split.replaced
    return total(torch.where(p > 0, p * (p / pi.clamp_min(TINY)).clamp_min(TINY).log(), 0))


def _cumulative(rows: Tensor) -> Tensor:
    """Return cumulative sums of every row, starting with 0, ``[K, 1 + V]``."""
    return torch.cat((torch.zeros_like(rows[:, :1]), rows.cumsum(-1)), -1)


def total(rows: Tensor) -> Tensor:
    """Return the sum of every row, ``[K, 1]``."""
    return rows.sum(-1, keepdim=True)


def top(rows: Tensor) -> Tensor:
    """Return the largest number of every row, ``[K, 1]``."""
    return rows.amax(-1, keepdim=True)


def mixed(p: Tensor, q: Tensor, weight: float | Tensor) -> Tensor:
    """Return w p + (1 - w) q, ``[K, V]``, rounded as in the rules: rounding can break a tie."""
    return torch.lerp(q, p, weight)


def likeliest(rows: Tensor, prefer: Tensor | float = 0.0) -> Tensor:
    """Return one-hot rows at the argmax, of equal ones at the most preferred, ``[K, V]``."""
    best = (rows == top(rows)) * (1 + prefer)
    return torch.zeros_like(rows).scatter_(-1, best.argmax(-1, keepdim=True), 1)


def normalised(rows: Tensor) -> Tensor:
    """Scale rows ``[K, V]`` to sum to 1; a row without mass stays as it is."""
    whole = total(rows)
    return rows / torch.where(whole > 0, whole, 1)


def parameters_of(values: dict[str, Any], weight: Tensor | None) -> dict[str, Any]:
    """Return the parameters of a method's law: a head is replaced by its weights ``[K]``."""
    parameters = {name: value for name, value in values.items() if name != "head"}
    return parameters if weight is None else {**parameters, "weight": weight[:, None]}
