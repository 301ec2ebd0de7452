"""Write cases with exact answers for the tests of other people's verification kernels.

``python tasks/make_vectors.py specbench/docs/vectors.json`` makes the file that the package ships.
A case has p, q, drafts and uniform numbers, with what must come out. Uniform
numbers stay `MARGIN` away from every threshold, except where a case says so, because kernels differ
in whether they accept at equality.

The answers are those of token-wise and block verification in NumPy, written apart from
`specbench.methods`. A text has N drafts x ``[N]``, drawn from q ``[N, V]``, and the target's p
``[N + 1, V]``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Form = Literal["tokens", "block"]
Thresholds = Callable[[Form, Floats, Floats, Sequence[int]], tuple[Floats, Floats]]
Value = dict[str, Any]

MARGIN = 1e-3
VOID = -1  # in place of a token: no draft, or behind the last emitted one
VOCABULARY = 5003  # no multiple of a power of two
ENDS = (0, 1, 1023, 1024, 4095, 4096, 5001, 5002)  # its tokens with mass
MANY_DRAFTS = 9
# Token 2 passes below one half, token 3 always.
SMALL_P, SMALL_Q = (0.4, 0.599994, 1e-6, 5e-6), (0.7, 0.299997, 2e-6, 1e-6)
BASE_P, BASE_Q = (0.5, 0.3, 0.2, 0.0), (0.2, 0.5, 0.0, 0.3)


def thresholds(form: Form, p: Floats, q: Floats, x: Sequence[int]) -> tuple[Floats, Floats]:
    """Return below which uniform number each draft passes ``[N]``, and what ends a round.

    The second array ``[N + 1, V]`` is the distribution of the token that follows 0 to N accepted
    drafts: the residual, and after all drafts p.
    """
    n = len(x)
    ratio = np.array([p[i, token] / q[i, token] for i, token in enumerate(x)])
    share = np.ones(n + 1)  # P_0 to P_N of block verification
    if form == "block":
        for i in range(n):
            share[i + 1] = min(1.0, share[i] * ratio[i])
    mass = np.maximum(share[:n, None] * p[:n] - q, 0)
    room = mass.sum(-1)
    residual = np.where(room[:, None] > 0, mass / np.where(room > 0, room, 1)[:, None], p[:n])
    if form == "tokens":
        passing = np.minimum(ratio, 1)
    else:
        whole = room[1:] + 1 - share[1:n]
        inner = np.where(whole > 0, room[1:] / np.where(whole > 0, whole, 1), 1)
        passing = np.append(inner, share[n])[:n]
    return passing, np.concatenate((residual, p[n:]))


def accepted_drafts(form: Form, passed: Sequence[bool]) -> int:
    """Return how many drafts are accepted.

    They are those before the first that fails, or in a block those up to the last that passes.
    """
    marks = list(passed)
    if form == "tokens":
        return marks.index(False) if False in marks else len(marks)
    return max((i + 1 for i, mark in enumerate(marks) if mark), default=0)


def draw(distribution: Floats, uniform: float) -> int:
    """Return the first token at which the cumulative distribution exceeds a uniform number."""
    return int(np.searchsorted(distribution.cumsum(), uniform * distribution.sum(), side="right"))


def law_of_rounds(
    form: Form, p: Floats, q: Floats, kernel: Thresholds = thresholds
) -> tuple[Floats, Floats]:
    """Return the law of a text's first N + 1 tokens, and of the number of accepted drafts.

    All drafts are enumerated. The rows p and q are those after any prefix; a round that ends early
    is continued by draws from p. The law has the shape ``[V] * (N + 1)``.
    """
    n, size = q.shape
    law, accepted = np.zeros([size] * (n + 1)), np.zeros(n + 1)
    for x in product(range(size), repeat=n):
        chance = float(np.prod([q[i, token] for i, token in enumerate(x)]))
        if chance == 0:
            continue
        passing, sources = kernel(form, p, q, x)
        for flags in product((False, True), repeat=n):
            weights = np.where(flags, passing, 1 - passing)
            count = accepted_drafts(form, flags)
            mass = sources[count]
            for row in p[count + 1 :]:
                mass = np.multiply.outer(mass, row)
            law[x[:count]] += chance * weights.prod() * mass
            accepted[count] += chance * weights.prod()
    return law, accepted


class Text(NamedTuple):
    """A text of a batch with its drafts."""

    p: Floats  # [N + 1, V]
    q: Floats  # [N, V]
    x: Sequence[int]  # [N]


def vectors() -> dict[str, list[Value]]:
    """Return the cases by kind: ``cases`` of one batch each, ``laws`` and ``drafts``.

    In a batch of B texts of up to N drafts, ``p`` is ``[B, N + 1, V]`` and ``q`` ``[B, N, V]``;
    ``drafts`` ``[B, N]`` are `VOID` after the first ``counts`` ``[B]``. ``uniforms`` ``[B, N + 1]``
    decide each draft and draw the last token. ``accepted`` ``[B]``, ``source`` ``[B, V]`` (what the
    last token is drawn from) and ``emitted`` ``[B, N + 1]`` are the answers. If a case has a
    ``size``, that is V, and p, q and ``source`` have only the columns of its ``tokens``.
    """
    return {"cases": list(_batches()), "laws": list(_laws()), "drafts": list(_draft_laws())}


def _rows(seed: int, *shape: int, zeros: float = 0.0) -> Floats:
    """Return random distributions, in which a share of the tokens has no mass."""
    random = np.random.default_rng(seed)
    rows = random.dirichlet(np.full(shape[-1], 0.7), shape[:-1])
    keep = (random.random(rows.shape) >= zeros) | (rows == rows.max(-1, keepdims=True))
    rows = np.where(keep, rows, 0)
    scaled: Floats = rows / rows.sum(-1, keepdims=True)
    return scaled


def _one_hot(rows: Floats) -> Floats:
    hot: Floats = np.eye(rows.shape[-1])[rows.argmax(-1)]
    return hot


def _texts(p: Floats, q: Floats, *drafts: Sequence[int]) -> list[Text]:
    """Return a text for each list of drafts, by default for every token that can be drafted."""
    tokens = drafts or [(int(x),) for x in np.flatnonzero(q[0])]
    return [Text(p, q, x) for x in tokens]


def _batches() -> Iterator[Value]:
    base_p, base_q = np.array([BASE_P, _rows(1, 4)]), np.array([BASE_Q])
    dense_p, dense_q = _rows(2, 3, 5), _rows(3, 2, 5)
    cut_p, cut_q = _rows(4, 3, 6, zeros=0.5), _rows(5, 2, 6, zeros=0.5)
    likeliest = [tuple(row) for row in (dense_q.argmax(-1), dense_p[:2].argmax(-1))]
    possible = [int(np.flatnonzero(row)[-1]) for row in cut_q]
    tied = np.array([[0.4, 0.4, 0.2, 0.0], [0.25] * 4])
    mixed = [
        Text(_rows(10 + n, n + 1, 4), _rows(20 + n, n, 4), [(n + i) % 4 for i in range(n)])
        for n in (0, 2, 1, 3, 0)
    ]
    block = [(2, 1, 0), (0, 0, 0), (1, 4, 3)]
    block_p, block_q = _rows(6, 4, 5), _rows(7, 3, 5)
    hot = _one_hot(dense_q)
    yield _batch("base", "accepts .2/.2, .3/.5 and never token 3", _texts(base_p, base_q))
    yield _batch("greedy drafts", "q is one-hot", _texts(dense_p, hot, tuple(hot.argmax(-1))))
    yield _batch(
        "temperature 0", "p is one-hot", _texts(_one_hot(dense_p), dense_q, *likeliest, (0, 1))
    )
    yield _batch("equal", "p = q: nothing is rejected", _texts(tied, tied[:1]))
    yield _batch(
        "ties", "tokens of equal probability", _texts(tied, np.array([[0.1, 0.5, 0.1, 0.3]]))
    )
    yield _batch("zeros", "top-k rows", _texts(cut_p, cut_q, possible, tuple(cut_q.argmax(-1))))
    yield _batch(
        "two drafts", "the token after both follows p", _texts(dense_p, dense_q, *likeliest, (1, 2))
    )
    yield _batch("several texts", "some have no drafts; others end earlier", mixed)
    yield _batch("block", "h_i by Sun et al. 2024", _texts(block_p, block_q, *block), "block")
    yield _batch(
        "block of greedy drafts",
        "equal to tokens: all thresholds are p(x)",
        _texts(dense_p, hot, tuple(hot.argmax(-1))),
        "block",
    )
    yield _sparse(_batch("large vocabulary", "mass at both ends, no multiple of a tile", _wide()))
    yield _batch("many drafts", "up to nine are accepted", _long())
    yield _batch("many drafts in a block", "up to nine are accepted", _long(), "block")
    small_p, small_q = np.array([SMALL_P, _percent(16, 4)]), np.array([SMALL_Q])
    yield _batch("small", "the ratio of probabilities of 1e-6 decides", _texts(small_p, small_q))
    yield _batch("many texts", "each of 70 or more has rows of its own", _many())
    never = _batch("zero mass", "p(x) = 0 and u = 0: rejected", _texts(base_p, base_q, (3,))[:1])
    never["uniforms"][:, 0] = 0.0
    yield never


def _percent(seed: int, *shape: int) -> Floats:
    """Return random distributions in whole percents, which are short to write."""
    counts = np.floor(_rows(seed, *shape) * (100 - shape[-1])) + 1
    counts[..., -1] += 100 - counts.sum(-1)
    return np.asarray(counts / 100)


def _wide() -> list[Text]:
    """Return texts whose mass is at the ends of the vocabulary and around tiles."""
    p, q = np.zeros((3, VOCABULARY)), np.zeros((2, VOCABULARY))
    p[:, ENDS], q[:, ENDS] = _percent(12, 3, len(ENDS)), _percent(13, 2, len(ENDS))
    return _texts(p, q, (ENDS[-1], ENDS[0]), (ENDS[0], ENDS[-1]), (ENDS[3], ENDS[-2]))


def _long() -> list[Text]:
    """Return a text of nine drafts that are mostly accepted."""
    p, q = _percent(14, MANY_DRAFTS + 1, 4), _percent(15, MANY_DRAFTS, 4)
    return _texts(p, q, [int(x) for x in (p[:-1] - q).argmax(-1)], [2] * MANY_DRAFTS)


def _many() -> list[Text]:
    """Return 40 texts, which are more than 70 with their probes."""
    rows = [(_percent(100 + n, 2, 3), _percent(200 + n, 1, 3)) for n in range(40)]
    return [Text(p, q, [n % 3]) for n, (p, q) in enumerate(rows)]


def _sparse(case: Value) -> Value:
    """Keep only the columns of tokens with mass; ``size`` is V."""
    rows = {key: case[key][..., list(ENDS)] for key in ("p", "q", "source")}
    return {**case, **rows, "size": VOCABULARY, "tokens": list(ENDS)}


def _probes(form: Form, passing: Floats) -> Iterator[Floats]:
    """Yield uniform numbers of the drafts just below and above each threshold that matters."""
    others = passing / 2 if form == "tokens" else (1 + passing) / 2
    others = others.clip(MARGIN, 1 - MARGIN)
    yield others
    for i, threshold in enumerate(passing):
        for uniform in (threshold - MARGIN, threshold + MARGIN):
            if 0 < uniform < 1:
                yield np.concatenate((others[:i], [uniform], others[i + 1 :]))


def _batch(name: str, about: str, texts: Sequence[Text], form: Form = "tokens") -> Value:
    """Return the case of a batch: each text once per probe."""
    n, size = max(len(text.x) for text in texts), texts[0].p.shape[-1]
    rows: list[Value] = []
    for p, q, x in texts:
        passing, sources = thresholds(form, p, q, x)
        for uniforms in _probes(form, passing):
            accepted = accepted_drafts(form, (uniforms < passing).tolist())
            source = sources[accepted]
            wanted = np.flatnonzero(source)[len(rows) % np.count_nonzero(source)]
            before = source[:wanted].sum()
            last = (before + source[wanted] / 2) / source.sum()
            tokens = [*x[:accepted], draw(source, last)]
            padded = n - len(x)
            rows.append(
                {
                    "p": np.pad(p, ((0, padded), (0, 0))),
                    "q": np.pad(q, ((0, padded), (0, 0))),
                    "drafts": [*x, *[VOID] * padded],
                    "counts": len(x),
                    "uniforms": [*uniforms, *[0.5] * padded, last],
                    "accepted": accepted,
                    "source": source,
                    "emitted": [*tokens, *[VOID] * (n + 1 - len(tokens))],
                }
            )
    assert all(row["p"].shape == (n + 1, size) for row in rows)
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return {"name": name, "about": about, "form": form, **columns}


def _laws() -> Iterator[Value]:
    """Yield rows p and q after any prefix, the law of N + 1 tokens and of the accepted drafts."""
    base = np.array([BASE_P, BASE_P, (0.1, 0.2, 0.3, 0.4)]), np.array([BASE_Q, BASE_Q])
    dense = _rows(8, 3, 4), _rows(9, 2, 4)
    greedy = dense[0], _one_hot(dense[1])
    for name, form, (p, q) in (
        ("base", "tokens", (base[0][[0, 2]], base[1][:1])),
        ("two drafts", "tokens", base),
        ("greedy drafts", "tokens", greedy),
        ("block", "block", base),
        ("block of dense rows", "block", dense),
    ):
        assert form in ("tokens", "block")
        law, accepted = law_of_rounds(form, p, q)  # type: ignore[arg-type]
        yield {"name": name, "form": form, "p": p, "q": q, "law": law, "accepted": accepted}


def _draft_laws() -> Iterator[Value]:
    """Yield logits, and the law q that a draft is drawn from and must be judged with."""
    plain = np.array([1.2, 0.3, 0.0, -0.4, -1.5])
    for name, logits, temperature, top_k in (
        ("plain", plain, 1.0, 0),
        ("temperature", plain, 0.6, 0),
        ("top-k", plain, 1.0, 2),
        ("greedy", plain, 0.0, 0),
        ("bfloat16 would tie", np.array([100.24, 99.76, 90.0]), 1.0, 0),
    ):
        scaled = logits / (temperature or 1)
        least = np.sort(scaled)[-top_k] if top_k else -np.inf
        mass = np.where(scaled >= least, np.exp(scaled - scaled.max()), 0)
        q = mass / mass.sum() if temperature else _one_hot(logits)
        options = {"temperature": temperature, "top_k": top_k}
        yield {"name": name, "logits": logits, "options": options, "q": q}


def encoded() -> str:
    """Return the cases as JSON, arrays as nested lists."""
    return json.dumps(vectors(), default=np.ndarray.tolist) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(encoded(), encoding="utf-8")
