"""Several heads of one recipe are one method with seeds."""

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import ABOVE, QUALITY_LESS, TIMES
from specbench.analysis.statistics.intervals import (
    RESAMPLES,
    bootstrap,
    estimate,
    mean_over_seeds,
    ratio,
)
from specbench.analysis.verdicts.compare import compare, verdict_rows, verdicts
from specbench.analysis.verdicts.margin import margin_rows


@pytest.fixture
def seeded(make):
    """Return a function that makes a run of sd, static weights and heads of some qualities."""

    def run(qualities, folder="heads/features", n=60):
        rng = np.random.default_rng(3)
        common = rng.normal(0, 0.1, n)

        def cell(method, quality, accepted, **values):
            scores = np.clip(quality + common + rng.normal(0, 0.02, n), 0, 1)
            return [
                {
                    **{"method": method, "sample_id": f"p{i:03}", "quality_metric": "rouge2"},
                    **{"quality": score, "accepted": accepted},
                    "decode_seconds": rng.uniform(0.6, 0.8),
                    **values,
                }
                for i, score in enumerate(scores)
            ]

        rows = cell("sd", 0.8, 10)
        for weight, quality in ((0.0, 0.4), (0.5, 0.6)):
            rows += cell("static", quality, 25 - 15 * weight, weight=weight)
        for seed, quality in enumerate(qualities):
            rows += cell("diversed", quality, 16, head=f"{folder}/seed-{seed}")
        return make(*rows)

    return run


def test_the_mean_over_seeds_is_that_of_the_single_heads_in_one_sentence(seeded):
    (sentence,) = verdicts(verdict_rows(seeded([0.7, 0.75, 0.8])))["sentence"]
    assert sentence.startswith("diversed features, mean of 3 seeds: ")
    rows = compare(seeded([0.7, 0.75, 0.8]), ["acceptance"]).rows
    for metric in (ABOVE, QUALITY_LESS, TIMES):
        of_metric = rows[rows["metric"] == metric]
        single, mean = (of_metric[of_metric["seeds"] == count] for count in (1, 3))
        assert len(single) == 3
        assert mean["value"].item() == pytest.approx(single["value"].mean())


def test_a_loss_on_few_prompts_is_as_open_for_the_mean_as_for_its_heads(seeded):
    """A third of the difference on one prompt of 60 cannot tell what such prompts cost."""
    samples = seeded([0.8, 0.8, 0.8])
    scores = samples.groupby("sample_id")["quality"].transform("first").round(2)
    lost = samples["method"].eq("diversed") & samples["sample_id"].eq("p007")
    samples["quality"] = scores - 0.3 * lost
    for metric, at in ((QUALITY_LESS, ["acceptance"]), (ABOVE, ["acceptance"])):
        rows = compare(samples, at).rows.query("metric == @metric")
        single, mean = (rows[rows["seeds"] == count].iloc[0] for count in (1, 3))
        assert mean["ci_low"] <= single["ci_low"] + 0.001 and mean["ci_low"] < -0.05, metric
        assert mean["ci_high"] >= single["ci_high"] - 0.001, metric
    named = margin_rows(samples, "sd", 2).query("seeds == 3").iloc[0]
    assert named[f"{QUALITY_LESS}_low"] < -0.05 and named[f"{QUALITY_LESS}_high"] > 0.05


def test_heads_added_to_a_run_join_their_recipe_without_times(seeded):
    """Quality and acceptance are compared across sessions, and times within one."""
    samples = seeded([0.7, 0.75, 0.8])
    at_once = compare(samples, ["acceptance", "time"]).rows
    is_added = samples["head"].eq("heads/features/seed-2")
    strict = samples[samples["method"] == "sd"].assign(session=1, timing="baseline")
    added = pd.concat([samples.assign(session=is_added.astype(int)), strict])
    later = compare(added, ["acceptance", "time"])
    for metric in (ABOVE, QUALITY_LESS):
        before, after = (
            rows[(rows["metric"] == metric) & (rows["seeds"] == 3) & (rows["at"] != "time")]
            for rows in (at_once, later.rows)
        )
        assert after["value"].item() == pytest.approx(before["value"].item())
        assert after["ci_low"].item() == pytest.approx(before["ci_low"].item())
    of_time = (later.rows["metric"] == TIMES) | (later.rows["at"] == "time")
    assert not (later.rows["seeds"][of_time] == 3).any()
    assert ((at_once["metric"] == TIMES) & (at_once["seeds"] == 3)).any()


def test_heads_that_differ_widen_the_interval(seeded):
    def width(qualities):
        rows = compare(seeded(qualities), ["acceptance"]).rows
        mean = rows[(rows["metric"] == ABOVE) & (rows["seeds"] == 3)]
        return (mean["ci_high"] - mean["ci_low"]).item()

    assert width([0.65, 0.75, 0.85]) > 10 * width([0.75, 0.75, 0.75])


@pytest.mark.parametrize("folder", ["heads/features", "heads"])
def test_a_single_seed_is_an_ordinary_method(seeded, folder):
    assert compare(seeded([0.75], folder), ["acceptance"]).rows["seeds"].isna().all()


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_draft_length_that_is_added_leaves_heads_their_verdicts(seeded, seeds):
    samples = seeded([0.7, 0.75, 0.8][:seeds])
    added = samples.assign(draft_length=samples["draft_length"] + 2, session=1)
    both = verdicts(verdict_rows(pd.concat([samples, added], ignore_index=True)))
    assert [*both["label"]] == [*verdicts(verdict_rows(samples))["label"]] * 2


def test_heads_of_two_recipes_are_two_methods(seeded):
    first, second = seeded([0.7, 0.8]), seeded([0.5, 0.6], "heads/linear")
    samples = pd.concat([first, second[second["method"] == "diversed"]], ignore_index=True)
    labels = verdicts(verdict_rows(samples))["label"]
    assert list(labels) == [f"diversed {name}, mean of 2 seeds" for name in ("features", "linear")]


@pytest.mark.parametrize(("of_seeds", "of_prompts"), [(0.0, 1.0), (0.3, 1.0), (0.3, 0.0)])
def test_the_interval_covers_the_true_mean(of_seeds, of_prompts):
    rng, prompts, seeds, trials = np.random.default_rng(0), 40, 4, 120
    covered = 0
    for _ in range(trials):
        effects = rng.normal(0, of_seeds, seeds) + rng.normal(0, of_prompts, (prompts, 1))
        scores = effects + rng.normal(0, 1, (prompts, seeds))
        values = ratio(bootstrap(np.stack([scores, np.ones_like(scores)], axis=-1)))
        interval = mean_over_seeds(values, prompts)
        covered += interval.low <= 0 <= interval.high
    # 95 % of 120 are 114; fewer than 105 happen once in 10,000 times.
    assert covered >= 105


def test_seeds_that_agree_by_chance_do_not_narrow_the_interval_and_few_prompts_have_none():
    scores = np.random.default_rng(0).normal(size=(40, 3))
    scores -= scores.mean(axis=0)  # all three means are 0
    values = ratio(bootstrap(np.stack([scores, np.ones_like(scores)], axis=-1)))
    interval, alone = mean_over_seeds(values, 40), estimate(values.mean(axis=1), 40)
    assert interval.high - interval.low > 0.9 * (alone.high - alone.low)
    assert np.isnan(mean_over_seeds(np.ones((1 + RESAMPLES, 3)), 9).low)
