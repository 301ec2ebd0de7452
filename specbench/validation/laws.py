"""The exact laws of the next token for a method and a drafter, from plain forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.heads.bind import BoundMethod
from specbench.decoding.sampling import Sampling
from specbench.engine.passes import Pass, plain_pass
from specbench.errors import UsageError
from specbench.methods import METHODS, Positions
from specbench.methods.laws import Next, Split, likeliest, parameters_of
from specbench.plugins import place, user_code
from specbench.validation.texts import Setup, processed


class Placed(Positions):
    """What a rule receives at K positions that need not be whole rounds."""

    _position: Tensor

    @property
    def position(self) -> Tensor:
        """Index of each draft within its round, from 0, ``[K]``."""
        return self._position

    def at(self, position: Tensor) -> Placed:
        """Set the index of each draft within its round."""
        self._position = position
        return self

    def part(self, rows: Tensor) -> Placed:
        """Return the positions of a mask ``[K]``."""
        tensors = (tensor[rows] if len(tensor) else tensor for tensor in self[:6])
        top = None if self.top is None else self.top[rows]
        return Placed._make((*tensors, False, 1, top, None)).at(self._position[rows])


class Laws(NamedTuple):
    """The laws at K positions, derived from p and q; see ``methods.laws``."""

    at: Next
    split: Split | None  # None if the method has no law
    weight: Tensor | None
    positions: Placed  # what a rule would receive, in float32

    def acceptance(self, drafted: Tensor) -> Tensor | None:
        """Return the probability that each drafted token ``[K]`` is accepted; None without law."""
        if self.split is None:
            return None
        # A draft with q = 0 has no acceptance probability; the test of drafts covers it.
        ratio = torch.where(self.at.q > 0, self.split.accepted / self.at.q, 1)
        return ratio.gather(-1, drafted[:, None])[:, 0]


def laws_at(
    setup: Setup, texts: Sequence[Sequence[int]], position: Tensor, proposed: Tensor
) -> Laws:
    """Return the laws at the last T tokens of B texts of equal length, flattened row by row.

    ``position`` ``[B, T]`` is the index of each of these tokens within its round, from 0;
    ``proposed`` ``[B T]`` has the tokens that a drafter which copies must propose there.
    """
    method, sampling = setup.method, setup.method.sampling(setup.sampling)
    # A rule of the user's own may read hidden states without a head.
    hidden = method.head is not None or method.method not in METHODS
    target = plain_pass(setup.pair.target, texts, position.shape[1], hidden)
    within = position.clamp_max(max(setup.drafts - 1, 0))  # a bonus token has no draft
    draft = setup.drafter.plain(setup.pair, texts, within, hidden)
    p_logits = target.logits.flatten(0, 1)
    p, p1 = processed(p_logits, sampling), p_logits.double().softmax(-1)
    q, q1 = _draft_law(setup.drafter, draft, p, sampling, proposed)
    top = p_logits.double().amax(-1)
    next_law = Next(p, q, p1, q1, within.flatten().to(q.device), top=top)
    passes = [target] if draft is None else [target, draft]
    states = [part.hidden.flatten(0, 1) if hidden else part.hidden for part in passes]
    states += [] if draft else [p.new_empty(len(p), 0)]  # a copying drafter has none
    singles = [part.float() for part in next_law[:4]]
    largest = p_logits.amax(-1).float()
    positions = Placed._make((*singles, *states, False, 1, largest, None)).at(next_law.position)
    if method.rule is None:
        return Laws(next_law, Split(torch.zeros_like(next_law.p), next_law.p), None, positions)
    weight = None if method.head is None else method.head.weigh(positions).double()
    return Laws(next_law, _split(method, next_law, weight), weight, positions)


def farther(law: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return the wrong law: row by row, whichever of p and q is farther from the law."""
    to_p = (law - p).abs().sum(-1, keepdim=True)
    to_q = (law - q).abs().sum(-1, keepdim=True)
    proposed = q.sum(-1, keepdim=True) > 0  # a copying drafter may propose nothing
    return torch.where((to_q >= to_p) & proposed, q, p)


def _draft_law(
    drafter: DrafterKind, draft: Pass | None, p: Tensor, sampling: Sampling, proposed: Tensor
) -> tuple[Tensor, Tensor]:
    """Return q ``[K, V]``, from which a drafter draws, and its q1."""
    if draft is None:  # it copies
        q = torch.zeros_like(p)
        q.scatter_(-1, proposed.clamp_min(0)[:, None], (proposed >= 0).to(q)[:, None])
        return q, q
    logits = draft.logits.flatten(0, 1).double()
    q = likeliest(logits) if drafter.greedy else processed(logits, sampling)
    return q, logits.softmax(-1)


def _split(method: BoundMethod, at: Next, weight: Tensor | None) -> Split | None:
    """Return the law of a method at K positions; the user's own law may be wrong."""
    if method.law is None:
        return None
    with user_code(method.law, f"the law of {method.method}"):
        accepted, replaced = method.law(at, **parameters_of(dict(method.parameters), weight))
        sound = (
            accepted.shape == replaced.shape == at.p.shape
            and not (accepted + replaced).isnan().any()
        )
    if not sound:
        subject = place(f"the law {method.law.__name__} of {method.method}", method.law)
        raise UsageError(f"{subject} must return two tensors like p without NaN: correct it")
    return Split(accepted, replaced)
