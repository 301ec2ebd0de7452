from functools import partial

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import ACCEPTANCE_LESS, QUALITY_LESS, TIMES
from specbench.analysis.statistics.front import front_of, gap_between
from specbench.analysis.statistics.points import settings_of
from specbench.analysis.tables.verdict_tables import between_tables, verdict_tables
from specbench.analysis.verdicts.compare import compare, verdicts
from specbench.analysis.verdicts.contrasts import ALONE, COIN, COMPARISON, CONTROL, FRONT, OWN
from specbench.analysis.verdicts.two_runs import EQUAL, between_runs
from specbench.analysis.verdicts.words import MISSING

from ..told import refusals
from .test_summary import row as figure

# Seconds per sample by method and draft length; static at w = 0 takes half of sd's time.
SECONDS = {
    **{("sd", 3): 0.8, ("sd", 5): 1.0, ("diversed", 3): 0.6, ("diversed", 5): 0.5},
    **{("static", 3): 0.4, ("static", 5): 0.5, ("autoregressive", 0): 1.6},
}
QUALITY = {"sd": 0.8, "diversed": 0.7, "static": 0.2, "autoregressive": 0.8}
ACCEPTED = {"sd": 10, "diversed": 20, "static": 25, "autoregressive": None}
WEIGHT = {"static": 0.0}


@pytest.fixture
def frame(make):
    """All prompts are equal, so all true values are known and all intervals have no width."""
    return make(
        *(
            {
                **{"method": method, "weight": WEIGHT.get(method), "draft_length": length},
                **{"sample_id": f"p{i:02}", "quality": QUALITY[method]},
                **{"accepted": ACCEPTED[method], "proposed": 25 if length else 0},
                **{"prefill_seconds": 0.1 * seconds, "decode_seconds": 0.9 * seconds},
            }
            for (method, length), seconds in SECONDS.items()
            for i in range(10)
        )
    )


def rows(frame, at, **only):
    comparison = compare(frame, [at]).rows
    comparison = comparison[comparison["at"].eq(at) | (at == "quality")]
    for name, value in only.items():
        comparison = comparison[comparison[name] == value]
    return comparison


def above(frame, at, **only):
    return rows(frame, at, metric="quality_above", **only)


def times(frame, **only):
    speed_ups = rows(frame, "quality", metric="times_as_fast", **only)
    return speed_ups[speed_ups["against"] != ALONE]


def values(comparison):
    return comparison[["value", "ci_low", "ci_high"]].to_numpy().T


@pytest.mark.parametrize("at", ["acceptance", "time"])
def test_at_equal_gain_it_is_the_gap(samples, at):
    settings = settings_of(samples[samples["task"] == "mini-code"])
    (lossy,) = (setting for setting in settings if setting.method == "lossy")
    gap = gap_between([lossy], front_of(settings), at)
    for metric, lead, level in (
        ("quality_above", gap.above, gap.front),
        ("quality_above_measured", gap.above_measured, gap.front_measured),
    ):
        row = rows(samples, at, task="mini-code", method="lossy", metric=metric).iloc[0]
        assert tuple(row[["value", "ci_low", "ci_high", "n"]]) == lead[:4]
        assert (row["reference"], row["acceptance"]) == (level, gap.reached.acceptance[0, 0])
        assert row["between"] == " to ".join(gap.between)


def test_at_equal_acceptance_the_front_has_the_methods_draft_length_and_at_equal_time_all(frame):
    levels = above(frame, "time").set_index("draft_length")["reference"]
    # The front runs from (0.4 s, 0.2) to (0.8 s, 0.8), both of N = 3.
    assert levels[5] == pytest.approx(0.2 + 0.6 * 0.1 / 0.4)
    assert levels[3] == pytest.approx(0.2 + 0.6 * 0.2 / 0.4)
    frame.loc[(frame["method"] == "static") & (frame["draft_length"] == 3), "quality"] = 0.5
    # diversed accepts 0.8; the fronts run from (0.4, 0.8) to (1, 0.5) and to (1, 0.2).
    levels = above(frame, "acceptance").set_index("draft_length")["reference"]
    assert levels[3] == pytest.approx(0.8 - 0.3 * 2 / 3)
    assert levels[5] == pytest.approx(0.8 - 0.6 * 2 / 3)


def test_at_equal_quality_by_hand(frame):
    speed_ups = times(frame, draft_length=5, points=1).set_index("against")
    assert list(speed_ups.index) == ["sd", "sd at chosen N", FRONT]
    # The front reaches a quality of 0.7 in 0.4 + 0.4 * 5 / 6 seconds.
    expected = pytest.approx([2.0, 1.6, 0.4 / 0.5 + 0.4 * 5 / 6 / 0.5])
    for edge in values(speed_ups):
        assert edge == expected
    assert list(speed_ups["at"]) == [OWN, OWN, "quality"]
    assert list(speed_ups["against_draft_length"])[:2] == [5, 3]
    assert list(speed_ups["against_quality"]) == pytest.approx([0.8, 0.8, 0.7])
    speed_ups = times(frame, points=2).set_index("against")  # one row, at the chosen draft length
    assert list(speed_ups.index) == ["sd at chosen N", FRONT]
    assert set(speed_ups["draft_length"]) == {5}
    assert speed_ups.loc["sd at chosen N", "value"] == pytest.approx(1.6)


def test_without_comparable_times_there_is_no_front_at_equal_quality(frame):
    """A method was added in a session of its own, in which no block of two texts is recorded."""
    frame = pd.concat([frame, frame.assign(sample_id=frame["sample_id"] + "b")], ignore_index=True)
    frame = frame.assign(batch_size=2, block=frame.groupby(["method", "draft_length"]).cumcount())
    frame["block"] //= 2
    added = frame[frame["method"] == "diversed"].assign(method="lossy", lenience=0.5, session=1)
    both = pd.concat([frame, added.assign(block=np.nan)])
    rows = compare(both, ["quality"]).rows.query("at == 'quality'")
    assert set(rows["method"]) == {"diversed"}


def test_differences_from_sd(frame):
    frame.loc[frame["method"] == "diversed", "output_tokens"] = 30
    differences = compare(frame, ["time"]).rows.query("against == 'sd' and draft_length == 5")
    differences = differences.drop_duplicates("metric").set_index("metric")["value"]
    expected = {
        "quality_difference": -0.1,
        "acceptance_difference": 0.8 - 0.4,
        "times_as_fast": 2.0,  # per sample, whatever its length
        "times_tokens_per_second": 3.0,  # 1.5 times the tokens in half the time
        **{"length_ratio": 1.5, "completed_quality_difference": -0.1},
        **{"length_limit_difference": 0.0, "repetition_difference": 0.0},
    }
    assert differences.to_dict() == pytest.approx(expected)


def test_a_method_that_relaxes_nothing_has_no_distance(frame):
    """It drafts less, so it accepts a larger fraction of its drafts, at the quality of ``sd``."""
    adaptive = frame[frame["method"] == "sd"].assign(method="sd-adaptive", cost=0.1, accepted=20)
    strict = frame[frame["method"] == "sd"].assign(method="lossy", lenience=1.0)
    comparison = compare(pd.concat([frame, adaptive, strict])).rows
    exact = comparison[comparison["method"].isin(["sd-adaptive", "lossy"])]
    assert set(exact["at"]) == {OWN}
    assert FRONT not in set(exact["against"])
    loose = frame[frame["method"] == "sd"].assign(method="lossy", lenience=0.5)
    comparison = compare(pd.concat([frame, loose])).rows
    assert FRONT in set(comparison.loc[comparison["method"] == "lossy", "against"])


@pytest.mark.parametrize(
    "parameters",
    [
        {"method": "sharpened", "target_temperature": 0.5, "target_min_p": 0.0},
        {"method": "cooled", "settings": "both_temperature=0.5 both_min_p=0 cooled_weight=1"},
    ],
)
def test_a_sharpened_target_is_a_second_front(frame, parameters):
    """The gain of a lower temperature is not a gain of the rule."""
    strict = frame[frame["method"] == "sd"].assign(quality=0.9, accepted=15)
    control, typical = strict.assign(**parameters), strict.assign(method="typical")
    both = pd.concat([frame, control, typical])
    gaps = above(both, "acceptance", method="typical", draft_length=5).set_index("against")
    assert gaps["value"].to_dict() == pytest.approx({FRONT: 0.9 - 0.6, CONTROL: 0.0})
    assert not any("a lower temperature" in note for note in compare(both).notes)
    assert any("a lower temperature" in note for note in compare(frame).notes)


def test_share_of_the_gain_from_the_draft_length_alone(frame):
    shares = rows(frame, "quality", metric="share_of_gain").set_index("draft_length")
    # At N = 5, sd saves 0.2 s by choosing N = 3, diversed 0.5 s. At N = 3, the chosen one, sd
    # saves nothing by the choice.
    assert list(shares.index) == [5]
    assert shares.loc[5, ["value", "ci_low", "ci_high"]].to_list() == pytest.approx([0.4] * 3)
    # Without a significant gain there is no share.
    slow = (frame["method"] == "diversed") & (frame["draft_length"] == 5)
    noise = np.random.default_rng(0).normal(1.0, 0.05, size=10)
    frame.loc[slow, ["prefill_seconds", "decode_seconds"]] = np.outer(noise, [0.1, 0.9])
    assert rows(frame, "quality", draft_length=5, metric="share_of_gain").empty
    assert len(times(frame, draft_length=5, points=1)) == 3


def test_each_drafter_has_its_own_sd_and_front(frame):
    frame = frame[frame["method"] != "autoregressive"]  # is pooled with both
    other = frame[frame["draft_length"] > 0].assign(drafter="prompt-lookup")
    other["quality"] = other["quality"] - 0.1
    other["decode_seconds"] = 2 * other["decode_seconds"]
    both = pd.concat([frame, other])
    assert above(both, "acceptance", drafter="model")["value"].tolist() == (
        above(frame, "acceptance")["value"].tolist()
    )
    copied = above(both, "acceptance", drafter="prompt-lookup")
    assert copied["reference"].to_numpy() == pytest.approx(
        above(frame, "acceptance")["reference"].to_numpy() - 0.1
    )
    mixed = above(both.assign(drafter="model"), "acceptance")["reference"]
    assert mixed.tolist() != copied["reference"].tolist()
    strict = times(both, method="sd", draft_length=5, points=1, against="sd")
    assert strict["label"].tolist() == ["sd prompt-lookup"]
    assert strict["value"].item() == pytest.approx(1 / 1.9)


def test_runs_are_not_mixed_and_missing_comparisons_are_named(frame, stored):
    again = frame.assign(run_id="again", decode_seconds=2 * frame["decode_seconds"])
    speed_ups = times(pd.concat([frame, again]), points=1, against="sd")
    pairs = speed_ups.groupby("run_id")["value"].apply(list)
    assert pairs["again"][0] == pytest.approx((0.1 + 1.8) * 0.8 / ((0.1 + 1.8) * 0.6))
    assert pairs["run"] == pytest.approx(pairs["again"])
    comparison = compare(frame[~frame["method"].isin(["static", "autoregressive"])])
    assert set(comparison.rows["at"]) == {OWN}
    assert FRONT not in set(comparison.rows["against"])
    refused = (("diversed", "quality"), ("sd", "time"))
    calls = (partial(compare, frame[frame["method"] == name], [at]) for name, at in refused)
    stored(*comparison.notes, refusals(*calls))


def test_every_method_and_sd_is_compared_with_no_speculation(frame):
    comparison = compare(frame, ["acceptance"]).rows.query("against == @ALONE and points == 1")
    times = comparison.query("metric == 'times_as_fast'").set_index(["method", "draft_length"])
    for (method, length), seconds in SECONDS.items():
        if method in ("sd", "diversed"):
            expected = pytest.approx([SECONDS["autoregressive", 0] / seconds] * 3)
            assert times.loc[(method, length), ["value", "ci_low", "ci_high"]].to_list() == expected
    assert "static" not in set(comparison["method"])
    # In another session it was not timed.
    later = frame["method"] == "diversed"
    apart = compare(frame.assign(session=later.astype(int)), ["acceptance"]).rows
    assert set(apart.loc[apart["against"] == ALONE, "method"]) == {"sd"}


def test_what_a_method_lacks_is_counted_and_the_rest_is_compared(frame):
    lost = (frame["method"] == "diversed") & frame["sample_id"].isin(["p01", "p02", "p03"])
    comparison = compare(frame[~lost], ["acceptance"]).rows
    assert set(comparison.loc[comparison["method"] == "diversed", "missing"]) == {3}
    assert set(comparison.loc[comparison["method"] == "sd", "missing"]) == {0}
    scored = frame["quality"].mask(lost)  # decoded, and not scored
    comparison = compare(frame.assign(quality=scored), ["acceptance"]).rows
    assert set(comparison.loc[comparison["method"] == "diversed", "missing"]) == {3}
    unscored = frame["quality"].mask(frame["method"] == "diversed")
    comparison = compare(frame.assign(quality=unscored), ["acceptance"]).rows
    diversed = comparison[(comparison["method"] == "diversed") & (comparison["draft_length"] == 5)]
    assert set(diversed["metric"]) >= {"times_as_fast", "acceptance_difference"}
    assert "quality_difference" not in set(diversed["metric"])
    times = diversed[(diversed["against"] == "sd") & (diversed["metric"] == "times_as_fast")]
    assert times["value"].item() == pytest.approx(2.0)
    blank = compare(frame.assign(quality=np.nan), ["acceptance", "quality"])
    assert set(blank.rows["at"]) == {OWN}
    assert "quality_difference" not in set(blank.rows["metric"])
    scored = compare(frame).rows
    for metric in ("times_as_fast", "acceptance_difference"):
        blank_rows, other = (
            rows[(rows["metric"] == metric) & (rows["at"] == OWN)] for rows in (blank.rows, scored)
        )
        assert list(blank_rows["value"]) == list(other["value"])


def test_static_weights_are_placed_beside_a_coin_and_a_short_front_gives_no_verdict(frame, stored):
    middle = frame[frame["method"] == "static"].assign(weight=0.5, accepted=15, quality=0.3)
    both = pd.concat([frame, middle])
    assert "between 0 and 1 by 30.0 points" in "".join(verdicts(compare(both).rows)["sentence"])
    beside_coin = compare(both, ["acceptance"]).rows.query(f"against == {COIN!r}")
    assert list(beside_coin["label"]) == ["static w=0.5"] * 2
    # The coin runs from (0.4, 0.8) to (1, 0.2).
    assert beside_coin["value"].to_numpy() == pytest.approx(0.3 - 0.6)
    assert not any("measure more weights" in n for n in compare(both).notes)
    # Of w = 0.5 alone: unmeasured weights may accept more at any quality.
    short = frame.assign(weight=frame["weight"] + 0.5)
    short.loc[short["method"] == "static", "accepted"] = 15
    comparison = compare(short, ["acceptance"])
    [judged] = verdicts(comparison.rows).query("method == 'diversed'").to_dict("records")
    assert judged["front"] == MISSING
    assert "no weight: add w = 0" in str(*(t.rows for t in verdict_tables(comparison.rows)))
    stored(*comparison.notes, judged["sentence"])


@pytest.fixture
def two(make) -> pd.DataFrame:
    """B accepts five more of 25 drafts and is twice as fast; it lacks a prompt and has another."""
    rows = [
        {
            **{"run_id": run, "sample_id": f"p{number:02}"},
            "quality": 0.01 * number + (0.1 if run == "B" else 0.0),
            **{"accepted": 10 + number % 3 + (5 if run == "B" else 0), "prefill_seconds": 0.0},
            "decode_seconds": 0.5 if run == "B" else 1.0,
        }
        for run, numbers in (("A", range(20)), ("B", reversed(range(1, 21))))
        for number in numbers
    ]
    return make(*rows)


def test_samples_are_paired_by_name(two):
    rows = between_runs(two, times=True)
    assert list(rows) == list(COMPARISON)
    assert set(rows["n"]) == {19}  # prompts that both have
    assert set(rows["run_id"]) == {"B"} and set(rows["against"]) == {"A"}
    for metric, value in ((QUALITY_LESS, 0.1), (ACCEPTANCE_LESS, 0.2), (TIMES, 2.0)):
        ends = figure(rows, metric)[["value", "ci_low", "ci_high"]].astype(float)
        np.testing.assert_allclose(ends, value)  # no width, although prompts differ widely
    assert figure(rows, QUALITY_LESS)["quality"] == pytest.approx(0.2)
    assert figure(rows, QUALITY_LESS)["reference"] == pytest.approx(0.1)
    assert figure(rows, EQUAL)["value"] == 0
    (table,) = between_tables(rows)
    assert [str(cell) for cell in table.rows[0][2:5]] == ["10.0", "20.0", "+10.0 [+10.0, +10.0]"]


def test_times_need_a_request_and_different_metrics_are_not_subtracted(two):
    same = two[two["run_id"] == "A"]
    changed = same.assign(run_id="B").reset_index(drop=True)
    changed.loc[:4, "accepted"] += 1
    rows = between_runs(pd.concat([same, changed]), times=False)
    assert TIMES not in set(rows["metric"])
    assert figure(rows, EQUAL)["value"] == 0.75
    other = two.assign(quality_metric=two["quality_metric"].where(two["run_id"] == "A", "rouge1"))
    for samples, compared in ((two, True), (other, False)):
        assert (QUALITY_LESS in set(between_runs(samples, times=False)["metric"])) is compared
    same = two[two["run_id"] == "A"]
    changed = same.assign(run_id="B", quality_metric="rouge1", quality=0.5)
    rows = between_runs(pd.concat([same, changed]), times=False)
    assert figure(rows, EQUAL)["value"] == 1  # of what can be compared


@pytest.mark.parametrize(
    "change", [{"draft_length": 3}, {"temperature": 0.5}, {"repeat": 1}, {"task": "other"}]
)
def test_other_cells_and_repeats_are_not_paired(two, change):
    second = two["run_id"] == "B"
    assert between_runs(pd.concat([two[~second], two[second].assign(**change)]), times=True).empty
