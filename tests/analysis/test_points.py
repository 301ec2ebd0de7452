import numpy as np
import pytest

from specbench.analysis.intervals import RESAMPLES, estimate, paired_interval, paired_ratio
from specbench.analysis.points import Setting, shared_points
from specbench.analysis.summary import cells_of, summarise


def settings(samples, task, *methods):
    rows = samples[samples["task"] == task]
    return [Setting(rows[rows["method"] == method]) for method in methods]


def test_points_equal_the_summary(samples):
    cells = cells_of(summarise(samples)).set_index(["task", "method"])
    points = settings(samples, "mini-code", "sd", "diversed", "autoregressive")
    reached = shared_points(points).estimates()
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
            found = estimate(values[:, number], 40, log=name == "speedup")[:3]
            expected = (cell[name], cell[f"{name}_low"], cell[f"{name}_high"])
            assert found == pytest.approx(expected, nan_ok=True), (method, name)


def test_points_are_resampled_together(samples):
    sd, diversed = settings(samples, "mini-math", "sd", "diversed")
    seconds = shared_points([sd, diversed]).estimates().seconds
    terms = [
        np.column_stack([one["prefill_seconds"] + one["decode_seconds"], np.ones(len(one))])
        for one in (sd.samples, diversed.samples)
    ]
    prompts = [one.samples["sample_id"] for one in (sd, diversed)]
    expected = paired_interval(terms[0], prompts[0], terms[1], prompts[1], paired_ratio)
    assert estimate(seconds[:, 0] / seconds[:, 1], 40) == pytest.approx(expected)


def timed(make, seconds):
    """One point per column of [prompts, points] seconds."""
    return [
        Setting(
            make(
                *(
                    {"sample_id": f"p{i:03}", "prefill_seconds": 0.0, "decode_seconds": float(one)}
                    for i, one in enumerate(column)
                )
            )
        )
        for column in seconds.T
    ]


def test_the_fastest_is_chosen_on_one_half_and_measured_on_the_other(make):
    # On the first half (even prompts) the first point is faster, on the other half the second.
    seconds = np.array([[1.0, 3.0], [7.0, 2.0], [1.0, 3.0], [7.0, 2.0]])
    reached, fastest = shared_points(timed(make, seconds)).estimates_with_fastest([0, 1])
    assert fastest == [(1, 2)]  # 2.5 against 4.0 on all prompts
    assert reached.seconds[0] == pytest.approx([4.0, 2.5, (7.0 + 3.0) / 2])


def test_the_fastest_of_equals_is_covered_unlike_the_naive_minimum(make):
    """Four points of equal true speed, and a fifth that takes 4/5 of their time."""
    rng = np.random.default_rng(1)
    template = shared_points(timed(make, np.ones((40, 5))))
    honest, naive = [], []
    for _ in range(150):
        length = rng.gamma(8, 1 / 8, size=(40, 1))
        seconds = length * [1, 1, 1, 1, 0.8] * (1 + 0.15 * rng.normal(size=(40, 5)))
        template.sums[:, :, -3] = seconds
        drawn = template.estimates_with_fastest(range(4))[0].seconds
        for found, best in ((honest, drawn[:, 5]), (naive, drawn[:, :4].min(axis=1))):
            one = estimate(best / drawn[:, 4], 40)
            found.append(one.low <= 1.25 <= one.high)
    assert np.mean(honest) >= 0.93
    assert np.mean(naive) < 0.91
