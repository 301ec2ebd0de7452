"""Whether the texts of two arms follow one distribution, by exchanging their labels.

If both arms sample from one distribution, the labels of a prompt's texts may be exchanged, so a
permutation test is exact whatever the model. The statistics compare texts within and between arms,
for several kinds of likeness, and sums over an arm's texts. Each is standardised by its
permutations, and the largest counts, so that there is one p value.

What the test would have seen follows from the baseline's texts alone (``power``): they are split in
halves, and a fault is planted in one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Text = Sequence[Hashable]  # tokens, or words

PERMUTATIONS, TRIALS = 1_999, 50
LEVEL = 0.05
FEWEST_TEXTS = 4  # of each prompt and arm: two of them are compared
BUCKETS = 256  # the most frequent tokens, and all others together
PREFIXES = (1, 2, 4, 8)  # tokens that two texts begin with alike


@dataclass(frozen=True)
class Traits:
    """What is compared of n prompts with M texts each."""

    likeness: Floats  # [S, n, M, M] of two texts of a prompt, 0 to 1, by S kinds
    values: Floats  # [V, n, M] of a text, by V kinds
    shares: Floats  # [n, M, BUCKETS] of the tokens of a text

    @classmethod
    def of(cls, prompts: Sequence[Sequence[Text]]) -> Traits:
        """Return the traits of M texts of each prompt."""
        n, size = len(prompts), len(prompts[0])
        counts = Counter(token for texts in prompts for text in texts for token in text)
        total, bucket = sum(counts.values()) or 1, {}
        for number, (token, _) in enumerate(counts.most_common()):
            bucket[token] = min(number, BUCKETS - 1)
        likeness = np.zeros((len(PREFIXES) + 2, n, size, size))
        values, shares = np.zeros((4, n, size)), np.zeros((n, size, BUCKETS))
        for p, texts in enumerate(prompts):
            for i, text in enumerate(texts):
                np.add.at(shares[p, i], [bucket[token] for token in text], 1)
                rarity = [-np.log(counts[token] / total) for token in text] or [0.0]
                distinct = len({*text}) / max(len(text), 1)
                values[:, p, i] = len(text), np.mean(rarity), rarity[0], distinct
                for j in range(i + 1):
                    other = texts[j]
                    common = next(
                        (k for k, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
                        min(len(text), len(other)),
                    )
                    prefixes = [common >= length for length in PREFIXES]
                    likeness[:-1, p, i, j] = *prefixes, [*text] == [*other]
            lengths = np.linalg.norm(shares[p], axis=-1, keepdims=True)
            unit = shares[p] / np.where(lengths, lengths, 1)
            likeness[-1, p] = unit @ unit.T
        lower = np.tril(likeness, -1)
        diagonal = np.einsum("snii->sni", likeness)[..., None] * np.eye(size)
        return cls(lower + lower.swapaxes(-1, -2) + diagonal, values, shares)

    def of_texts(self, chosen: Integers) -> Traits:
        """Return the traits of some texts of each prompt ``[n, m]``; a text may be repeated."""
        likeness = np.take_along_axis(self.likeness, chosen[None, :, :, None], 2)
        likeness = np.take_along_axis(likeness, chosen[None, :, None, :], 3)
        values = np.take_along_axis(self.values, chosen[None], 2)
        return Traits(likeness, values, np.take_along_axis(self.shares, chosen[..., None], 1))

    def statistics(self, second: NDArray[np.bool_]) -> Floats:
        """Return all statistics ``[P, 2 S + V + 1]`` of P ways to split the texts.

        Args:
            second: ``[P, n, M]`` whether a text is of the second arm, which has the same number
                of texts of each prompt as the first.
        """
        ways, n, size = second.shape
        half = size // 2
        signs = np.where(second, 1.0, -1.0)
        columns = []
        for kind in self.likeness * (1 - np.eye(size)):
            rows = np.einsum("wnm,nmk->wnk", signs, kind)
            within_less_between = (rows * signs).sum((1, 2))
            more_alike = rows.sum((1, 2))  # the second arm than the first
            columns += [within_less_between, np.abs(more_alike)]
        columns += [*np.abs(np.einsum("wnm,vnm->vw", signs, self.values))]
        tokens = self.shares.reshape(n * size, -1)
        differences = signs.reshape(ways, n * size) @ tokens
        columns.append((differences**2 / np.maximum(tokens.sum(0), 1)).sum(-1))
        statistics: Floats = np.stack(columns, -1) / (n * half)
        return statistics

    def p_value(self, second: NDArray[np.bool_], draws: np.random.Generator, ways: int) -> float:
        """Return how often a random split is as extreme as this one ``[n, M]``."""
        order = draws.random((ways, *second.shape)).argsort(-1)
        splits = np.concatenate([second[None], order < second.shape[-1] // 2])
        statistics = self.statistics(splits)
        spread = statistics.std(0)
        largest = ((statistics - statistics.mean(0)) / np.where(spread > 0, spread, np.inf)).max(-1)
        return float((largest >= largest[0] - 1e-9).mean())


class Fault(NamedTuple):
    """A fault that is planted: a share of answers that are greedy, or a lower temperature."""

    greedy: float = 0.0
    temperature: float = 1.0  # times that of the baseline


GREEDY = tuple(Fault(greedy=share) for share in (0.1, 0.2, 0.5))
COOLER = tuple(Fault(temperature=times) for times in (0.9, 0.8))


class Sampled(NamedTuple):
    """The outcome of a test."""

    p: float
    prompts: int
    texts: int  # of each arm and prompt
    is_alike: bool  # whether the arm's texts are more alike than the baseline's


def compare_texts(
    baseline: Sequence[Sequence[Text]],
    arm: Sequence[Sequence[Text]],
    seed: int = 0,
    level: float = LEVEL,
) -> Sampled:
    """Test whether two arms sample alike.

    Args:
        baseline: R texts of each prompt, drawn independently of each other.
        arm: R texts of the same prompts. Its first halves are compared with the baseline's last,
            since texts of one repeat may share their random numbers.
        seed: Of the permutations.
        level: The p value that the permutations must be able to reach.
    """
    texts = len(arm[0]) // 2
    pairs = zip(baseline, arm, strict=True)
    traits = Traits.of([[*base[-texts:], *other[:texts]] for base, other in pairs])
    second = np.tile(np.arange(2 * texts) >= texts, (len(arm), 1))
    draws = np.random.default_rng(seed)
    p = traits.p_value(second, draws, max(PERMUTATIONS, ceil(2 / level) - 1))
    blocks = traits.likeness * (1 - np.eye(2 * texts))
    alike = blocks[:, :, texts:, texts:].sum() - blocks[:, :, :texts, :texts].sum()
    return Sampled(p, len(arm), texts, bool(alike > 0))


def power(
    baseline: Sequence[Sequence[Text]],
    faults: Sequence[Fault] = GREEDY + COOLER,
    trials: int = TRIALS,
    level: float = LEVEL,
) -> dict[Fault, float]:
    """Return the share of trials in which the test shows a fault at a level.

    A trial splits the baseline's R texts of each prompt at random in halves, so it has as many
    texts as the test. A greedy answer is one text of the prompt, the likeliest one, which is then
    in no half. A lower temperature draws the second half by weights (``tempered``).
    """
    traits, size = Traits.of(baseline), len(baseline[0])
    draws, ways = np.random.default_rng(0), ceil(2 / level) - 1
    weights: dict[float, Floats] = {}
    shares: dict[Fault, float] = {}
    for fault in faults:
        times = fault.temperature if fault.temperature < 1 else 0.5
        if times not in weights:
            weights[times] = np.array([tempered(texts, times) for texts in baseline])
        logs = weights[times]
        shown = 0
        for _ in range(trials):
            noise = draws.gumbel(size=logs.shape)
            if fault.greedy:
                likeliest = logs.argmax(-1, keepdims=True)
                np.put_along_axis(noise, likeliest, -np.inf, -1)
                half = (size - 1) // 2
                chosen = noise.argsort(-1)[:, -2 * half :]
                is_greedy = draws.random((len(logs), half)) < fault.greedy
                chosen[:, half:] = np.where(is_greedy, likeliest, chosen[:, half:])
            else:
                half = size // 2
                # The other half has what is left, so both differ by 2 ln 2 times the weights.
                chosen = (noise + logs / (2 * np.log(2))).argsort(-1)[:, -2 * half :]
            second = np.tile(np.arange(2 * half) >= half, (len(logs), 1))
            shown += traits.of_texts(chosen).p_value(second, draws, ways) <= level
        shares[fault] = shown / trials
    return shares


def tempered(texts: Sequence[Text], times: float) -> Floats:
    """Return the logarithm of the weight of each text at a lower temperature ``[R]``.

    The probability of a token is estimated by the share of texts that go on with it after the same
    tokens, with one text more of each (Laplace), since shares of few texts vary more than
    probabilities. Where texts are alone, nothing is known, so the weights are too equal, and the
    power that follows from them is too small rather than too large.
    """
    logs = np.zeros(len(texts))
    groups, depth = [[*range(len(texts))]], 0
    while groups:
        longer: list[list[int]] = []
        for group in groups:
            parts: dict[Hashable, list[int]] = {}
            for index in group:
                token = texts[index][depth] if depth < len(texts[index]) else None
                parts.setdefault(token, []).append(index)
            counts = np.array([len(part) for part in parts.values()])
            shares = (counts + 1) / (counts + 1).sum()
            normaliser = np.log((shares ** (1 / times)).sum())
            for share, part in zip(shares, parts.values(), strict=True):
                logs[part] += (1 / times - 1) * np.log(share) - normaliser
            longer += [part for token, part in parts.items() if len(part) > 1 and token is not None]
        groups, depth = longer, depth + 1
    return logs
