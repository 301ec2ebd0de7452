"""``analysis.verdicts.margin``: simulated arms with known losses, and cases by hand."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import QUALITY_LESS
from specbench.analysis.statistics.intervals import Floats, limit_with_failures, unseen_share
from specbench.analysis.statistics.proportions import paired_difference
from specbench.analysis.verdicts.margin import margin_rows, prompts_at_share, prompts_needed
from specbench.analysis.verdicts.words import EXCLUDED, FASTER, NOISE, OPEN, SHOWN, SLOWER

from ..told import refusals
from .conftest import Make

SERVER = {"draft_length": 0, "drafter": None, "settings": "concurrency=4"}


def answers(scores: Sequence[float] | Floats, **shared: Any) -> list[dict[str, Any]]:
    named = ((f"p{i:03}", float(score)) for i, score in enumerate(scores))
    return [{"sample_id": name, "quality": score, **shared} for name, score in named]


def only(rows: pd.DataFrame, method: str) -> pd.Series:
    (index,) = rows.index[rows["method"] == method]
    return rows.loc[index]


def judged(make: Make, base: Any, fast: Any, margin: float = 2, **changes: Any) -> pd.Series:
    arms = (base, SERVER | {"method": "plain"}), (fast, SERVER | {"method": "fast"} | changes)
    samples = make(*(row for scores, of in arms for row in answers(scores, **of)))
    return only(margin_rows(samples, "plain", margin), "fast")


def drawn(rng: np.random.Generator, prompts: int, loss: float) -> tuple[Floats, Floats]:
    """Scores of a server, .8 on average, and of one that loses a further share of the prompts."""
    right = rng.beta(0.8, 0.2, prompts)
    base, fast = (1.0 * (rng.random(prompts) < right) for _ in range(2))
    return base, np.where(rng.random(prompts) < loss / 0.8, 0.0, fast)


def interval_of(base: Floats, fast: Floats) -> tuple[float, float]:
    """Return the interval that ``contrast`` has for ``QUALITY_LESS``, which ends in this call."""
    prompts = np.arange(len(base))
    return paired_difference((fast, prompts), (base, prompts))[1:3]


def test_the_prompts_named_decide():
    """Of 100 fresh runs of that size, equal servers pass and a loss of 3 points is called."""
    rng, margin = np.random.default_rng(2), 0.03
    called, passed, alarms = [], [], []
    while len(called) < 100:
        base, fast = drawn(rng, 100, 0)
        low, high = interval_of(base, fast)
        if not low <= -margin <= 0 <= high:  # decided already
            continue
        n = prompts_needed(fast - base, margin)
        called.append(interval_of(*drawn(rng, n, margin))[1] < 0)
        low, high = interval_of(*drawn(rng, n, 0))
        passed.append(low > -margin)
        alarms.append(not low <= 0 <= high)
    assert np.mean(called) >= 0.8 and np.mean(passed) >= 0.8
    assert np.mean(alarms) <= 0.09  # 5 %, and two standard errors


def test_the_interval_covers_a_rare_loss_where_no_score_differs():
    """The chance of no difference at its lower end is small, for scores of any kind."""
    for scores in (np.ones(60), np.linspace(0, 1, 60)):
        low, high = interval_of(scores, scores)
        assert low == -high and (1 + low) ** 60 <= 0.025 < (1 + low / 2) ** 60
    one = np.linspace(0.2, 1, 300)
    low, high = interval_of(one, one - 0.1 * (np.arange(300) == 7))
    assert low <= -1 / 300 and high >= 0.003


def rouge_like(rng: np.random.Generator, prompts: int, failing: float, spread: float = 0.02):
    """Scores around .66, and those of a server that differs a little and at times fails."""
    base = rng.normal(0.66, 0.1, prompts).clip(0, 1)
    fast = base + spread * rng.choice([-1, 1], prompts)
    return base, np.where(rng.random(prompts) < failing, 0.0, fast)


@pytest.mark.parametrize("prompts", [12, 100, 500])
def test_failures_that_no_prompt_shows_are_not_within_the_margin(prompts):
    """The loss is just above the margin; the control is the bootstrap, which calls it within."""
    rng = np.random.default_rng(4)
    within, bootstrapped, repetitions = 0, 0, 0
    for failing in (0.005, 0.01, 0.02, 0.05):
        for _ in range(100):
            base, fast = rouge_like(rng, prompts, failing)
            margin = 0.65 * failing
            low = interval_of(base, fast)[0]
            within += min(low, limit_with_failures(fast - base, float(base.mean()))) > -margin
            bootstrapped += low > -margin
            repetitions += 1
    assert within / repetitions <= 0.03 < bootstrapped / repetitions


def test_the_prompts_named_exclude_failures(make):
    rng = np.random.default_rng(5)
    rows = [judged(make, *rouge_like(rng, n, 0), margin=1) for n in (100, 300)]
    assert [row["loss"] for row in rows] == [OPEN, EXCLUDED]
    assert "100 prompts cannot exclude 3.6 % of failed answers" in rows[0]["sentence"]
    enough = int(rows[0]["prompts_needed"])
    assert enough > 300
    assert judged(make, *rouge_like(rng, enough, 0), margin=1)["loss"] == EXCLUDED
    # The limit is that of Clopper and Pearson for the share of failures.
    assert limit_with_failures(np.zeros(100), 1.0) == pytest.approx(-unseen_share(100), rel=0.05)
    equal = np.zeros(100)
    assert prompts_needed(equal, 0.01, 0.66) > prompts_needed(equal, 0.01)
    # Of scores of 0 and 1, the score interval decides as before.
    assert judged(make, np.ones(300), np.ones(300))["loss"] == EXCLUDED


@pytest.mark.parametrize(
    ("worse", "better", "prompts", "loss"),
    [
        (0, 0, 100, OPEN),  # -3.7 points cannot be excluded
        (0, 0, 300, EXCLUDED),
        (3, 0, 300, OPEN),
        (4, 0, 300, SHOWN),  # a loss, and not within the margin
        (30, 30, 300, OPEN),
        (60, 2, 300, SHOWN),
        (2, 60, 300, EXCLUDED),  # a gain
    ],
)
def test_the_outcome_of_few_differences(make, worse, better, prompts, loss):
    base, fast = np.ones(prompts), np.ones(prompts)
    fast[:worse] = 0
    base[worse : worse + better] = 0
    row = judged(make, base, fast)
    assert row["loss"] == loss and row["n"] == prompts
    assert row["differ"] == pytest.approx((worse + better) / prompts)
    shown = {4: "a loss is shown", 2: "a gain is shown"}.get(worse, "accuracy")
    assert shown in row["sentence"]
    undecided = loss == OPEN
    assert undecided == (row["more_prompts"] > 0) == ("more prompts" in row["sentence"])


def test_more_prompts_are_needed_for_a_smaller_margin_more_differences_and_a_loss():
    for n, unequal, margin in product((20, 500), (0.0, 0.2, 0.5), (0.01, 0.05)):
        size = round(unequal * n / 2)
        half = np.zeros(n)
        half[:size], half[size : 2 * size] = 1, -1
        needed = prompts_needed(half, margin)
        assert needed > 7.84 * unequal / margin**2
        assert needed > prompts_needed(half, 2 * margin)
        assert needed >= prompts_needed(0 * half, margin)
        lossy = np.where(np.arange(n) == 2 * size, -1, half)
        assert prompts_needed(lossy, margin) > needed
    # With many prompts measured, the formula: 1.96 + 0.84 standard errors are the margin.
    many = np.tile([1.0, -1.0] + [0.0] * 18, 5000)
    assert prompts_needed(many, 0.02) == pytest.approx(7.849 * 0.12 / 0.02**2, rel=0.01)


def test_times_are_ratios_and_noise_is_that_of_the_same_server(make):
    rng = np.random.default_rng(0)
    hard = rng.lognormal(0, 0.5, 60)
    speeds = {"plain": 1.0, "again": 1.05, "fast": 1.04, "faster": 1.5, "slow": 0.5}
    samples = make(
        *(
            {**row, "decode_seconds": second / speed, "prefill_seconds": 0.0}
            for name, speed in speeds.items()
            for row, second in zip(
                answers(np.ones(60), method=name, **SERVER),
                hard * rng.lognormal(0, 0.01, 60),
                strict=True,
            )
        )
    )
    rows = margin_rows(samples, "plain", 10, same_server=["again"])
    outcomes = {name: only(rows, name)["speed"] for name in speeds if name != "plain"}
    assert outcomes == {"again": FASTER, "fast": NOISE, "faster": FASTER, "slow": SLOWER}
    assert only(rows, "faster")["times_as_fast"] == pytest.approx(1.5, rel=0.01)
    assert only(rows, "again")["verdict"] == "same server"
    sentence = only(rows, "again")["sentence"]
    assert sentence.startswith("again: the same server again: 1.05")
    assert sentence.endswith("differences of this size are noise")
    assert "within noise, noise 0.9" in only(rows, "fast")["sentence"]
    alone = margin_rows(samples, "plain", 10, ["fast"])
    assert only(alone, "fast")["speed"] == FASTER
    assert set(alone["method"]) == {"plain", "fast"}


def test_turns_and_repeats_of_a_prompt_are_one(make):
    """Eight equal answers to each prompt are no eight prompts."""
    rng = np.random.default_rng(1)
    base, fast = 1.0 * (rng.random(60) < 0.9), 1.0 * (rng.random(60) < 0.85)
    samples = [
        {**row, "turn": turn, "repeat": repeat}
        for name, scores in (("plain", base), ("fast", fast))
        for row in answers(scores, method=name, **SERVER)
        for turn in (1, 2)
        for repeat in range(4)
    ]
    many = only(margin_rows(make(*samples), "plain", 2), "fast")
    once = judged(make, base, fast)
    assert many["n"] == once["n"] == 60 and many["answers"] == 480
    for name in ("quality_difference", "differ", "prompts_needed"):
        assert many[name] == pytest.approx(once[name])
    assert many["quality_difference_low"] == pytest.approx(once["quality_difference_low"], 0.05)


def test_heads_of_one_recipe_are_judged_by_their_mean(make):
    """Beside ``--against``, too: the three heads, then their mean."""
    rng = np.random.default_rng(0)
    base = 1.0 * (rng.random(200) < 0.6)
    samples = answers(base)
    for seed in range(3):
        scores = base * (rng.random(200) >= 0.05 * seed)
        samples += answers(scores, method="diversed", head=f"recipe/seed-{seed}/task")
    rows = margin_rows(make(*samples), "sd", 2)
    mean = rows[rows["label"] == "diversed recipe/task, mean of 3 seeds"].iloc[0]
    heads = rows[rows["label"].str.contains("seed-")]
    assert len(heads) == 3
    assert mean[QUALITY_LESS] == pytest.approx(heads[QUALITY_LESS].mean())
    assert mean[f"{QUALITY_LESS}_low"] < heads[QUALITY_LESS].mean() < mean[f"{QUALITY_LESS}_high"]
    assert mean["n"] == 200 and isinstance(mean["verdict"], str)
    assert (mean["seeds"], set(heads["seeds"])) == (3, {1})


def test_the_mean_of_heads_has_the_session_the_drafter_and_the_draft_length_of_its_heads(make):
    """The target was timed again, twice as fast, in the session of the heads."""

    def cell(method, seconds, **values):
        rows = answers(np.ones(20), method=method, decode_seconds=seconds, prefill_seconds=0.0)
        return [row | {"draft_length": 5} | values for row in rows]

    heads = [
        cell("diversed", 0.25, head=f"h/seed-{seed}", drafter=drafter, session=1)
        for seed, drafter in product(range(2), ("model", "greedy"))
    ]
    base = make(*cell("sd", 1.0), *cell("sd", 9.0, draft_length=3))
    again = make(*cell("sd", 0.5, session=1)).assign(timing="baseline")
    rows = margin_rows(pd.concat([base, again, make(*chain(*heads))]), "sd", 2)
    assert [*rows[rows["seeds"] == 2]["times_as_fast"]] == pytest.approx([2.0, 2.0])
    assert [*rows[rows["seeds"] == 1]["times_as_fast"]] == pytest.approx([2.0] * 4)
    apart = make(*heads[0], *(row | {"session": 0} for row in heads[2]))  # no common times
    mean = margin_rows(pd.concat([base, again, apart]), "sd", 2).iloc[-1]
    assert mean["seeds"] == 2 and np.isnan(mean["times_as_fast"])
    alone = margin_rows(pd.concat([base[base["draft_length"] == 3], apart]), "sd", 2)  # N = 5
    assert alone["quality_difference"].notna().iloc[-1]
    loaded = margin_rows(pd.concat([base.assign(batch_size=4), apart]), "sd", 2)
    assert loaded["quality_difference"].isna().all()  # of another load


def test_a_baseline_must_be_one_method(make, stored):
    weights = (0.2, 0.5)
    samples = make(
        *answers(np.ones(10)),
        *(r for w in weights for r in answers(np.ones(10), method="static", weight=w)),
    )
    alone = samples[samples["method"] == "sd"]
    refused = ((samples, "static"), (samples, "stattic w=0.5"), (alone, "sd"))
    stored(refusals(*(partial(margin_rows, rows, name, 2) for rows, name in refused)))
    rows = margin_rows(samples, "static w=0.5", 2)
    assert set(rows["label"]) == {"sd", "static w=0.2", "static w=0.5"}


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("margin", [0.01, 0.02, 0.1])
def test_prompts_before_a_run_are_those_that_many_prompts_ask_for(share, margin):
    differences = np.zeros(100_000)
    differences[: int(share * 100_000)] = 1.0
    differences[: int(share * 50_000)] = -1.0
    expected = prompts_needed(differences, margin)
    assert prompts_at_share(share, margin) == pytest.approx(expected, rel=0.01)
