"""The inputs and outputs of a verification rule.

Glossary: `p` target distribution, `q` draft distribution, `x` drafted token (a draw from `q`),
`v` the distribution to verify against. A rule that accepts `x` with probability `a(x)` and
otherwise draws from the residual `r` emits `q(y) a(y) + (1 - sum_z q(z) a(z)) r(y)`.

All tensors have one leading dimension of K positions. Rules run in every decoding round, so they
never wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from specbench.methods.lazy import Tensor, torch


class Positions(NamedTuple):
    """Both models' outputs at K drafted positions; floating-point tensors of one dtype.

    K is B n: the n drafts of one text follow each other, so ``by_round`` has a row per text. A rule
    may look at all drafts of a round, also later ones, but states each acceptance given that all
    earlier drafts of the round were accepted, see ``given_earlier``.
    """

    # [K, V] target probabilities after temperature, top-k, top-p; one-hot at temperature 0
    p: Tensor
    q: Tensor  # [K, V] draft probabilities, likewise: the very tensor that `x` was drawn from
    p1: Tensor  # [K, V] target softmax at temperature 1, unfiltered
    q1: Tensor  # [K, V] draft softmax at temperature 1, unfiltered
    h_p: Tensor  # [K, hidden_p] last hidden states of the target at the position that predicts `x`
    h_q: Tensor  # [K, hidden_q] last hidden states of the draft at the same position
    greedy: bool  # true at temperature 0
    n: int = 1  # drafts per round: n consecutive positions are those of one text
    top: Tensor | None = None  # [K] largest logit of the target before any processing
    draft_length: int | None = None  # N; a policy may have drafted fewer, n, for all texts

    @property
    def position(self) -> Tensor:
        """Index of each draft within its round, from 0 to n - 1, ``[K]``."""
        return torch.arange(len(self.p), device=self.p.device) % self.n

    @property
    def drafted(self) -> Tensor:
        """Whether there is a draft ``[K]``; rounds may be shorter than N."""
        return self.q.amax(-1) > 0

    def by_round(self, values: Tensor) -> Tensor:
        """Return values ``[K]`` as ``[B, n]``, a row for each text."""
        return values.view(-1, self.n)


class Verdict(NamedTuple):
    """A rule's decision at K drafted positions."""

    accept: Tensor  # [K] probability of accepting the drafted token
    residual: Tensor  # [K, V] distribution of the token that replaces a rejected one; rows sum to 1
    expected: Tensor  # [K] acceptance probability before `x` is drawn, sum_z q(z) a(z)
    weight: Tensor | None = None  # [K] weight on the target, for rules that have one


BLOCK = 128  # tokens; most vocabularies are padded to a multiple of it

Rule = Callable[..., Verdict]
"""`rule(at: Positions, x: LongTensor[K], **parameters) -> Verdict`."""


def fault_of_form(verdict: object, positions: int, vocabulary: int) -> str | None:
    """Describe a wrong type or shape in what a rule returned for K positions, or return None."""
    if not isinstance(verdict, Verdict):
        return f"must return a Verdict, not {type(verdict).__name__}"
    for name, value in zip(Verdict._fields, verdict, strict=True):
        shape = (positions, vocabulary) if name == "residual" else (positions,)
        if value is None and name == "weight":
            continue
        if not isinstance(value, torch.Tensor):
            return f"`{name}` must be a tensor, not {type(value).__name__}"
        if tuple(value.shape) != shape:
            return f"`{name}` must have the shape {list(shape)}, not {list(value.shape)}"
    return None


def pick(rows: Tensor, x: Tensor) -> Tensor:
    """Return `rows[k, x[k]]` for rows [K, V] and x [K]."""
    return rows.gather(-1, x.unsqueeze(-1)).squeeze(-1)


def entropy_of(p: Tensor) -> Tensor:
    """Return the entropy ``[...]`` of probabilities ``[..., V]``, in nats.

    On a CPU, PyTorch's ``entr`` and ``xlogy`` take three times as long.
    """
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_().neg_().mul_(p).sum(-1)


def in_blocks(rows: Tensor, fill: float) -> Tensor:
    """Return rows ``[K, V]`` as blocks ``[K, V / BLOCK, BLOCK]``, the last one filled up."""
    if missing := -rows.shape[-1] % BLOCK:
        rows = torch.nn.functional.pad(rows, (0, missing), value=fill)
    blocks: Tensor = rows.unflatten(-1, (-1, BLOCK))
    return blocks


def likeliest_token(rows: Tensor) -> Tensor:
    """Return the first token ``[K]`` with the largest number of rows ``[K, V]``.

    That is ``argmax``, but only the largest numbers of all blocks and one block are searched.
    """
    blocks = in_blocks(rows, -torch.inf)
    block = blocks.amax(-1).argmax(-1)
    row = torch.arange(len(rows), device=rows.device)
    return BLOCK * block + blocks[row, block].argmax(-1)


def normalise(mass: Tensor, fallback: Tensor) -> Tensor:
    """Scale the rows of `mass` [K, V] to sum to 1; a row without mass becomes `fallback`'s row."""
    total = mass.sum(-1, keepdim=True)
    return torch.where(total > 0, mass / total, fallback)


def given_earlier(reached: Tensor) -> Tensor:
    """Return what a verdict states, ``[B N]``, if i drafts or more are accepted with ``reached``.

    ``reached`` ``[B, N]`` has i from 1 to N. A rule whose acceptance depends on how it judged
    earlier drafts of the round sums over these judgements in it.
    """
    earlier = torch.nn.functional.pad(reached[:, :-1], (1, 0), value=1.0)
    return (reached / earlier.clamp_min(torch.finfo(reached.dtype).tiny)).clamp_max(1).view(-1)


def maximal_coupling(at: Positions, x: Tensor, v: Tensor, gain: Tensor | None = None) -> Verdict:
    """Couple `q` maximally with `v`: accept with min(1, v/q), else draw from norm((v - q)+).

    This accepts as many draws `x ~ q` as possible (Leviathan et al. 2023, arXiv:2211.17192,
    theorem 3.5). A token with q(x) = 0 is accepted if v(x) > 0 and rejected if v(x) = 0. If no
    residual mass is left, as for v = q, no rejection is possible (up to rounding) and the residual
    row is p.

    `v` [K, V] is the largest mass to accept of each token; for a lossy coupling it need not sum to
    1. The residual is proportional to the positive part of `gain` [K, V], by default v - q.
    """
    mass = (v - at.q if gain is None else gain).clamp_min(0)
    drawn = pick(at.q, x).clamp_min(torch.finfo(v.dtype).tiny)
    return Verdict(
        accept=(pick(v, x) / drawn).clamp_max(1),
        residual=normalise(mass, fallback=at.p),
        expected=torch.minimum(at.q, v).sum(-1),
    )
