import numpy as np
import pytest

from specbench.analysis.intervals import RESAMPLES, estimate, mean_interval, paired_ratio_interval
from specbench.analysis.points import shared_points
from specbench.analysis.summary import summarise, wide
from specbench.errors import UsageError


def settings(samples, task, *methods):
    rows = samples[samples["task"] == task]
    return [rows[rows["method"] == method] for method in methods]


def test_points_reach_what_the_summary_says(samples):
    cells = wide(summarise(samples)).set_index(["task", "method"])
    points = settings(samples, "mini-code", "sd", "diversed", "autoregressive")
    reached = shared_points(points).reached()
    assert (reached.n, reached.quality.shape) == (40, (1 + RESAMPLES, 3))
    for number, method in enumerate(("sd", "diversed", "autoregressive")):
        cell = cells.loc["mini-code", method]
        assert reached.quality[0, number] == pytest.approx(cell["quality"])
        for name, values in (
            ("draft_acceptance_rate", reached.acceptance),
            ("seconds_per_sample", reached.seconds),
            ("tokens_per_second", reached.tokens_per_second),
            ("speedup", reached.gains("speedup").value),
        ):
            found = estimate(values[:, number], 40)[:3]
            expected = (cell[name], cell[f"{name}_low"], cell[f"{name}_high"])
            assert found == pytest.approx(expected, nan_ok=True), (method, name)


def test_points_are_resampled_together(samples):
    sd, diversed = settings(samples, "mini-math", "sd", "diversed")
    seconds = shared_points([sd, diversed]).reached().seconds
    terms = [
        np.column_stack([one["prefill_seconds"] + one["decode_seconds"], np.ones(len(one))])
        for one in (sd, diversed)
    ]
    expected = paired_ratio_interval(terms[0], sd["sample_id"], terms[1], diversed["sample_id"])
    assert estimate(seconds[:, 0] / seconds[:, 1], 40) == pytest.approx(expected)


def test_points_of_one_law_share_their_quality(make):
    rows = make(
        *(
            {"draft_length": n, "sample_id": f"p{i}", "quality": quality}
            for n, quality in ((3, 0.9), (5, 0.7), (7, 0.1))
            for i in range(4)
        )
    )
    points = [group for _, group in rows.groupby("draft_length")]
    reached = shared_points(points, one_law=[0, 1]).reached()
    assert reached.quality[0] == pytest.approx([0.8, 0.8, 0.1])


def test_points_without_a_shared_prompt_are_refused(make):
    rows = [make({"sample_id": "a"}), make({"sample_id": "b"})]
    with pytest.raises(UsageError, match="no prompt has a quality in every setting"):
        shared_points(rows)


def timed(make, seconds):
    """A point for each column of [prompts, points] seconds."""
    return [
        make(
            *(
                {"sample_id": f"p{i:03}", "prefill_seconds": 0.0, "decode_seconds": float(one)}
                for i, one in enumerate(column)
            )
        )
        for column in seconds.T
    ]


def test_the_fastest_is_chosen_on_one_half_and_measured_on_the_other(make):
    # By the first half (even prompts) the first point is faster, by the other half the second.
    seconds = np.array([[1.0, 3.0], [7.0, 2.0], [1.0, 3.0], [7.0, 2.0]])
    reached, fastest = shared_points(timed(make, seconds)).reached_with_fastest([0, 1])
    assert fastest == [1]  # 2.5 against 4.0 on all prompts
    assert reached.seconds[0] == pytest.approx([4.0, 2.5, (7.0 + 3.0) / 2])


def test_a_point_that_is_always_fastest_is_itself(make):
    seconds = np.random.default_rng(0).uniform(1, 2, size=(20, 1)) * [3.0, 1.0, 2.0]
    points = shared_points(timed(make, seconds))
    reached, fastest = points.reached_with_fastest([0, 2], [0, 1])
    assert fastest == [2, 1]
    assert reached.seconds[:, 3:] == pytest.approx(reached.seconds[:, [2, 1]])


def test_the_fastest_of_equals_is_covered_and_by_the_naive_minimum_is_not(make):
    """Four points of one true speed, and a fifth that takes four fifths of their time."""
    rng = np.random.default_rng(1)
    template = shared_points(timed(make, np.ones((40, 5))))
    honest, naive = [], []
    for _ in range(150):
        length = rng.gamma(8, 1 / 8, size=(40, 1))
        seconds = length * [1, 1, 1, 1, 0.8] * (1 + 0.15 * rng.normal(size=(40, 5)))
        template.sums[:, :, -3] = seconds
        drawn = template.reached_with_fastest(range(4))[0].seconds
        for found, best in ((honest, drawn[:, 5]), (naive, drawn[:, :4].min(axis=1))):
            one = estimate(best / drawn[:, 4], 40)
            found.append(one.low <= 1.25 <= one.high)
    assert np.mean(honest) >= 0.93
    assert np.mean(naive) < 0.88


def test_quality_of_blank_samples_is_left_out(make):
    qualities = [None, *np.linspace(0.1, 1, 10)]
    rows = make(*({"sample_id": str(i), "quality": q} for i, q in enumerate(qualities)))
    reached = shared_points([rows]).reached()
    scored = rows[rows["quality"].notna()]
    assert reached.n == 10
    found = estimate(reached.quality[:, 0], 10)
    assert found == mean_interval(scored["quality"], scored["sample_id"])
