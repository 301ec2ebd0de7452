import numpy as np
import pytest

from specbench.errors import UsageError
from specbench.figures import weights

from .made import Made, from_summary

draw = from_summary(weights.draw)


def curves(axes):
    return {c.get_label(): c.lines[0].get_xydata() for c in axes.containers}


def test_one_curve_per_draft_length_in_each_panel(summary):
    axes = draw(summary(lengths=(3, 7, 15))).axes
    assert [one.get_title() for one in axes] == ["mini-math", "mini-news"]
    for one in axes:
        assert set(curves(one)) == {"N = 3", "N = 7", "N = 15"}
        assert one.get_xlabel() == "Weight on the target w"
    assert axes[0].get_ylabel() == "Accepted / drafted (%)"


def test_curve_by_hand_with_sd_and_static_at_one_as_one_point(summary):
    curve = curves(draw(summary()).axes[0])["N = 5"]
    np.testing.assert_allclose(curve, [[0, 100], [0.25, 90], [0.5, 80], [0.75, 70], [1, 60]])


def test_sd_closes_a_sweep_that_stops_short_of_one(summary):
    frame = summary()
    short = frame[~((frame["method"] == "static") & (frame["weight"] == 1))]
    curve = curves(draw(short).axes[0])["N = 5"]
    np.testing.assert_allclose(curve[-1], [1, 60])


def test_points_have_intervals(summary):
    (curve,) = draw(summary()).axes[0].containers
    (bars,) = curve.lines[2]
    assert [np.ptp(segment[:, 1]) for segment in bars.get_segments()] == pytest.approx([4] * 5)


def test_legend_comes_once_by_rising_length(summary):
    figure = draw(summary(lengths=(15, 3, 7)))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["N = 3", "N = 7", "N = 15"]


def test_longer_drafts_are_darker(summary):
    figure = draw(summary(lengths=(3, 7, 15)))
    shades = [sum(c.lines[0].get_color()[:3]) for c in figure.axes[0].containers]
    assert shades == sorted(shades, reverse=True)


def test_pairs_are_drawn_below_one_another(summary):
    titles = [axes.get_title() for axes in draw(summary(pairs=("a", "b"))).axes]
    assert titles == ["mini-math (a)", "mini-news (a)", "mini-math (b)", "mini-news (b)"]


def test_the_data_behind_it_is_what_is_drawn(summary):
    data = weights.draw(Made(summary=summary(lengths=(3, 5)))).data
    drawn = data[(data["task"] == "mini-news") & (data["draft_length"] == 5)]
    assert drawn["w"].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert drawn["draft_acceptance"].tolist() == pytest.approx([100, 90, 80, 70, 60])
    assert (drawn["draft_acceptance_high"] - drawn["draft_acceptance_low"]).round(9).eq(4).all()


def test_engines_are_drawn_below_one_another(summary):
    figure = draw(summary(settings=(("eager", 1), ("graph", 1)), tasks=("mini-math",)))
    assert [axes.get_title() for axes in figure.axes] == ["mini-math (eager)", "mini-math (graph)"]
    assert [len(curves(axes)["N = 5"]) for axes in figure.axes] == [5, 5]


def test_nothing_to_draw(summary):
    with pytest.raises(UsageError, match="no static ensemble"):
        draw(summary(methods=("autoregressive", "sd", "diversed")))
    with pytest.raises(UsageError, match="no static ensemble"):
        draw(summary().iloc[:0])


def test_mixed_temperatures_are_refused(summary):
    frame = summary()
    frame.loc[frame["weight"] == 0.5, "temperature"] = 0.1
    with pytest.raises(UsageError, match=r"several temperatures \(0.1, 1\)"):
        draw(frame)
