"""Texts of two arms: false alarms, planted faults, and the power that is said."""

from bisect import bisect
from functools import partial

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.sampled import (
    LEVEL,
    PERMUTATIONS,
    Fault,
    Traits,
    compare_texts,
    power,
    tempered,
)
from specbench.analysis.verdicts.sampling import (
    DIFFER,
    SAME,
    UNKNOWN,
    sampling_rows,
    sampling_verdicts,
)

PROMPTS, REPEATS, TOKENS = 30, 8, 12


def texts_of(
    draws: np.random.Generator, temperature: float = 1.0, prompts: int = PROMPTS, seed: int = 0
) -> list[list[list[int]]]:
    """Texts of a chain over six tokens whose laws differ by prompt; token 0 ends a text."""
    laws = np.random.default_rng(seed).dirichlet([0.4] * 6, size=(prompts, 6))
    laws = laws ** (1 / temperature)
    edges = (laws / laws.sum(-1, keepdims=True)).cumsum(-1)
    edges = (edges / edges[..., -1:]).tolist()

    def text(prompt: int) -> list[int]:
        tokens = [1]
        while len(tokens) < TOKENS and tokens[-1]:
            tokens.append(bisect(edges[prompt][tokens[-1]], draws.random()))
        return tokens[1:]

    return [[text(prompt) for _ in range(REPEATS)] for prompt in range(prompts)]


def halves(texts: int) -> np.ndarray:
    return np.arange(2 * texts) >= texts


def test_false_alarms_are_as_rare_as_said_and_the_same_arm_twice_shares_no_draw():
    draws, alarms, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        texts = texts_of(draws, prompts=5)
        second = np.tile(halves(REPEATS // 2), (5, 1))
        alarms += Traits.of(texts).p_value(second, draws, 19) <= 0.05
    assert 0.02 < alarms / trials < 0.075  # 5 %, within three standard errors
    # Identical arms: no text is compared with itself, so they are no more alike than others.
    ps = []
    for seed in range(40):
        texts = texts_of(np.random.default_rng(seed), prompts=8)
        ps.append(compare_texts(texts, texts, seed).p)
    assert 0.3 < np.mean(ps) < 0.7 and min(ps) < 0.3


def changed(kind: str, texts: list[list[list[int]]]) -> list[list[list[int]]]:
    draws = np.random.default_rng(3)
    match kind:
        case "repeated":
            return [[of[0]] * len(of) for of in texts]
        case "first token":
            return [[[5, *text[1:]] for text in of] for of in texts]
        case "length":
            return [[text[: max(1, len(text) // 2)] for text in of] for of in texts]
        case "words":
            draw = draws.random
            return [[[9 if t == 5 and draw() < 0.6 else t for t in x] for x in of] for of in texts]
        case "greedy in three of ten":
            return [[of[0] if draws.random() < 0.3 else text for text in of] for of in texts]
        case "garbled in one of four":
            return [[[7, 7, 7] if i % 4 == 0 else x for i, x in enumerate(of)] for of in texts]
    return texts


TEMPERATURES = {"colder": 0.6, "hotter": 2.5}
ALIKE = {"repeated": True, "greedy in three of ten": True, "colder": True, "hotter": False}


@pytest.mark.parametrize(
    "kind", ["", "first token", "length", "words", "garbled in one of four", *ALIKE]
)
def test_planted_faults_are_seen_and_nothing_else(kind):
    baseline, draws = texts_of(np.random.default_rng(1)), np.random.default_rng(2)
    arm = changed(kind, texts_of(draws, TEMPERATURES.get(kind, 1.0)))
    outcome = compare_texts(baseline, arm)
    assert (outcome.p <= 0.05) == bool(kind)
    assert (outcome.prompts, outcome.texts) == (PROMPTS, REPEATS // 2)
    assert kind not in ALIKE or outcome.is_alike == ALIKE[kind]


def test_the_power_is_not_said_too_large():
    """That of greedy texts is right; that of a lower temperature is at most the true one."""
    baseline, trials = texts_of(np.random.default_rng(0), prompts=20), 40
    faults = (Fault(greedy=0.2), Fault(greedy=0.5), Fault(temperature=0.8))
    said = power(baseline, faults, trials=trials)
    true = dict.fromkeys(faults, 0.0)
    draws = np.random.default_rng(5)
    for _ in range(trials):
        ours = texts_of(draws, prompts=20)
        likeliest = texts_of(draws, 0.02, prompts=20)
        for fault in faults:
            theirs = texts_of(draws, fault.temperature, prompts=20)
            if fault.greedy:
                theirs = [
                    [greedy[0] if draws.random() < fault.greedy else text for text in of]
                    for of, greedy in zip(theirs, likeliest, strict=True)
                ]
            half = REPEATS // 2
            both = [[*a[:half], *b[:half]] for a, b in zip(ours, theirs, strict=True)]
            second = np.tile(halves(half), (20, 1))
            true[fault] += (Traits.of(both).p_value(second, draws, 39) <= 0.05) / trials
    assert said[faults[1]] > 0.9 and true[faults[1]] > 0.9
    assert abs(said[faults[0]] - true[faults[0]]) < 0.35
    assert said[faults[2]] <= true[faults[2]] + 0.1


def test_the_power_is_not_said_too_large_of_short_answers():
    """Weighted halves differ by more than the weights, since the other half has what is left."""
    laws = np.random.default_rng(0).dirichlet([1] * 4, size=50)
    draws, fault, trials = np.random.default_rng(1), Fault(temperature=0.8), 60
    said, true = 0.0, 0.0
    for trial in range(trials):
        both = []
        for temperature in (1.0, 0.8):
            edges = laws ** (1 / temperature)
            edges = (edges / edges.sum(-1, keepdims=True)).cumsum(-1)
            uniform = draws.random((50, 8, 1))
            both.append((uniform > edges[:, None]).sum(-1, keepdims=True).tolist())
        if trial < 4:
            texts = [[[int((u > law.cumsum()).sum())] for u in draws.random(16)] for law in laws]
            said += power(texts, [fault], trials=trials)[fault] / 4
        rows = [[*a, *b] for a, b in zip(*both, strict=True)]
        true += (Traits.of(rows).p_value(np.tile(halves(8), (50, 1)), draws, 39) <= 0.05) / trials
    assert said <= true + 0.1 < 0.4


def test_weights_of_a_lower_temperature_follow_shares_of_tokens():
    weights = np.exp(tempered([[1, 2], [1, 3], [1, 3], [4]], 0.5))
    # Of 1 (3 of 4) and 4; then of 2 (1 of 3) and 3: with one text more of each.
    first, second = (4 / 6) ** 2 + (2 / 6) ** 2, (2 / 5) ** 2 + (3 / 5) ** 2
    expected = [(4 / 6) / first * (share / second) for share in (2 / 5, 3 / 5, 3 / 5)]
    assert weights == pytest.approx([*expected, (2 / 6) / first])


def frame(**arms: list[list[list[int]]]) -> pd.DataFrame:
    rows = [
        {
            **{"run_id": "r", "task": "t", "temperature": 1.0, "arm": arm, "method": arm},
            **{"load": 1.0, "draft_length": 0, "turn": np.nan, "sample_id": f"{prompt}"},
            **{"repeat": repeat, "text": "", "token_ids": tokens, "stopped_by": "eos"},
        }
        for arm, texts in arms.items()
        for prompt, of_prompt in enumerate(texts)
        for repeat, tokens in enumerate(of_prompt)
    ]
    return pd.DataFrame(rows)


def test_a_sentence_says_what_is_seen_and_what_would_have_been(monkeypatch):
    levels: list[float] = []

    def measured(texts, level):
        levels.append(level)
        return power(texts, trials=4, level=level)

    monkeypatch.setattr("specbench.analysis.verdicts.sampling.power", measured)
    plain, fast, cold = (
        texts_of(np.random.default_rng(seed), temperature)
        for seed, temperature in ((1, 1.0), (2, 1.0), (3, 0.5))
    )
    rows = sampling_rows(frame(plain=plain, fast=fast, cold=cold), "plain")
    assert rows.set_index("arm")["same_texts"].to_dict() == {"fast": SAME, "cold": DIFFER}
    assert levels == [0.025]  # once for the baseline, at the level of Holm's correction
    judged = rows.assign(label=rows["arm"])
    lines = [*sampling_verdicts(judged)["sentence"]]
    told = "fast: texts follow the distribution of plain as far as 4 texts of each on 30 prompts"
    assert lines[0].startswith(told)
    assert lines[1].startswith("cold: texts differ from those of plain (p = ")
    assert lines[2].startswith("greedy texts in ") and "% of such runs" in lines[2]
    # With 200 arms Holm's correction asks for a p value below that of all usual permutations.
    alike = [of[:1] * len(of) for of in plain]
    assert compare_texts(plain, alike, level=LEVEL / 200).p < 1 / (1 + PERMUTATIONS)
    few = frame(plain=[of[:3] for of in plain], fast=[of[:3] for of in fast])
    assert [*sampling_rows(few, "plain")["same_texts"]] == [UNKNOWN]
    blind = frame(plain=[of[:4] for of in plain[:3]], fast=[of[:4] for of in fast[:3]])
    rows = sampling_rows(blind, "plain")  # compared, but no fault would be seen
    assert rows["same_texts"].item() == UNKNOWN and rows["same_texts_p"].notna().item()
    assert sampling_verdicts(rows.assign(label=rows["arm"])).empty
    greedy = frame(plain=plain, fast=fast).assign(temperature=0.0)
    assert sampling_rows(greedy, "plain").empty


def test_prompts_that_lack_a_text_are_left_out_and_ids_are_not_mixed_with_words(monkeypatch):
    monkeypatch.setattr("specbench.analysis.verdicts.sampling.power", partial(power, trials=4))
    plain, fast = (texts_of(np.random.default_rng(seed)) for seed in (1, 2))
    texts = frame(plain=plain, fast=fast)
    lacking = texts["arm"].eq("fast") & texts["sample_id"].eq("3") & texts["repeat"].eq(0)
    rows = sampling_rows(texts[~lacking], "plain")
    assert "on 29 prompts" in rows["same_texts_sentence"][0]
    words = [" ".join(map(str, tokens)) for tokens in texts["token_ids"]]
    is_plain = texts["arm"].eq("plain")
    ids = [i if plain else [] for i, plain in zip(texts["token_ids"], is_plain, strict=True)]
    mixed = texts.assign(text=words, token_ids=ids)
    assert [*sampling_rows(mixed, "plain")["same_texts"]] == [SAME]
