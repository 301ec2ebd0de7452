"""Random pairs of distributions, and the law of a rule on them, by enumeration."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specbench.methods import METHODS
from specbench.methods.laws import Next, Split, parameters_of
from specbench.methods.verdict import Positions, Rule, Verdict

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
VOCABULARY = 7
ROWS = 24
HIDDEN_P, HIDDEN_Q = 3, 2

Sampler = Callable[[np.random.Generator], tuple[Array, Array]]


def dense(rng: np.random.Generator) -> Array:
    return rng.dirichlet(np.full(VOCABULARY, 0.7), ROWS)


def normalised(rows: Array) -> Array:
    scaled: Array = rows / rows.sum(-1, keepdims=True)
    return scaled


def masked(rows: Array, keep: Mask) -> Array:
    keep = keep | (rows == rows.max(-1, keepdims=True))  # never an empty row
    return normalised(np.where(keep, rows, 0.0))


def some(rng: np.random.Generator) -> Mask:
    return rng.random((ROWS, VOCABULARY)) < 0.5


def one_hot(rows: Array) -> Array:
    hot: Array = np.eye(VOCABULARY)[rows.argmax(-1)]
    return hot


def disjoint(rng: np.random.Generator) -> tuple[Array, Array]:
    left = np.arange(VOCABULARY) < rng.integers(1, VOCABULARY, (ROWS, 1))
    p, q = np.where(left, dense(rng), 0.0), np.where(left, 0.0, dense(rng))
    return normalised(p), normalised(q)


def equal(rng: np.random.Generator) -> tuple[Array, Array]:
    rows = masked(dense(rng), some(rng))
    return rows, rows.copy()


def tied(rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows with few different numbers, most of them several times."""
    p, q = rng.integers(1, 4, (2, ROWS, VOCABULARY)).astype(float)
    return normalised(p), normalised(q)


UNFILTERED: dict[str, Sampler] = {
    "dense": lambda rng: (dense(rng), dense(rng)),
    "zeros in p": lambda rng: (masked(dense(rng), some(rng)), dense(rng)),
    "zeros in q": lambda rng: (dense(rng), masked(dense(rng), some(rng))),
    "zeros in both": lambda rng: (masked(dense(rng), some(rng)), masked(dense(rng), some(rng))),
    **{"disjoint": disjoint, "equal": equal},
    "one-hot p": lambda rng: (one_hot(dense(rng)), dense(rng)),
    "one-hot q": lambda rng: (dense(rng), one_hot(dense(rng))),
    **{"one-hot both": lambda rng: (one_hot(dense(rng)), one_hot(dense(rng))), "ties": tied},
}
# The draft lacks some tokens of the target everywhere.
PRESENT = np.arange(VOCABULARY) < VOCABULARY - 3
MISSING: dict[str, Sampler] = {
    "missing in q": lambda rng: (dense(rng), normalised(np.where(PRESENT, dense(rng), 0.0)))
}


def cooled(rows: Array, temperature: float) -> Array:
    return normalised(rows ** (1 / temperature))


def top_k(rows: Array, k: int) -> Array:
    return masked(rows, rows >= np.sort(rows, -1)[:, [-k]])


PROCESSING: dict[str, Callable[[Array], Array]] = {
    "temperature 0.6": lambda rows: cooled(rows, 0.6),
    "temperature 2": lambda rows: cooled(rows, 2.0),
    "top-k 3": lambda rows: top_k(rows, 3),
    "temperature 0": one_hot,
}
# A new kind goes to the end, since its place is the seed of its numbers.
KINDS = [
    *(*UNFILTERED, *PROCESSING, "temperature 0, zeros in both", "temperature 0, ties"),
    *(*MISSING, "temperature 0.6, missing in q", "temperature 0, missing in q"),
]


def make_case(kind: str, seed: int = 0) -> Positions:
    """K random positions of one of `KINDS`, float64."""
    rng = np.random.default_rng(KINDS.index(kind) + len(KINDS) * seed)
    base, _, rows = kind.partition(", ")
    process, samplers = PROCESSING.get(base, np.copy), UNFILTERED | MISSING
    p1, q1 = samplers[rows or (base if base in samplers else "dense")](rng)
    h_p, h_q = rng.normal(size=(ROWS, HIDDEN_P)), rng.normal(size=(ROWS, HIDDEN_Q))
    fields = map(torch.from_numpy, (process(p1), process(q1), p1, q1, h_p, h_q))
    tops = torch.from_numpy(rng.normal(1.0, 2.0, ROWS))
    return Positions(*fields, greedy=base == "temperature 0", top=tops)


def stacked(greedy: bool) -> Positions:
    cases = [(*case[:6], case.top) for case in map(make_case, KINDS) if case.greedy == greedy]
    *fields, tops = map(torch.cat, zip(*cases, strict=True))
    return Positions(*fields, greedy, top=tops)


def kinds_at(wrong: torch.Tensor, greedy: bool) -> set[str]:
    """Kinds of the positions of ``stacked`` where a condition fails [K]."""
    kinds = [kind for kind in KINDS if make_case(kind).greedy == greedy]
    return {kinds[k // ROWS] for k in wrong.nonzero()[:, 0].tolist()}


SCORES = torch.from_numpy(np.random.default_rng(1).normal(size=(2, HIDDEN_Q + HIDDEN_P)))


def linear_head(at: Positions) -> torch.Tensor:
    """The second component of a softmax over the scores of draft and target."""
    return (torch.cat([at.h_q, at.h_p], -1) @ SCORES.to(at.p).T).softmax(-1)[:, 1]


def transform(at: Positions, change: Callable[[torch.Tensor], torch.Tensor]) -> Positions:
    return Positions(*(change(v) if isinstance(v, torch.Tensor) else v for v in at))


def rule_of(method: str) -> Rule:
    rule = METHODS[method].rule
    assert rule is not None
    return rule


def law_of(method: str, at: Positions, **parameters: Any) -> Split:
    weight = parameters["head"](at).double() if "head" in parameters else None
    p, q, p1, q1 = (rows.double() for rows in at[:4])
    at_next = Next(p, q, p1, q1, at.position, at.greedy, at.top)
    law = METHODS[method].law
    assert law is not None
    return law(at_next, **parameters_of(parameters, weight))


def judge(rule: Rule, at: Positions, /, **parameters: Any) -> Verdict:
    count, size = at.p.shape
    x = torch.arange(size).repeat(count)
    verdict = rule(transform(at, lambda rows: rows.repeat_interleave(size, 0)), x, **parameters)
    accept, residual, expected, weight = verdict
    return Verdict(
        accept.view(count, size),
        residual.view(count, size, size),
        expected.view(count, size),
        None if weight is None else weight.view(count, size),
    )


def split(q: torch.Tensor, verdict: Verdict) -> Split:
    """Mass [K, V] kept, q(y) a(y), and replaced, sum_x q(x) (1 - a(x)) r_x(y), for x ~ q."""
    replaced = (q * (1 - verdict.accept)).unsqueeze(-1) * verdict.residual
    return Split(q * verdict.accept, replaced.sum(1))


def emitted(q: torch.Tensor, verdict: Verdict) -> torch.Tensor:
    """pi [K, V] for x drawn from q."""
    accepted, replaced = split(q, verdict)
    return accepted + replaced
