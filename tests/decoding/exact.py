"""The exact law of a decoded sample's first tokens, by enumeration, and a test against it.

It is independent of the implementation: it uses the closed form of a rule's accepted and replaced
mass, and two facts about the loop (a rejection ends the round, the bonus token comes from p).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.methods.laws import Next, Split

from ..engine.tiny import own_logits
from ..methods.cases import Array, normalised

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
LOWEST_P = 1e-4


class Enumeration(NamedTuple):
    target: PreTrainedModel
    draft: PreTrainedModel
    prompt: list[int]
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float = 0.0

    def next(self, tokens: Tokens, position: int) -> Next:
        context = (*self.prompt, *tokens)
        p, q = (last_logits(m, context).double().numpy() for m in (self.target, self.draft))
        rows = (self._processed(p), self._processed(q), softmax(p), softmax(q))
        processed_p, processed_q, p1, q1 = (torch.from_numpy(row)[None] for row in rows)
        return Next(processed_p, processed_q, p1, q1, torch.tensor([position]))

    def _processed(self, logits: Array) -> Array:
        order = np.argsort(-logits)
        mass = softmax(logits / self.temperature)
        mass[order[self.top_k :] if self.top_k else []] = 0
        mass = normalised(mass)
        if self.top_p:
            mass[order[int(np.argmax(mass[order].cumsum() >= self.top_p)) + 1 :]] = 0
        mass[mass < self.min_p * mass.max()] = 0
        return normalised(mass)

    def law(self, rule: Callable[[Next], Split], n: int, length: int, bonus: str = "p") -> Law:
        """Return the law of the first tokens; after n accepted drafts, one of p or (wrongly) q."""
        # (tokens, drafts accepted in this round) -> probability
        states: dict[tuple[Tokens, int], float] = {((), 0): 1.0}
        for _ in range(length):
            following: dict[tuple[Tokens, int], float] = defaultdict(float)
            for (tokens, accepted), mass in states.items():
                at = self.next(tokens, accepted)
                if accepted == n:
                    split = Split(torch.zeros_like(at.p), getattr(at, bonus))
                else:
                    split = rule(at)
                accepted_mass, replaced = (part[0].tolist() for part in split)
                for y in range(len(accepted_mass)):
                    following[(*tokens, y), accepted + 1] += mass * accepted_mass[y]
                    following[(*tokens, y), 0] += mass * replaced[y]
            states = {state: mass for state, mass in following.items() if mass > 0}
        law: Law = defaultdict(float)
        for (tokens, _), mass in states.items():
            law[tokens] += mass
        return law


@cache
def last_logits(model: PreTrainedModel, tokens: Tokens) -> Tensor:
    """Logits of the next token; the same few prefixes occur thousands of times."""
    return own_logits(model, tokens)[-1]


def softmax(logits: Array) -> Array:
    return normalised(np.exp(logits - logits.max()))


def p_value(samples: Sequence[Tokens], law: Mapping[Tokens, float]) -> float:
    """Pearson's chi-square test; outcomes expected less than five times are pooled."""
    counts = Counter(samples)
    expected = {tokens: mass * len(samples) for tokens, mass in law.items()}
    often = [tokens for tokens, number in expected.items() if number >= 5]
    rest = len(samples) - sum(expected[tokens] for tokens in often)
    rest_seen = len(samples) - sum(counts[tokens] for tokens in often)
    cells: list[tuple[float, float]] = [(counts[tokens], expected[tokens]) for tokens in often]
    if rest > 0.5:
        cells.append((rest_seen, rest))
    elif rest_seen > 0:  # an impossible outcome was drawn
        return 0.0
    statistic = sum((seen - number) ** 2 / number for seen, number in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
