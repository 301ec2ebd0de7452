import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from specbench.errors import UsageError
from specbench.figures import pareto

from .made import Made, from_samples, from_summary, sample, samples_of

draw = from_summary(pareto.draw)


def containers(axes):
    return {container.get_label(): container for container in axes.containers}


def dashed(axes):
    (line,) = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    return line.get_xydata()


def notes(axes):
    return [child for child in axes.get_children() if isinstance(child, Annotation)]


def test_one_column_per_task_with_titles_and_units(summary):
    axes = draw(summary()).axes
    assert [one.get_title() for one in axes] == ["mini-math", "mini-news", "", ""]
    assert [one.get_xlabel() for one in axes] == [
        *["Time per sample (s)"] * 2,
        *["Accepted / drafted (%)"] * 2,
    ]
    assert [one.get_ylabel() for one in axes] == ["Accuracy (%)", "ROUGE-2 F1 (×100)"] * 2


def test_diversed_is_the_red_star_and_others_keep_their_marks(summary):
    marks = {name: drawn.lines[0] for name, drawn in containers(draw(summary()).axes[0]).items()}
    assert {name: line.get_marker() for name, line in marks.items()} == {
        "autoregressive": "o",
        "sd": "^",
        "lossy": "s",
        "speccascade": "D",
        "static": "h",
        "diversed": "*",
    }
    assert to_hex(marks["diversed"].get_color()) == "#cc3311"
    assert marks["diversed"].get_zorder() == max(line.get_zorder() for line in marks.values())


def test_points_are_where_the_summary_says(summary):
    axes = draw(summary()).axes
    by_time, by_acceptance = (containers(one)["sd"].lines[0].get_xydata() for one in axes[::2])
    acceptance = 1 - (0.3 + 0.1)
    np.testing.assert_allclose(by_time, [[0.2 - 0.15 * acceptance, 80]])
    np.testing.assert_allclose(by_acceptance, [[100 * acceptance, 80]])


def test_points_have_intervals_both_ways(summary):
    for axes, width in ((draw(summary()).axes[0], 0.04), (draw(summary()).axes[2], 4)):
        across, up = containers(axes)["diversed"].lines[2]
        assert np.ptp(across.get_segments()[0][:, 0]) == pytest.approx(width)
        assert np.ptp(up.get_segments()[0][:, 1]) == pytest.approx(4)


def test_front_is_dashed_from_sd_to_the_draft_alone(summary):
    line = dashed(draw(summary()).axes[2])
    np.testing.assert_allclose(line[[0, -1]], [[60, 80], [100, 30]])


def test_no_static_point_lies_above_the_front_and_all_stay_visible(summary):
    frame = summary(tasks=("mini-math",))
    quality = frame["metric"] == "quality"
    frame.loc[(frame["weight"] == 0.5) & quality, "value"] = 0.05
    frame.loc[(frame["weight"] == 0.75) & quality, "value"] = 0.79
    axes = draw(frame).axes[1]
    line, points = dashed(axes), containers(axes)["static"].lines[0].get_xydata()
    assert (points[:, 1] <= np.interp(points[:, 0], *line.T) + 1e-9).all()
    assert [70, 79] in np.round(line, 6).tolist()
    assert 5 in np.round(points[:, 1], 6)


def test_autoregressive_has_no_acceptance_to_show(summary):
    axes = draw(summary()).axes
    assert "autoregressive" in containers(axes[0])
    assert "autoregressive" not in containers(axes[2])


def test_weights_are_written_beside_static_points_and_cover_nothing(summary):
    figure = draw(summary())
    figure.draw_without_rendering()
    for axes in figure.axes:
        written = notes(axes)
        assert sorted(note.get_text() for note in written) == ["0", "0.25", "0.5", "0.75", "1"]
        boxes = [note.get_window_extent() for note in written]
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[i + 1 :])
            assert axes.bbox.x0 <= box.x0
            assert box.x1 <= axes.bbox.x1
            stars = containers(axes)["diversed"].lines[0].get_xydata()
            assert not box.contains(*axes.transData.transform(stars[0]))


def test_crowded_weights_are_left_out_rather_than_printed_over_each_other(summary):
    frame = summary(tasks=("mini-math",), half_width=None)
    frame.loc[frame["method"] == "static", "value"] /= 1e6
    written = notes(draw(frame).axes[0])
    assert 1 <= len(written) < 5


def test_a_cloud_of_runs_is_drawn_without_labels(summary):
    frames = [summary(tasks=("mini-math",)).assign(run_id=f"run-{i}") for i in range(11)]
    axes = draw(pd.concat(frames, ignore_index=True)).axes[0]
    assert len(containers(axes)["static"].lines[0].get_xydata()) == 11 * 5
    assert notes(axes) == []


FAMILY = ("h/acceptance-0.7", "h/acceptance-0.8", "h/acceptance-0.95")


def family_lines(axes):
    red = [line for line in axes.get_lines() if to_hex(line.get_color()) == "#cc3311"]
    return [line.get_xydata() for line in red if line.get_linestyle() == "-"]


def test_heads_for_several_acceptances_are_joined_and_marked_with_them(summary):
    figure = draw(summary(heads=FAMILY[::-1]))
    for axes in figure.axes[2:]:
        (line,) = family_lines(axes)
        np.testing.assert_allclose(line[:, 0], [88, 92, 96])
        np.testing.assert_allclose(line[:, 1], [75, 70, 65])
        written = {note.get_text(): note for note in notes(axes)}
        assert {".7", ".8", ".95"} < set(written)
        assert {to_hex(written[wish].get_color()) for wish in (".7", ".95")} == {"#cc3311"}
        assert written[".7"].xy == pytest.approx((96, 65))
    assert "DIVERSED at target acceptance" in {t.get_text() for t in figure.legends[0].get_texts()}


def test_two_families_are_two_lines(summary):
    other = tuple(name.replace("h/", "g/") for name in FAMILY[:2])
    lines = family_lines(draw(summary(heads=FAMILY + other)).axes[2])
    assert sorted(map(len, lines)) == [2, 3]


@pytest.mark.parametrize("heads", [("bundled",), FAMILY[:1], ("bundled", "h/mlp", "mini-math")])
def test_heads_of_no_family_are_not_joined(summary, heads):
    axes = draw(summary(heads=heads)).axes[2]
    assert family_lines(axes) == []
    assert len(containers(axes)["diversed"].lines[0].get_xydata()) == len(heads)


def test_legend_comes_once_and_names_every_method(summary):
    figure = draw(summary())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "Autoregressive",
        "SD",
        "Lossy SD",
        "SpecCascade",
        "Static at w, with randomised front",
        "DIVERSED",
    ]
    assert all(axes.get_legend() is None for axes in figure.axes)


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_legend_and_panels_stay_on_the_page_and_apart(summary, tasks):
    figure = draw(summary(tasks=tuple(f"task-{i}" for i in range(tasks))))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    tight = [axes.get_tightbbox() for axes in figure.axes]
    assert not any(box.overlaps(one) for one in tight)
    for i, one in enumerate(tight):
        assert not any(one.overlaps(other) for other in tight[i + 1 :])


def test_pairs_are_drawn_below_one_another(summary):
    axes = draw(summary(pairs=("mini", "llama"), tasks=("mini-math",))).axes
    assert [one.get_title() for one in axes] == ["mini-math (mini)", "", "mini-math (llama)", ""]


@pytest.mark.parametrize("methods", [("autoregressive", "sd"), ("autoregressive", "diversed")])
def test_a_run_without_static_points_has_no_front_but_a_figure(summary, methods):
    axes = draw(summary(methods=methods)).axes[0]
    assert set(containers(axes)) == set(methods)
    assert notes(axes) == []


def test_a_single_prompt_is_drawn_without_bars(summary):
    axes = draw(summary(half_width=None)).axes[0]
    assert len(notes(axes)) == 5
    assert np.isfinite(axes.get_ylim()).all()


def test_a_task_without_quality_is_left_out(summary):
    frame = summary()
    frame.loc[(frame["task"] == "mini-news") & (frame["metric"] == "quality"), "value"] = np.nan
    assert [axes.get_title() for axes in draw(frame).axes] == ["mini-math", ""]


@pytest.mark.parametrize(
    ("against", "labels"),
    [
        (("speedup",), ["Tokens/s over AR's (×)"]),
        (("acceptance", "time"), ["Accepted / drafted (%)", "Time per sample (s)"]),
    ],
)
def test_prices_are_chosen_and_drawn_from_above(summary, against, labels):
    axes = draw(summary(tasks=("mini-math",)), against).axes
    assert [one.get_xlabel() for one in axes] == labels
    assert [one.get_title() for one in axes] == ["mini-math", ""][: len(against)]


def test_speed_up_is_a_gain(summary):
    axes = draw(summary(tasks=("mini-math",)), ("speedup",)).axes[0]
    line = dashed(axes)
    assert (np.diff(line[:, 0]) > 0).all()
    np.testing.assert_allclose(line[[0, -1], 0], [0.2 / 0.11, 4])
    np.testing.assert_allclose(line[[0, -1], 1], [80, 30])
    np.testing.assert_allclose(containers(axes)["autoregressive"].lines[0].get_xydata(), [[1, 80]])


def test_a_price_that_no_run_has_is_refused(summary):
    frame = summary()
    frame.loc[frame["metric"] == "speedup", "value"] = np.nan
    with pytest.raises(UsageError, match=r"against speedup: .* run autoregressive too"):
        draw(frame, ("speedup",))
    with pytest.raises(UsageError, match=r"against acceptance: .* run a method that drafts"):
        draw(summary(methods=("autoregressive",)))


def test_engines_are_drawn_below_one_another(summary):
    frame = summary(settings=(("eager", 1), ("compile", 1)), tasks=("mini-math",))
    axes = draw(frame).axes
    titles = ["mini-math (eager)", "", "mini-math (compile)", ""]
    assert [one.get_title() for one in axes] == titles
    assert all(len(dashed(one)) >= 2 for one in axes)


SWEEP = [("sd", None, 0.9), ("static", 0.5, 0.6), ("static", 0.0, 0.2)]


def sweep(run_id="run-mini", prompts=20):
    """Samples of a sweep: quality falls and acceptance rises as w falls, with some noise."""
    rows = [
        sample(
            method,
            number,
            weight=weight,
            run_id=run_id,
            quality=float((number + 0.5) / prompts < right),
            accepted=200 * (1 - 0.5 * right) + number % 3,
            decode_seconds=0.3 * right + 0.01 * (number % 5),
        )
        for method, weight, right in SWEEP
        for number in range(prompts)
    ]
    return rows + [sample("autoregressive", number, run_id=run_id) for number in range(prompts)]


def bands(axes):
    return [c for c in axes.collections if isinstance(c, PolyCollection)]


@pytest.mark.parametrize("against", ["time", "acceptance", "speedup"])
def test_front_of_samples_has_a_band_round_its_curve(against):
    results = from_samples(samples_of(sweep()))
    figure, data = pareto.draw(results, (against,))
    (axes,) = figure.axes
    line, (band,) = dashed(axes), bands(axes)
    sd = containers(axes)["sd"].lines[0].get_xydata()[0]
    assert np.abs(line - sd).sum(axis=1).min() < 1e-9  # the curve runs through its corners
    edges = band.get_paths()[0].vertices
    for x, y in line[::10]:
        around = edges[np.isclose(edges[:, 0], x), 1]
        assert around.min() <= y <= around.max()
    assert np.ptp(edges[:, 1]) > np.ptp(line[:, 1])
    curve = data[data["mark"] == "front"]
    np.testing.assert_allclose(curve[["x", "quality"]], line)
    assert (curve["quality_low"] <= curve["quality_high"]).all()
    assert set(curve["task"]) == {"mini-math"}


def test_fronts_of_several_runs_have_no_common_band():
    samples = samples_of(sweep() + sweep("another"))
    (axes,) = pareto.draw(from_samples(samples), ("acceptance",)).figure.axes
    assert bands(axes) == []
    assert len(dashed(axes)) >= 2


def test_one_static_weight_alone_has_no_front():
    rows = [row for row in sweep() if row.get("weight") != 0.0 and row["method"] != "sd"]
    (axes,) = pareto.draw(from_samples(samples_of(rows)), ("acceptance",)).figure.axes
    assert bands(axes) == []
    assert len(dashed(axes)) == 1


def test_the_data_behind_it_has_every_point_of_every_panel(summary):
    data = pareto.draw(Made(summary=summary())).data
    points = data[data["mark"] == "point"]
    assert points.groupby("against").size().to_dict() == {"time": 2 * 10, "acceptance": 2 * 9}
    sd = points[(points["method"] == "sd") & (points["against"] == "acceptance")].iloc[0]
    shown = [name + end for name in ("x", "quality") for end in ("", "_low", "_high")]
    assert sd[shown].tolist() == pytest.approx([60, 58, 62, 80, 78, 82])
    front = data[(data["mark"] == "front") & (data["against"] == "acceptance")]
    across = front.loc[front["task"] == "mini-news", "x"]
    assert (across.min(), across.max()) == pytest.approx((60, 100))


def test_nothing_to_draw(summary):
    frame = summary()
    with pytest.raises(UsageError, match="Nothing to draw"):
        draw(frame.iloc[:0])
    with pytest.raises(UsageError, match="has a quality"):
        draw(frame[frame["metric"] != "quality"])


def test_mixed_settings_are_refused(summary):
    with pytest.raises(UsageError, match=r"several draft lengths \(3, 5\)"):
        draw(summary(lengths=(3, 5)))
    frame = summary()
    frame.loc[frame["method"] == "sd", "temperature"] = 0.0
    with pytest.raises(UsageError, match=r"several temperatures \(0, 1\)"):
        draw(frame)
