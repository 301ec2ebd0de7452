import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from specbench.errors import UsageError
from specbench.figures import acceptance_time, style
from specbench.figures.acceptance_time import quadratic_band
from specbench.figures.style import PAIR_COLOURS

from .made import Made, from_summary

draw = from_summary(acceptance_time.draw)


def drawn_points(axes):
    return np.vstack([container.lines[0].get_xydata() for container in axes.containers])


def test_one_panel_per_task_with_units(summary):
    axes = draw(summary()).axes
    assert [one.get_title() for one in axes] == ["mini-math", "mini-news"]
    assert {one.get_xlabel() for one in axes} == {"Total time (normalised)"}
    assert axes[0].get_ylabel() == "Accepted / drafted (%)"


def test_time_is_normalised_per_pair_and_task(summary):
    frame = summary(pairs=("mini", "llama"))
    slower = (frame["pair"] == "llama") & (frame["metric"] == "seconds_per_sample")
    frame.loc[slower, "value"] *= 1000
    for axes in draw(frame).axes:
        points = drawn_points(axes)
        assert (points[:, 0].min(), points[:, 0].max()) == pytest.approx((0, 1))
        # Both pairs have the same shape, so every point of one lies on one of the other.
        _, counts = np.unique(points.round(9), axis=0, return_counts=True)
        assert not (counts % 2).any()


def test_points_have_the_acceptance_of_the_summary(summary):
    (sd,) = [c for c in draw(summary()).axes[0].containers if c.get_label() == "sd"]
    np.testing.assert_allclose(sd.lines[0].get_xydata(), [[1, 60]])


def test_autoregressive_is_not_drawn(summary):
    labels = {container.get_label() for container in draw(summary()).axes[0].containers}
    assert labels == {"sd", "lossy", "speccascade", "static", "diversed"}


def test_pairs_have_colours_and_the_star_stays_red(summary):
    figure = draw(summary(pairs=("mini", "llama")))
    axes = figure.axes[0]
    colours = {"sd": set(), "diversed": set()}
    for container in axes.containers:
        if container.get_label() in colours:
            face = container.lines[0].get_markerfacecolor()
            colours[container.get_label()].add(to_hex(face))
    assert colours["sd"] == {colour.lower() for colour in PAIR_COLOURS[:2]}
    assert colours["diversed"] == {"#cc3311"}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:3] == ["mini", "llama", "SD"]
    lines = [to_hex(line.get_color()) for line in legend.get_lines()]
    assert lines[:2] == [colour.lower() for colour in PAIR_COLOURS[:2]]
    assert lines[2] == style.GREY.lower()


def test_a_pair_alone_leaves_methods_their_colours(summary):
    figure = draw(summary())
    colours = {c.get_label(): to_hex(c.lines[0].get_color()) for c in figure.axes[0].containers}
    assert colours["sd"] == "#0077bb"
    assert len(set(colours.values())) == 5
    assert len(figure.legends[0].get_texts()) == 5


def test_engines_have_rows_of_panels_and_a_scale_of_time_each(summary):
    frame = summary(settings=(("eager", 1), ("compile", 1)))
    faster = (frame["engine"] == "compile") & (frame["metric"] == "seconds_per_sample")
    frame.loc[faster, "value"] /= 4
    axes = draw(frame).axes
    assert [one.get_title() for one in axes] == [
        f"{task} ({engine})"
        for engine in ("eager", "compile")
        for task in ("mini-math", "mini-news")
    ]
    assert [one.get_ylabel() for one in axes] == ["Accepted / drafted (%)", ""] * 2
    eager, compiled = (drawn_points(one)[:, 0] for one in axes[::2])
    for times in (eager, compiled):
        assert (times.min(), times.max()) == pytest.approx((0, 1))
    (fit,) = [line for line in axes[2].get_lines() if len(line.get_xdata()) == 101]
    assert fit.get_xdata().max() == pytest.approx(compiled.max())


def test_batch_sizes_are_told_apart_too(summary):
    axes = draw(summary(settings=(("graph", 1), ("graph", 8)), tasks=("mini-math",))).axes
    assert [one.get_title() for one in axes] == ["mini-math (batch 1)", "mini-math (batch 8)"]


def test_the_data_behind_it_has_a_row_per_point(summary):
    data = acceptance_time.draw(Made(summary=summary())).data
    assert len(data) == 2 * (4 + 5)  # without autoregressive
    sd = data[(data["method"] == "sd") & (data["task"] == "mini-math")].iloc[0]
    ends = ["draft_acceptance", "draft_acceptance_low", "draft_acceptance_high"]
    assert sd[["time", "seconds_per_sample", *ends]].tolist() == pytest.approx(
        [1, 0.11, 60, 58, 62]
    )


def test_fit_with_band_where_there_are_enough_points(summary):
    with_fit = draw(summary()).axes[0]
    without = draw(summary(methods=("sd", "lossy", "diversed"))).axes[0]
    bands = [
        [c for c in axes.collections if isinstance(c, PolyCollection)]
        for axes in (with_fit, without)
    ]
    assert [len(found) for found in bands] == [1, 0]
    (fit,) = [line for line in with_fit.get_lines() if len(line.get_xdata()) == 101]
    assert not [line for line in without.get_lines() if len(line.get_xdata()) == 101]
    # The made-up summary is a straight line from (0, 100 %) to (1, 60 %).
    np.testing.assert_allclose(fit.get_ydata(), np.linspace(100, 60, 101), atol=1e-6)


def test_quadratic_is_recovered_exactly():
    x, at = np.linspace(0, 1, 8), np.linspace(0, 1, 5)
    for curve in quadratic_band(x, 3 * x**2 - 2 * x + 1, at):
        np.testing.assert_allclose(curve, 3 * at**2 - 2 * at + 1)


def test_band_covers_the_truth_about_as_often_as_it_says():
    rng, x = np.random.default_rng(0), np.linspace(0, 1, 14)
    truth, at = 90 - 60 * x + 10 * x**2, np.array([0.5])
    bands = [quadratic_band(x, truth + rng.normal(size=14), at) for _ in range(200)]
    covered = np.mean([low[0] <= 90 - 30 + 2.5 <= high[0] for _, low, high in bands])
    assert 0.88 < covered < 0.99


def test_a_single_setting_is_drawn(summary):
    axes = draw(summary(methods=("sd",), tasks=("mini-math",))).axes[0]
    np.testing.assert_allclose(drawn_points(axes), [[0, 60]])


def test_nothing_to_draw(summary):
    with pytest.raises(UsageError, match="no method of these runs drafts"):
        draw(summary(methods=("autoregressive",)))
    with pytest.raises(UsageError, match="Nothing to draw"):
        draw(summary().iloc[:0])
