"""Block verification on whole blocks, by enumeration of all possible drafts."""

from collections import defaultdict
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch

from specbench.methods.exact import block
from specbench.methods.serving import fly
from specbench.methods.strict import sd
from specbench.methods.verdict import Positions, Rule, Verdict, normalise

from .cases import Array, normalised

SIZE = 3  # of the vocabulary
Text = tuple[int, ...]
Distributions = dict[Text, Array]
KINDS = ["dense", "zeros", "equal", "one-hot", "far", "temperature 0.7"]


class Models(NamedTuple):
    """Target and draft distributions after every text of up to N tokens."""

    p: Distributions
    q: Distributions
    n: int
    temperature: float = 1.0  # of p and q; rules also get the distributions at 1

    def drafts(self) -> list[Text]:
        return list(product(range(SIZE), repeat=self.n))

    def chance(self, distributions: Distributions, text: Text) -> float:
        return float(np.prod([distributions[text[:i]][y] for i, y in enumerate(text)]))

    def positions(self, dtype: torch.dtype = torch.float64) -> tuple[Positions, torch.Tensor]:
        """All blocks together, as one round of a batch."""
        drafts = self.drafts()
        before = [draft[:i] for draft in drafts for i in range(self.n)]
        p, q = (
            torch.tensor(np.stack([distributions[text] for text in before]), dtype=dtype)
            for distributions in (self.p, self.q)
        )
        p1, q1 = (normalised(rows**self.temperature) for rows in (p, q))
        at = Positions(p, q, p1, q1, p1, q1, greedy=False, n=self.n)
        return at, torch.tensor(drafts).flatten()


def models(kind: str, n: int, seed: int = 0) -> Models:
    rng = np.random.default_rng([KINDS.index(kind), n, seed])
    texts = [text for length in range(n + 1) for text in product(range(SIZE), repeat=length)]

    def distributions() -> Distributions:
        rows = rng.dirichlet(np.full(SIZE, 0.2 if kind == "far" else 0.8), len(texts))
        if kind == "zeros":
            keep = (rng.random(rows.shape) < 0.6) | (rows == rows.max(-1, keepdims=True))
            rows = np.where(keep, rows, 0)
        elif kind == "one-hot":
            rows = np.eye(SIZE)[rows.argmax(-1)]
        return dict(zip(texts, rows / rows.sum(-1, keepdims=True), strict=True))

    p = distributions()
    temperature = 0.7 if kind == "temperature 0.7" else 1.0
    return Models(p, p if kind == "equal" else distributions(), n, temperature)


def law_of_round(models: Models, rule: Rule, dtype: torch.dtype = torch.float64):
    """The law of a round's tokens, and of how many of them are drafts (the last entry)."""
    at, x = models.positions(dtype)
    accept, residual, *_ = rule(at, x)
    blocks: dict[Text, float] = defaultdict(float)
    for b, draft in enumerate(models.drafts()):
        mass = models.chance(models.q, draft)
        for i in range(models.n):
            k = b * models.n + i
            for y in range(SIZE):
                blocks[(*draft[:i], y, i)] += mass * float((1 - accept[k]) * residual[k, y])
            mass *= float(accept[k])
        for y in range(SIZE):
            blocks[(*draft, y, models.n)] += mass * models.p[draft][y]
    return blocks


def law(models: Models, rule: Rule, dtype: torch.dtype = torch.float64) -> dict[Text, float]:
    """The law of the first N + 1 tokens: those of a round, then the target's own."""
    texts: dict[Text, float] = defaultdict(float)
    for (*text, _), mass in law_of_round(models, rule, dtype).items():
        texts[tuple(text)] += mass
    for length in range(1, models.n + 1):
        for text in [text for text in texts if len(text) == length]:
            mass = texts.pop(text)
            for y in range(SIZE):
                texts[(*text, y)] += mass * models.p[text][y]
    return texts


def error(models: Models, rule: Rule, dtype: torch.dtype = torch.float64) -> float:
    masses = law(models, rule, dtype)
    assert len(masses) == SIZE ** (models.n + 1)
    return max(abs(mass - models.chance(models.p, text)) for text, mass in masses.items())


def acceptance_chances(models: Models, rule: Rule) -> Array:
    """The probability [N] that at least that many drafts are accepted."""
    at, x = models.positions()
    accept = rule(at, x).accept.view(-1, models.n).cumprod(-1).numpy()
    chances = [models.chance(models.q, draft) for draft in models.drafts()]
    reached: Array = np.array(chances) @ accept
    return reached


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_emits_the_target_s_law_and_keeps_no_fewer_drafts_than_sd(kind):
    for n in (1, 2, 3):
        pair = models(kind, n)
        assert error(pair, block) < 1e-12 and error(pair, block, torch.float32) < 1e-6
        pairs = [models(kind, n, seed) for seed in range(4)]
        chances = [[acceptance_chances(pair, rule) for rule in (block, sd)] for pair in pairs]
        more = np.array([(first - second).sum() for first, second in chances])
        assert (more > -1e-12).all()
        if n > 1 and kind not in ("equal", "one-hot"):
            assert (more > 1e-3).any()
        else:
            assert np.abs(more).max() < 1e-12


@pytest.mark.parametrize("kind", ["dense", "zeros", "far"])
def test_the_number_of_accepted_drafts_is_that_of_the_paper(kind):
    """P(at least i are kept | x_1..x_i) = P_i, whatever the later drafts."""
    pair = models(kind, 3)
    expected = np.zeros(pair.n)
    for draft in pair.drafts():
        share = 1.0
        for i, y in enumerate(draft):
            p, q = pair.p[draft[:i]][y], pair.q[draft[:i]][y]
            share = min(1.0, share * p / q) if q > 0 else 0.0
            expected[i] += share * pair.chance(pair.q, draft)
    np.testing.assert_allclose(acceptance_chances(pair, block), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_expected_is_the_acceptance_before_this_and_later_drafts_are_drawn(kind):
    pair = models(kind, 3)
    at, x = pair.positions()
    accept, _, expected, _ = block(at, x)
    reached = accept.view(-1, pair.n).cumprod(-1).numpy()
    visited = np.concatenate([np.ones((len(reached), 1)), reached[:, :-1]], -1)
    told = visited * expected.view(-1, pair.n).numpy()
    drafts = pair.drafts()
    chances = np.array([pair.chance(pair.q, draft) for draft in drafts])
    for i in range(pair.n):
        for before in {draft[:i] for draft in drafts}:
            here = chances * [draft[:i] == before for draft in drafts]
            np.testing.assert_allclose(here @ told[:, i], here @ reached[:, i], atol=1e-12)
    assert (expected >= sd(at, x).expected - 1e-12).all()


# FLy, whose law is that of blocks: all flags of all blocks, as its authors' code decides by them.


def accepted_by_flags(flags: tuple[bool, ...], opens: list[bool], window: int) -> int:
    """The number of accepted drafts: each passes, or is deferred and the next W pass."""
    for i, passes in enumerate(flags):
        if not passes and not (
            opens[i] and i + window < len(flags) and all(flags[i + 1 : i + 1 + window])
        ):
            return i
    return len(flags)


def law_by_flags(models: Models, window: int, entropy: float, bound: int = 0) -> dict[Text, float]:
    blocks: dict[Text, float] = defaultdict(float)
    for draft in models.drafts():
        p, q = ([model[draft[:i]] for i in range(models.n)] for model in (models.p, models.q))
        chances = [min(1.0, p[i][y] / q[i][y]) if q[i][y] else 0.0 for i, y in enumerate(draft)]
        opens = []
        for row, y in zip(p, draft, strict=True):
            three = [mass for mass in sorted(row)[-3:] if mass > 0]
            followed = len(opens) + bound < models.n
            opens.append(-sum(m * np.log(m) for m in three) >= entropy and row[y] > 0 and followed)
        for flags in product((False, True), repeat=models.n):
            weights = [c if flag else 1 - c for c, flag in zip(chances, flags, strict=True)]
            mass = models.chance(models.q, draft) * float(np.prod(weights))
            at = accepted_by_flags(flags, opens, window)
            gain = np.maximum(p[at] - q[at], 0) if at < models.n else models.p[draft]
            for y, share in enumerate(gain / gain.sum() if gain.sum() else gain):
                blocks[(*draft[:at], y, at)] += mass * share
    return blocks


def difference(first: dict[Text, float], second: dict[Text, float]) -> float:
    return max(abs(first.get(key, 0) - second.get(key, 0)) for key in {*first, *second})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "window", "entropy", "bound"),
    [(4, 1, 0.7, 0), (4, 2, 0.7, 0), (3, 2, 0.3, 0), (4, 1, 0.7, 2), (3, 1, 0.3, 3)],
)
def test_fly_has_the_law_of_its_flags(kind, n, window, entropy, bound):
    pair = models(kind, n)
    law = law_by_flags(pair, window, entropy, bound)
    rule = partial(fly, window=window, entropy=entropy, bound=bound)
    assert difference(law_of_round(pair, rule), law) < 1e-12
    assert sum(law.values()) == pytest.approx(1)
    if kind in ("dense", "temperature 0.7") and n == 4:  # controls
        for other in (
            sd,
            partial(fly, window=3 - window, entropy=entropy),
            partial(fly, window=window, entropy=0.0),
            partial(fly, window=window, entropy=entropy, bound=3 - bound),
        ):
            assert difference(law_of_round(pair, other), law) > 1e-3


def test_fly_without_a_gate_or_a_window_is_sd():
    for n, entropy in ((4, 9.0), (1, 0.0)):
        pair = models("dense", n)
        rule = partial(fly, window=6, entropy=entropy)
        assert difference(law_of_round(pair, rule), law_of_round(pair, sd)) < 1e-12


def test_fly_at_temperature_0_and_in_a_shorter_round():
    """Flags 0 1 1 0: the first is deferred with W = 2, the last is rejected; 0 1 0 1 with W = 1.

    With W = 1 and a bound of 2, the third of the latter is rejected, as one draft follows it.
    """
    p1 = torch.tensor([[0.5, 0.4, 0.1]]).repeat(4, 1)
    p, one = torch.eye(3)[[0] * 4], torch.eye(3)

    def accepted(x, window, drafts=4, bound=None):
        q = one[x] * (torch.arange(4) < drafts)[:, None]
        at = Positions(p, q, p1, q, p, q, greedy=True, n=4)
        return fly(at, torch.tensor(x), window=window, entropy=0.3, bound=bound).accept.tolist()

    assert accepted([1, 0, 0, 1], 2) == [1, 1, 1, 0]
    assert accepted([1, 0, 1, 0], 1) == [1, 1, 1, 1] and accepted([1, 0, 1, 0], 2)[0] == 0
    assert accepted([1, 0, 1, 0], 1, bound=2)[:3] == [1, 1, 0]
    assert accepted([1, 0, 0, 0], 1, drafts=3, bound=3)[0] == 0  # two follow
    assert accepted([1, 0, 0, 0], 2, drafts=2)[0] == 0  # the window ends behind the drafts


# Negative controls.


def unscaled(at: Positions, x: torch.Tensor) -> Verdict:
    """The residual of sd, without the factor for the mass of p already used by the block."""
    return block(at, x)._replace(residual=normalise((at.p - at.q).clamp_min(0), at.p))


def greedy_block(at: Positions, x: torch.Tensor) -> Verdict:
    """Every draft is judged by the product so far, ignoring the later ones."""
    scaled = block(at, x)
    ratio = at.p.gather(-1, x[:, None]) / at.q.gather(-1, x[:, None]).clamp_min(1e-300)
    return scaled._replace(accept=ratio.view(-1, at.n).cumprod(-1).clamp_max(1).view(-1))


def neighbours(at: Positions, x: torch.Tensor) -> Verdict:
    """Wrong block length: the drafts of several texts are treated as one text's."""
    return block(at._replace(n=at.n * SIZE), x)


@pytest.mark.parametrize("broken", [unscaled, greedy_block, neighbours])
def test_a_broken_block_is_caught(broken):
    assert max(error(models("dense", 2, seed), broken) for seed in range(8)) > 1e-3
