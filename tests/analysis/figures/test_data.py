"""The data behind each figure, and the computations for it."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.figures import acceptance, heads, rounds
from specbench.analysis.results import Results

from .made import drawn_points, made, rounds_of, summary_of, titles, training_of


def test_acceptance_time_is_normalised_per_pair_task_and_engine():
    frame = summary_of(pairs=("mini", "llama"), settings=(("eager", 1), ("compile", 1)))
    slower = (frame["pair"] == "llama") & (frame["metric"] == "seconds_per_sample")
    frame.loc[slower, "value"] *= 1000
    drawing = acceptance.draw_time(Results.of(summary=frame))
    tasks = ("mini-math", "mini-news")
    assert titles(drawing) == [f"{t}\n({engine})" for engine in ("eager", "compile") for t in tasks]
    for axes in drawing.figure.axes:
        points = drawn_points(axes)
        assert (points[:, 0].min(), points[:, 0].max()) == pytest.approx((0, 1))
        # Both pairs have the same shape, so each point of one is at a point of the other.
        _, counts = np.unique(points.round(9), axis=0, return_counts=True)
        assert not (counts % 2).any()
        fits = [li.get_ydata() for li in axes.get_lines() if len(li.get_xdata()) == 101]
        assert len(fits) == 2
        np.testing.assert_allclose(fits[0], np.linspace(100, 60, 101), atol=1e-6)


def test_acceptance_time_has_a_row_per_point():
    data = acceptance.draw_time(made()).data
    assert len(data) == 2 * (4 + 5)  # without autoregressive
    sd = data[(data["method"] == "sd") & (data["task"] == "mini-math")].iloc[0]
    ends = ["draft_acceptance", "draft_acceptance_low", "draft_acceptance_high"]
    point = sd[["time", "seconds_per_sample", *ends]].tolist()
    assert point == pytest.approx([1, 0.11, 60, 58, 62])
    single = summary_of(methods=("sd",), tasks=("mini-math",))  # two runs have an axis each
    other = single.assign(run_id="other", value=2 * single["value"])
    drawn = acceptance.draw_time(Results.of(summary=pd.concat([single, other]))).data
    assert drawn["time"].tolist() == [0, 0]


def test_quadratic_is_recovered_exactly_and_its_band_covers_the_truth():
    x, at = np.linspace(0, 1, 8), np.linspace(0, 1, 5)
    for curve in acceptance.quadratic_band(x, 3 * x**2 - 2 * x + 1, at):
        np.testing.assert_allclose(curve, 3 * at**2 - 2 * at + 1)
    rng, x = np.random.default_rng(0), np.linspace(0, 1, 14)
    truth, at = 90 - 60 * x + 10 * x**2, np.array([0.5])
    bands = [acceptance.quadratic_band(x, truth + rng.normal(size=14), at) for _ in range(200)]
    covered = np.mean([low[0] <= 90 - 30 + 2.5 <= high[0] for _, low, high in bands])
    assert 0.88 < covered < 0.99


def test_weights_has_a_curve_per_draft_length_that_sd_closes():
    frame = summary_of(lengths=(3, 5), pairs=("a", "b"))
    short = frame[~((frame["method"] == "static") & (frame["weight"] == 1))]
    for table in (frame, short):  # sd and static at w = 1 are one point
        drawing = acceptance.draw_weights(Results.of(summary=table))
        assert titles(drawing) == [f"{t}\n({p})" for p in "ab" for t in ("mini-math", "mini-news")]
        data = drawing.data
        curve = data[(data["draft_length"] == 5) & (data["pair"] == "a")]
        curve = curve[curve["task"] == "mini-news"]
        assert curve["w"].tolist() == [0, 0.25, 0.5, 0.75, 1]
        assert curve["draft_acceptance"].tolist() == pytest.approx([100, 90, 80, 70, 60])
        width = curve["draft_acceptance_high"] - curve["draft_acceptance_low"]
        assert width.round(9).eq(4).all()
    alone = summary_of(tasks=("sd alone",), methods=("sd",))  # a point, and no curve
    assert len(titles(acceptance.draw_weights(Results.of(summary=pd.concat([frame, alone]))))) == 4


# Of five rounds, one accepts no draft, two accept one, two accept all three.
SD = [[0, 1], [1, 3, 3]]


def test_positions_are_drawn_as_in_their_table_with_few_settings_of_a_method():
    by_round = rounds_of({"diversed": 5 * SD, "static": 5 * SD}).rounds
    static = by_round["method"] == "static"
    by_round = pd.concat([by_round.assign(weight=np.where(static, w, np.nan)) for w in range(6)])
    results = Results.of(rounds=by_round.drop_duplicates().reset_index(drop=True))
    drawing = rounds.draw_positions(results)
    table = results.positions
    table = table[table["weight"].isna() | table["weight"].isin([0, 2, 3, 5])]
    assert drawing.data["accepted"].tolist() == pytest.approx((100 * table["value"]).tolist())
    conditional, marginal = drawing.figure.axes
    for axes, kind in ((conditional, "conditional"), (marginal, "marginal")):
        x, y = drawn_points(axes).T
        panel_rows = table[table["kind"] == kind]
        np.testing.assert_allclose(np.sort(y), np.sort(100 * panel_rows["value"]))
        assert sorted(x.round()) == sorted(panel_rows["position"])
    assert len({bars.lines[0].get_linestyle() for bars in conditional.containers}) == 4
    names = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert names == ["static w=0", "static w=2", "static w=3", "static w=5", "diversed"]


def texts(axes: Any) -> list[list[str]]:
    """The texts of a heat map, [heads, tasks]."""
    fields = np.full(axes.images[0].get_array().shape, "", dtype=object)
    for text in axes.texts:
        column, row = text.get_position()
        fields[row, column] = text.get_text()
    return fields.tolist()


def test_transfer_compares_quality_with_strict_verification():
    tasks = ("mini-math", "mini-news")
    frame = summary_of(tasks=tasks, heads=tasks)
    quality = frame["metric"] == "quality"
    news, head = frame["task"] == "mini-news", frame["head"]
    frame.loc[news & (head == "mini-math") & quality, "value"] = 0.9
    frame.loc[~news & (head == "mini-math") & quality, "value"] = 0.79999
    drawing = heads.draw_transfer(Results.of(summary=frame))
    left, right = drawing.figure.axes
    assert texts(left) == [["60", "60"], ["88", "88"], ["92", "92"]]
    assert texts(right) == [["80.0", "80.0"], ["+0.0", "+10.0"], ["−10.0", "−10.0"]]
    assert len(drawing.data) == 3 * 2 * 2
    frame.loc[news & quality, ["value", "ci_low", "ci_high", "unit"]] = np.nan
    left, right = heads.draw_transfer(Results.of(summary=frame)).figure.axes
    assert [row[1] for row in texts(left)] == ["60", "88", "92"]
    assert [row[1] for row in texts(right)] == ["", "", ""]


def test_training_has_a_row_per_head_and_step(tmp_path):
    short, long = training_of(tmp_path / "a", steps=3), training_of(tmp_path / "b")
    data = heads.draw_training([short, long]).data
    assert data["head"].value_counts().to_dict() == {"b": 40, "a": 3}
    assert data["reward"].tolist()[:3] == pytest.approx([51, 52, 53])
    assert data["strict_acceptance"].eq(70).all()
    checked = data[data["head"] == "b"].dropna(subset="held_out_distance")
    assert checked["step"].tolist() == list(range(5, 41, 5))
    assert checked["held_out_distance"].tolist() == pytest.approx(0.2 * checked["step"])
    middle = data[data["head"] == "b"].iloc[10:30]  # a running median lags by half a step
    np.testing.assert_allclose(middle["weight_smooth"], 0.9 - 0.01 * middle["step"] + 0.005)
    alone = heads.draw_training([training_of(tmp_path / "mini" / "mini-math", steps=1)]).data
    assert alone["head"].tolist() == ["mini/mini-math"]
