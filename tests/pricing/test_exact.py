"""Prices against the exact mean of the real rules over all texts of tiny models; what is priced."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from specbench.decoding.drafters.model import GreedyDrafter, ModelDrafter, ModuleDrafter
from specbench.decoding.drafters.policies import get_policy
from specbench.methods.exact import block
from specbench.methods.serving import match
from specbench.methods.strict import sd
from specbench.methods.verdict import Positions
from specbench.pricing.rounds import price
from specbench.pricing.scores import COLUMNS, OF_TARGET, Scores, TextName, is_scored, target_texts

from ..synthetic import sample_record

MODEL = ModelDrafter()
WORDS, LENGTH, START = 3, 5, 0
RNG = np.random.default_rng(2)
P, Q = RNG.dirichlet(np.ones(WORDS), WORDS), RNG.dirichlet(np.ones(WORDS), WORDS)  # by last token
GREEDY = np.eye(WORDS)[Q.argmax(-1)]
MODULE = ModuleDrafter("module")
DEPTHS = RNG.dirichlet(np.ones(WORDS), (3, WORDS))  # by depth and last token


def all_texts() -> tuple[Scores, np.ndarray]:
    """Return the scores of every text, and its probability, with those of a module."""
    scores, probability = texts_of(Q)
    columns = {}
    for name in ("q", "rank_q", "top_q", "entropy_q"):
        depths = [getattr(texts_of(law)[0], name) for law in DEPTHS]
        shifted = [np.pad(v[:, d:].astype(float), ((0, 0), (0, d))) for d, v in enumerate(depths)]
        columns[name] = np.stack(shifted, -1)
    return replace(scores, modules={MODULE: replace(scores, **columns)}), probability


def texts_of(law: np.ndarray) -> tuple[Scores, np.ndarray]:
    """Return the scores of every text with a draft's law, and its probability."""
    texts = np.array([*product(range(WORDS), repeat=LENGTH)])
    before = np.column_stack([np.full(len(texts), START), texts[:, :-1]])
    p, q = P[before], law[before]
    token = texts[..., None]

    def rank(laws: np.ndarray) -> np.ndarray:
        return 1 + (laws > np.take_along_axis(laws, token, -1)).sum(-1)

    columns = {
        "p": np.take_along_axis(p, token, -1)[..., 0],
        **{"q": np.take_along_axis(q, token, -1)[..., 0], "rank_p": rank(p), "rank_q": rank(q)},
        **{"top_p": p.max(-1), "top_q": q.max(-1), "entropy_p": -(p * np.log(p)).sum(-1)},
        **{"entropy_q": -(q * np.log(q)).sum(-1), "tv": np.abs(p - q).sum(-1) / 2},
    }
    assert columns.keys() == {*COLUMNS}
    names = tuple(TextName("task", f"{row:04}", "all") for row in range(len(texts)))
    length = np.full(len(texts), LENGTH)
    prompts = ([START],) * len(texts)
    return Scores(names, prompts, texts, length, 1.0, **columns), columns["p"].prod(-1)


def loop(rule, q, most: int, goes_on=lambda law, token: True) -> tuple[float, float]:
    """Return the exact mean of rounds and drafts of the loop, by all drafts and verdicts.

    ``q(last, depth)`` is the law of a draft; ``goes_on`` tells whether a round drafts on after it.
    """
    memory: dict[tuple[int, int], np.ndarray] = {}

    def blocks(last: int, drafted: tuple[int, ...]):
        """Yield every block of drafts with its laws and its probability."""
        law = q(last, len(drafted))
        for x in range(WORDS):
            if law[x] == 0:
                continue
            whole = (*drafted, x)
            if len(whole) == most or not goes_on(law, x):
                yield whole, [law], law[x]
                continue
            for rest, laws, probability in blocks(x, whole):
                yield rest, [law, *laws], law[x] * probability

    def mean(last: int, left: int) -> np.ndarray:
        if left <= 0:
            return np.zeros(2)
        if (last, left) in memory:
            return memory[last, left]
        total = np.zeros(2)
        for drafts, laws, probability in blocks(last, ()):
            n = len(drafts)
            p, law = torch.tensor(P[[last, *drafts]])[:n], torch.tensor(np.array(laws))
            empty = p[:, :0]
            verdict = rule(Positions(p, law, p, law, empty, empty, False, n), torch.tensor(drafts))
            accept = verdict.accept.numpy()
            passed = 1.0
            following = np.zeros(2)
            for i in range(n + 1):
                source = P[[last, *drafts][n]] if i == n else verdict.residual[i].numpy()
                stops = passed if i == n else passed * (1 - accept[i])
                tail = sum(source[y] * mean(y, left - i - 1) for y in range(WORDS))
                following = following + stops * tail
                passed *= 1 if i == n else accept[i]
            total += probability * (np.array([1.0, n]) + following)
        memory[last, left] = total
        return total

    return tuple(mean(START, LENGTH))


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize(
    ("drafter", "rule", "real", "q"),
    [
        *((MODEL, "sd", sd, Q), (MODEL, "match", match, Q), (MODEL, "block", block, Q)),
        *((GreedyDrafter(), "sd", sd, GREEDY), (GreedyDrafter(), "block", block, GREEDY)),
        *((MODULE, "sd", sd, DEPTHS), (MODULE, "match", match, DEPTHS)),
        (MODULE, "block", block, DEPTHS),
    ],
)
def test_the_price_is_the_exact_mean_of_the_loop(drafter, rule, real, q, most):
    scores, probability = all_texts()
    priced = price(scores, drafter, get_policy("fixed"), [most], rule=rule)
    laws = np.broadcast_to(q, DEPTHS.shape)
    rounds, drafted = loop(real, lambda last, depth: laws[depth, last], most)
    assert probability @ priced.rounds[:, 0] == pytest.approx(rounds, abs=1e-9)
    assert probability @ priced.drafted[:, 0] == pytest.approx(drafted, abs=1e-9)


@pytest.mark.parametrize("rule", ["sd", "block"])
def test_the_price_of_a_policy_is_exact(rule):
    """It stops by the drafted token's probability, which is known only for accepted drafts."""
    threshold = float(np.median(Q))
    scores, probability = all_texts()
    priced = price(scores, MODEL, get_policy(f"confidence:{threshold}"), [3], rule=rule)
    rounds, _ = loop(
        {"sd": sd, "block": block}[rule],
        lambda last, depth: Q[last],
        3,
        lambda law, token: law[token] >= threshold,
    )
    assert probability @ priced.rounds[:, 0] == pytest.approx(rounds, abs=1e-9)
    fixed = price(scores, MODEL, get_policy("fixed"), [3], rule=rule)
    assert abs(probability @ fixed.rounds[:, 0] - rounds) > 0.01  # the policy matters


def test_a_limit_counts_prompts_with_all_their_repeats():
    names = product(("sd", "static"), "abc", (0, 1))
    records = [
        sample_record(task="t", method=method, sample_id=name, repeat=repeat, token_ids=[1])
        for method, name, repeat in names
    ]
    chosen = [(r.sample_id, r.repeat) for r in target_texts(records, ["t"], limit=2)]
    assert chosen == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_scores_of_other_numbers_are_computed_again():
    for name, numbers in (
        *[("p", column) for column in (["a", 0.5], [0.5], [math.nan, 0.5], [-1, 0.5], None, 5)],
        *[("q", column) for column in ([5, 0.5], [[0.5], [0.5, 0.1]], [[0.5], [0.5]])],
        *[("rank_q", column) for column in ([-5, 1], [1, 10**400], [True, True])],
        ("entropy_p", [-1, 0]),
        ("tv", [math.nan, 0.5]),
    ):
        scores = {column: [0.5, 0.5] for column in COLUMNS}
        of_head = {n: c if n in OF_TARGET else [c] * 2 for n, c in scores.items()}
        assert is_scored(scores, 2) and is_scored(of_head, 2, 2)
        assert not is_scored(scores | {name: numbers}, 2)
        assert not is_scored(None, 2) and not is_scored(of_head, 2) and not is_scored(scores, 2, 2)
