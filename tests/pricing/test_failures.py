"""What breaks the conditions of a price is seen: by the texts alone, or by recorded rounds."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, t

from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafters.policies import Drafting, Policy
from specbench.decoding.sampling import Sampling
from specbench.errors import UsageError
from specbench.pricing import passes
from specbench.pricing.checks import SURE, compare, deviations, sure
from specbench.pricing.passes import PairScores, score_texts
from specbench.pricing.rounds import drafting, visits
from specbench.pricing.scores import SCORES, ScoredText, Scores, TextName, joined, read_scores

from ..engine.tiny import tiny_pair
from ..synthetic import record, sample_record
from ..validation.toy import END, toy

TEXTS, LENGTH, MOST = 240, 24, 5
Law = Callable[[int, int], np.ndarray]  # of the last token and the depth in the round


def p(last: int) -> np.ndarray:
    return toy().target.law(last, 1.0)  # type: ignore[attr-defined, no-any-return]


def q(last: int, depth: int = 0) -> np.ndarray:
    return toy().draft.law(last, 1.0)  # type: ignore[attr-defined, no-any-return]


def decoded(most: int = MOST, draft: Law = q, target: Callable[[int], np.ndarray] = p):
    random = np.random.default_rng(5)
    scored, records = {}, []
    for number in range(TEXTS):
        tokens, rounds = [], []
        while len(tokens) < LENGTH and END not in tokens:
            accepted = 0
            new: list[int] = []
            for depth in range(most):
                last = [0, *tokens, *new][-1]
                p_here, q_here = target(last), draft(last, depth)
                x = int(random.choice(len(q_here), p=q_here))
                if random.random() < min(1, p_here[x] / q_here[x]):
                    new.append(x)
                    accepted += 1
                    continue
                residual = np.maximum(p_here - q_here, 0)
                new.append(int(random.choice(len(q_here), p=residual / residual.sum())))
                break
            else:
                last = [0, *tokens, *new][-1]
                new.append(int(random.choice(END + 1, p=target(last))))
            size = min(len(new), LENGTH - len(tokens))
            size = min(size, new.index(END) + 1 if END in new else size)
            tokens += new[:size]
            whole = size == accepted + 1
            rounds.append((most if whole else size, [], accepted if whole else size, int(whole)))
        name = TextName("task", f"{number:04}", "sd")
        text = ScoredText(name, [0], tokens)
        scored[name] = {**text._asdict(), **PairScores(toy(), Sampling())(text)}
        changes = {"task": "task", "draft_length": most, "stopped_by": "stop"}
        records.append(sample_record(**record(rounds, name.sample_id, **changes)))
    return joined(scored, 1.0), records


def rounds_of(scores: Scores, most: int) -> Drafting:
    return drafting(scores, ModelDrafter(), "sd", most)


@pytest.fixture(scope="module")
def honest() -> tuple[Scores, list]:
    return decoded()


def test_nothing_is_drafted_beyond_the_drafts_context():
    draft = copy(toy().draft)
    draft.context = 4
    text = ScoredText(TextName("task", "0", "sd"), [0, 0], [1, 2, 1, 2, 1, 2])
    whole, cut = (
        PairScores(pair, Sampling())(text) for pair in (toy(), replace(toy(), draft=draft))
    )
    assert cut["q"] == [*whole["q"][:3], 0, 0, 0]
    assert cut["tv"] == [*whole["tv"][:3], 1, 1, 1]


def test_a_lossless_loop_agrees_and_texts_of_another_law_are_seen(honest):
    scores, records = honest
    assert not any(deviation.is_sure for deviation in deviations(scores))
    comparison = compare(scores, records)
    assert not comparison.is_sure
    assert comparison.difference.low < 0 < comparison.difference.high
    again = compare(
        scores,
        [*records, *(r.filled(repeat=n) for n in range(1, 9) for r in records[: TEXTS // 3])],
    )  # repeats weigh as one text
    assert again.measured == pytest.approx(comparison.measured, nan_ok=True)
    later = [r.filled(turn=2) for r in records[: TEXTS // 3]]  # turns of a text are added
    talks = [*(r.filled(turn=1) for r in records[: TEXTS // 3]), *records[TEXTS // 3 :], *later]
    added = [
        sum(map(sum, (r.per_round.emitted for r in talks))),
        sum(len(r.per_round.emitted) for r in talks),
    ]
    assert compare(scores, talks).measured.value == pytest.approx(added[0] / added[1])
    cooler, _ = decoded(target=lambda last: toy().target.law(last, 0.8))  # type: ignore[attr-defined]
    mixed, _ = decoded(target=lambda last: 0.7 * p(last) + 0.3 * q(last))
    cold, _ = decoded(target=lambda last: toy().target.law(last, 0.3))  # type: ignore[attr-defined]
    for scores in (cooler, mixed, cold.of(range(20))):
        assert any(deviation.is_sure for deviation in deviations(scores))


@pytest.mark.parametrize(
    ("rank", "top", "is_seen"), [(2, 0.5, False), (2, 0.7, True), (3, 0.5, True)]
)
def test_greedy_texts_may_differ_only_where_two_tokens_are_as_likely(honest, rank, top, is_seen):
    scores, _ = honest
    ranks = np.ones_like(scores.rank_p)
    ranks[:, ::20] = rank  # every 20th token, five times as many as rounding may change
    greedy = replace(scores, temperature=0, rank_p=ranks, top_p=np.full(ranks.shape, top))
    (deviation,) = deviations(greedy)
    assert deviation.is_sure == is_seen


def test_a_drafter_that_reads_the_targets_states_is_seen():
    """Its first draft is drawn from near p: the texts are right, and the rounds are others."""
    scores, records = decoded(
        draft=lambda last, depth: q(last) if depth else (p(last) + q(last)) / 2
    )
    assert not any(deviation.is_sure for deviation in deviations(scores))
    assert compare(scores, records).is_sure


@pytest.mark.parametrize("prompts", [3, 8, 1000])
def test_few_prompts_need_a_larger_difference(prompts):
    assert t.sf(sure(prompts), prompts - 1) == pytest.approx(norm.sf(SURE), rel=1e-6)


@pytest.mark.parametrize("returned", [-1, 2.5, None, True, [1, 2, 3], np.zeros((7, 7), int)])
def test_a_policy_that_returns_no_numbers_of_drafts_is_refused(honest, returned):
    rounds = rounds_of(honest[0], 3)
    chosen = Policy("own", True, lambda rounds: returned)
    with pytest.raises(UsageError, match="own returns no numbers of drafts"):
        visits(rounds, chosen)


@pytest.mark.parametrize(("interval", "expected"), [(0, [0, 1, 2]), (3600, [0, 0, 0])])
def test_scores_are_saved_while_texts_are_read(tmp_path, monkeypatch, interval, expected):
    monkeypatch.setattr(passes, "SAVED_EVERY", interval)
    saved = []
    texts = [ScoredText(TextName("task", f"{n}", "sd"), [0], [n, END]) for n in range(3)]
    score_texts(
        PairScores(tiny_pair("llama"), Sampling()),
        texts,
        tmp_path,
        lambda step: saved.append(len(read_scores(tmp_path / SCORES))),
    )
    assert saved == expected
    assert len(read_scores(tmp_path / SCORES)) == 3
