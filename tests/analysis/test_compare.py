import numpy as np
import pandas as pd
import pytest

from specbench.analysis.compare import ATS, COMPARISON, OWN, compare
from specbench.analysis.pareto import gap_above_front
from specbench.errors import UsageError

# Seconds per sample by method and draft length; a static sample at w = 0 takes half of sd's.
SECONDS = {
    ("sd", 3): 0.8,
    ("sd", 5): 1.0,
    ("diversed", 3): 0.6,
    ("diversed", 5): 0.5,
    ("static", 3): 0.4,
    ("static", 5): 0.5,
    ("autoregressive", 0): 1.6,
}
QUALITY = {"sd": 0.8, "diversed": 0.7, "static": 0.2, "autoregressive": 0.8}
ACCEPTED = {"sd": 10, "diversed": 20, "static": 25, "autoregressive": None}
WEIGHT = {"static": 0.0}


@pytest.fixture
def frame(make):
    """Every prompt alike, so that all truths are known and all intervals have no width."""
    return make(
        *(
            {
                "method": method,
                "weight": WEIGHT.get(method),
                "draft_length": length,
                "sample_id": f"p{i:02}",
                "quality": QUALITY[method],
                "accepted": ACCEPTED[method],
                "proposed": 25 if length else 0,
                "prefill_seconds": 0.1 * seconds,
                "decode_seconds": 0.9 * seconds,
            }
            for (method, length), seconds in SECONDS.items()
            for i in range(10)
        )
    )


def rows(frame, at, **only):
    found = compare(frame, [at]).rows
    for name, value in only.items():
        found = found[found[name] == value]
    return found


def values(found):
    return found[["value", "ci_low", "ci_high"]].to_numpy().T


def test_a_comparison_is_a_tidy_table(samples):
    found = compare(samples)
    assert tuple(found.rows.columns) == COMPARISON
    assert set(found.rows["at"]) == {*ATS, OWN}
    assert not found.missing
    assert found.rows["n"].eq(40).all()
    placed = found.rows[found.rows["at"] != "hypervolume"]
    assert set(placed["method"]) == {"lossy", "speccascade", "diversed"}


@pytest.mark.parametrize("at", ["acceptance", "time"])
def test_at_equal_gain_it_is_the_gap(samples, at):
    found = rows(samples, at, task="mini-code", method="lossy").iloc[0]
    gap = gap_above_front(samples, task="mini-code", method="lossy", gain=at)
    assert tuple(found[["value", "ci_low", "ci_high", "n"]]) == gap[:4]
    assert (found["reference"], found["acceptance"]) == (gap.front, gap.acceptance)


def test_at_equal_acceptance_the_front_has_the_methods_draft_length(frame):
    frame.loc[(frame["method"] == "static") & (frame["draft_length"] == 3), "quality"] = 0.5
    # diversed accepts 0.8; the fronts run from (0.4, 0.8) to (1, 0.5) and to (1, 0.2).
    found = rows(frame, "acceptance").set_index("draft_length")["reference"]
    assert found[3] == pytest.approx(0.8 - 0.3 * 2 / 3)
    assert found[5] == pytest.approx(0.8 - 0.6 * 2 / 3)


def test_at_equal_time_the_front_has_every_draft_length(frame):
    found = rows(frame, "time").set_index("draft_length")["reference"]
    # The front runs from (0.4 s, 0.2) to (0.8 s, 0.8), both of N = 3.
    assert found[5] == pytest.approx(0.2 + 0.6 * 0.1 / 0.4)
    assert found[3] == pytest.approx(0.2 + 0.6 * 0.2 / 0.4)


def test_at_equal_quality_by_hand(frame):
    found = rows(frame, "quality", draft_length=5, points=1)
    times = found[found["metric"] == "times_as_fast"].set_index("against")
    assert list(times.index) == ["static front", "sd", "sd at chosen N"]
    # The front reaches a quality of 0.7 in 0.4 + 0.4 * 5 / 6 seconds.
    expected = pytest.approx([0.4 / 0.5 + 0.4 * 5 / 6 / 0.5, 2.0, 1.6])
    for edge in values(times):
        assert edge == expected
    assert list(times["at"]) == ["quality", "own quality", "own quality"]
    assert list(times["against_draft_length"])[1:] == [5, 3]
    assert list(times["against_quality"]) == pytest.approx([0.7, 0.8, 0.8])


def test_share_of_the_gain_that_is_had_by_the_draft_length_alone(frame):
    found = rows(frame, "quality", metric="share_of_gain").set_index("draft_length")
    # At N = 5: sd saves 0.2 s by N = 3, diversed 0.5 s. At N = 3, which is the one chosen, sd has
    # nothing to save by the choice.
    assert list(found.index) == [5]
    assert found.loc[5, ["value", "ci_low", "ci_high"]].to_list() == pytest.approx([0.4] * 3)


def test_no_share_of_a_gain_that_is_not_certain(frame):
    slow = (frame["method"] == "diversed") & (frame["draft_length"] == 5)
    noise = np.random.default_rng(0).normal(1.0, 0.05, size=10)
    frame.loc[slow, ["prefill_seconds", "decode_seconds"]] = np.outer(noise, [0.1, 0.9])
    found = rows(frame, "quality", draft_length=5, points=1)
    assert list(found["metric"]) == ["times_as_fast"] * 3


def test_a_method_has_a_row_at_a_chosen_draft_length(frame):
    found = rows(frame, "quality", points=2).set_index("against")
    assert list(found.index) == ["static front", "sd at chosen N"]
    assert set(found["draft_length"]) == {5}
    assert found.loc["sd at chosen N", "value"] == pytest.approx(1.6)


def test_one_draft_length_has_no_best(samples):
    found = rows(samples, "quality", task="mini-math", method="diversed")
    assert list(found["against"]) == ["static front", "sd"]


def test_above_the_best_quality_of_the_front_the_best_counts(frame):
    frame.loc[frame["method"] == "diversed", "quality"] = 0.95
    found = rows(frame, "quality", draft_length=5, points=1, against="static front").iloc[0]
    assert (found["reference"], found["against_quality"]) == pytest.approx((0.8, 0.8))


def test_hypervolumes_by_hand(frame):
    found = rows(frame, "hypervolume", metric="quality_x_acceptance", draft_length=5)
    own = found[found["against"].isna()].set_index("method")["value"]
    static = 0.4 * 0.8 + 0.6 * 0.2
    assert own.to_dict() == pytest.approx({"sd": 0.32, "diversed": 0.56, "static": static})
    added = found[found["against"] == "static front"].iloc[0]
    assert added["value"] == pytest.approx(0.4 * (0.7 - 0.2))
    assert added["reference"] == pytest.approx(static)


def test_volume_in_speedup_joins_all_draft_lengths(frame):
    found = rows(frame, "hypervolume", metric="quality_x_speedup", method="static").iloc[0]
    # sd is 2 and 1.6 times as fast as autoregressive, static 4 and 3.2 times.
    assert found["value"] == pytest.approx((2 - 1) * 0.8 + (4 - 2) * 0.2)
    assert (found["points"], found["draft_length"]) == (4, pytest.approx(np.nan, nan_ok=True))


def test_speccascade_on_the_front_adds_nothing(frame):
    twin = frame[(frame["method"] == "sd")].assign(method="lossy", lenience=1.0)
    found = rows(pd.concat([frame, twin]), "hypervolume", method="lossy", against="static front")
    assert found["value"].to_list() == [0.0] * 3


def test_runs_are_not_mixed(frame):
    again = frame.assign(run_id="again", decode_seconds=2 * frame["decode_seconds"])
    found = rows(pd.concat([frame, again]), "quality", points=1, against="sd")
    pairs = found.groupby("run_id")["value"].apply(list)
    assert pairs["again"][0] == pytest.approx((0.1 + 1.8) * 0.8 / ((0.1 + 1.8) * 0.6))
    assert pairs["run"] == pytest.approx(pairs["again"])


def test_what_cannot_be_compared_is_named_and_the_rest_is_there(frame):
    found = compare(frame[~frame["method"].isin(["static", "autoregressive"])])
    assert len(found.missing) == 2
    assert "two static weights or more" in found.missing[0]
    assert "was not run with autoregressive" in found.missing[1]
    assert set(found.rows["at"]) == {OWN, "hypervolume"}
    assert "static front" not in set(found.rows["against"])


@pytest.mark.parametrize(
    ("change", "at", "complaint"),
    [
        (lambda f: f[f["method"] != "sd"], "quality", "was not run with sd"),
        (lambda f: f.assign(quality=np.nan), "quality", "no prompt has a quality"),
        (lambda f: f[f["method"] != "diversed"], "quality", "hold none of these methods"),
        (lambda f: f[f["method"] != "static"], "time", "two static weights or more"),
        (lambda f: f[f["method"] != "static"], "acceptance", "two static weights or more"),
    ],
)
def test_refusals(frame, change, at, complaint):
    with pytest.raises(UsageError, match=complaint):
        compare(change(frame), [at])
