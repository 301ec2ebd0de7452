"""The points, fronts and labels of the Pareto figure."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from specbench.analysis.figures import pareto, style
from specbench.analysis.results import Results

from ...synthetic import samples
from .made import drawn_points, from_samples, made, sample, summary_of, titles


def test_pareto_has_every_point_of_every_panel():
    drawing = pareto.draw(made())
    data = drawing.data
    points = data[data["mark"] == "point"]
    assert points.groupby("against").size().to_dict() == {"time": 2 * 10, "acceptance": 2 * 9}
    sd = points[(points["method"] == "sd") & (points["against"] == "acceptance")].iloc[0]
    shown = [name + end for name in ("x", "quality") for end in ("", "_low", "_high")]
    assert sd[shown].tolist() == pytest.approx([60, 58, 62, 80, 78, 82])
    assert set(data["mark"]) == {"point"}  # a front needs samples
    # The figure shows the values of the data.
    here = points[(points["against"] == "time") & (points["task"] == "mini-math")]
    drawn = drawn_points(drawing.figure.axes[0])
    np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(here[["x", "quality"]], axis=0))


def test_pareto_costs_and_settings_have_separate_panels():
    drawing = pareto.draw(made(tasks=("mini-math",)), ("speedup", "time"))
    labels = [axes.get_xlabel() for axes in drawing.figure.axes]
    assert labels == ["Tokens/s / AR's (×) →", "Time per sample (s) ←"]
    settings = (("eager", 1), ("graph", 8))
    drawing = pareto.draw(made(tasks=("mini-math",), settings=settings))
    assert titles(drawing) == [
        *("mini-math\n(positive control, eager, batch 1)", ""),
        *("mini-math\n(positive control, graph, batch 8)", ""),
    ]
    drawing = pareto.draw(made(tasks=("python-line",)), ("time",))
    assert titles(drawing) == ["python-line"]
    assert not pareto.draw(made(methods=("sd",)), ("time",)).figure.legends  # of one series
    drawing = pareto.draw(runs("a", pairs=("mini", "server")), ("time",))
    assert titles(drawing) == ["mini-math\n(positive control, mini)", "mini-math\n(server)"]


FAMILY = ("h/acceptance-0.95", "h/acceptance-0.7", "h/acceptance-0.8")


def test_pareto_joins_and_labels_a_family_of_heads():
    figure = pareto.draw(made(heads=FAMILY, tasks=("mini-math",)), ("acceptance",)).figure
    (axes,) = figure.axes
    (line,) = [one.get_xydata() for one in axes.get_lines() if one.get_linestyle() == "-"]
    np.testing.assert_allclose(line, [[88, 75], [92, 70], [96, 65]])
    written = {text.get_text(): text for text in axes.texts}
    assert {".95", ".7", ".8"} < set(written)
    assert written[".7"].xy == pytest.approx((92, 70))
    apart = ("bundled", "h/mlp", FAMILY[0])
    (axes,) = pareto.draw(made(heads=apart, tasks=("mini-math",)), ("acceptance",)).figure.axes
    assert not [one for one in axes.get_lines() if one.get_linestyle() == "-"]


def test_pareto_draws_heads_of_one_recipe_small_and_their_mean_large():
    heads = ("h/seed-0", "h/seed-1", "h/seed-2", "other/seed-0")
    figure = pareto.draw(made(heads=heads, tasks=("mini-math",)), ("acceptance",)).figure
    (axes,) = figure.axes
    star = style.look("diversed").marker
    sizes: dict[tuple[float, ...], float] = {}
    for line in axes.get_lines():
        if line.get_marker() == star:
            for point in line.get_xydata():
                place = tuple(np.round(point))
                sizes[place] = max(line.get_markersize(), sizes.get(place, 0))
    single = [(88, 75), (92, 70), (96, 65)]
    mean, other = (92, 70), (100, 60)
    assert set(sizes) == {*single, other}
    assert sizes[mean] > sizes[other] > max(sizes[place] for place in single if place != mean)


def test_pareto_breaks_a_single_row_of_many_tasks() -> None:
    tasks = ("mini-math", "mini-code", "a", "b", "c")
    drawing = pareto.draw(made(heads=("h",), tasks=tasks), ("acceptance",))
    shown = [axes for axes in drawing.figure.axes if axes.axison]
    assert [axes.get_title().split("\n")[0] for axes in shown] == [*tasks]
    rows = {round(axes.get_position().y0, 2) for axes in shown}
    assert len(rows) == 2 and set(drawing.data["task"]) == {*tasks}


@pytest.mark.parametrize(
    ("swept", "labels", "ratios"),
    [
        ({(0.3,): 0.7, (0.1,): 0.9}, {"0.1", "0.3"}, [0.7 / 0.9]),  # from 0.1 to 0.3
        (  # joined along the last of two
            {(0.1, 0.2): 0.95, (0.1, 0.8): 0.6, (0.4, 0.2): 0.8, (0.4, 0.8): 0.45},
            {"0.1/0.2", "0.1/0.8", "0.4/0.2", "0.4/0.8"},
            [0.45 / 0.8, 0.6 / 0.95],
        ),
    ],
)
def test_pareto_joins_and_labels_swept_parameters_of_a_rule(swept, labels, ratios):
    frame = summary_of(tasks=("mini-math",))
    rule = frame[frame["method"] == "sd"].assign(method="typical")
    cells = [
        rule.assign(
            **dict(zip(("epsilon", "delta"), values, strict=False)), value=scale * rule["value"]
        )
        for values, scale in swept.items()
    ]
    drawn = pareto.draw(Results.of(summary=pd.concat([frame, *cells])), ("acceptance",))
    (axes,) = drawn.figure.axes
    colour = style.look("typical").colour
    assert {text.get_text() for text in axes.texts if text.get_color() == colour} == labels
    lines = [line for line in axes.get_lines() if line.get_color() == colour]
    joined = [line.get_ydata() for line in lines if line.get_linestyle() == "-"]
    np.testing.assert_allclose(sorted(last / first for first, last in joined), ratios)


def test_pareto_labels_are_omitted_where_it_is_crowded():
    for axes in pareto.draw(made(tasks=("mini-math",))).figure.axes:
        labels = sorted(text.get_text() for text in axes.texts if text.get_text())
        assert labels == ["0", "0.25", "0.5", "0.75", "1"]
    frame = summary_of(tasks=("mini-math",), half_width=None)
    frame.loc[frame["method"] == "static", "value"] /= 1e6
    texts = pareto.draw(Results.of(summary=frame), ("time",)).figure.axes[0].texts
    labels, lines = [t for t in texts if t.get_text()], [t for t in texts if not t.get_text()]
    assert 1 <= len(labels) <= 5 and 1 <= len(lines) <= len(labels)


@pytest.mark.parametrize("task", ["", "/mini-math"])
def test_pareto_names_the_recipes_of_means_over_seeds(task):
    heads = tuple(f"h/{r}/seed-{s}{task}" for r in ("a", "b") for s in (0, 1))
    frame = summary_of(tasks=("mini-math",), heads=heads)
    (axes, *_) = pareto.draw(Results.of(summary=frame)).figure.axes
    assert {"a", "b"} <= {text.get_text() for text in axes.texts}


def runs(*names: str, pairs: tuple[str, ...] = ("mini",)) -> Results:
    """Runs of the same cells, each a little better than the one before."""
    frames = []
    for number, (name, pair) in enumerate((name, pair) for pair in pairs for name in names):
        batch = {"batch_size": 1 + number % len(names), "run_id": f"{name}-{pair}"}
        frames.append(summary_of(tasks=("mini-math",), pairs=(pair,)).assign(**batch))
        frames[-1]["value"] *= 1 + 0.03 * number
    return Results.of(summary=pd.concat(frames))


def marker_faces(axes: Axes, method: str) -> list[tuple[str, str]]:
    """Face and edge of a method's markers, a pair for each run."""
    marker = style.look(method).marker
    lines = [line for line in axes.get_lines() if line.get_marker() == marker]
    return [(line.get_markerfacecolor(), line.get_markeredgecolor()) for line in lines]


def test_runs_of_one_pair_share_panels_and_are_told_apart_by_their_markers():
    (axes,) = (figure := pareto.draw(runs("a", "b", "c"), ("time",)).figure).axes
    colour = style.look("sd").colour
    assert marker_faces(axes, "sd") == [(colour, "white"), ("white", colour), (colour, "black")]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[-3:] == ["a-mini, batch 1", "b-mini, batch 2", "c-mini, batch 3"]
    # Pairs are other experiments, and four runs are too many for a panel.
    assert len(pareto.draw(runs("a", "b", pairs=("mini", "llama")), ("time",)).figure.axes) == 2
    assert len(pareto.draw(runs("a", "b", "c", "d"), ("time",)).figure.axes) == 4
    # Markers of servers are open already.
    served = runs("a", "b").cells.replace({"method": {"sd": "vllm-sd"}})
    assert len(pareto.draw(Results.of(cells=served), ("acceptance",)).figure.axes) == 2


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
def test_labels_and_legend_cover_nothing(names):
    figure = pareto.draw(runs(*names)).figure
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.height <= 0.25 * figure.bbox.height + 1
    labelled = 0
    for axes in figure.axes:
        assert box.y1 <= axes.get_tightbbox().y0 + 1
        labels = [t.get_window_extent().extents for t in axes.texts if t.get_text()]
        labelled += len(labels)
        marks = []
        for line in (bars.lines[0] for bars in axes.containers):
            centres = axes.transData.transform(line.get_xydata())
            radius = line.get_markersize() / 2 * figure.dpi / 72
            marks += list(np.hstack([centres - radius, centres + radius]))
        for number, label in enumerate(labels):
            for other in [*marks, *labels[:number]]:
                assert (label[:2] >= other[2:]).any() or (label[2:] <= other[:2]).any()
    assert labelled > 3


def sweep(run_id: str = "run-mini", prompts: int = 20) -> list[dict[str, Any]]:
    """Samples of a sweep: quality falls and acceptance rises as w falls, with some noise."""
    settings = [("sd", None, 0.9), ("static", 0.5, 0.6), ("static", 0.0, 0.2)]
    rows = [
        sample(method, number, weight=weight, run_id=run_id)
        | {"quality": float((number + 0.5) / prompts < right)}
        | {"accepted": 200 * (1 - 0.5 * right) + number % 3}
        | {"decode_seconds": 0.3 * right + 0.01 * (number % 5)}
        for method, weight, right in settings
        for number in range(prompts)
    ]
    return rows + [sample("autoregressive", number, run_id=run_id) for number in range(prompts)]


def test_pareto_front_of_samples_has_a_band():
    data = pareto.draw(from_samples(samples(*sweep())), ("time", "speedup")).data
    for _, line in data[data["mark"] == "front"].groupby("against"):
        assert (line["quality_low"] <= line["quality"]).all()
        assert (line["quality"] <= line["quality_high"]).all()
        assert np.ptp(line[["quality_low", "quality_high"]]) > np.ptp(line["quality"])
    both = from_samples(samples(*sweep(), *sweep("another")))
    several = pareto.draw(both, ("time",)).data.query("mark == 'front'")
    once = data.query("mark == 'front' and against == 'time'")
    for _, line in several.groupby("run_id"):  # runs have a front each
        np.testing.assert_allclose(line[["x", "quality"]], once[["x", "quality"]])
    alone = [row for row in sweep() if row.get("weight") != 0.0 and row["method"] != "sd"]
    one = pareto.draw(from_samples(samples(*alone)), ("time",)).data
    assert set(one["mark"]) == {"point"}
    best = [row | {"quality": float(row.get("weight") == 0.0)} for row in sweep()]
    shown = pareto.draw(from_samples(samples(*best)), ("time",)).figure.legends[0].get_texts()
    assert not any("static front" in text.get_text() for text in shown)  # one point is no line


@pytest.mark.parametrize(("middle", "tossed"), [(0.6, False), (0.2, True)])
def test_pareto_says_where_every_static_weight_is_below_a_coin(middle, tossed):
    rows = sweep(prompts=60)
    for number, row in enumerate(row for row in rows if row.get("weight") == 0.5):
        row["quality"] = float((number + 0.5) / 60 < middle)
    drawing = pareto.draw(from_samples(samples(*rows)), ("acceptance",))
    (title,) = titles(drawing)
    explained = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert ("†" in title) == any("the front mixes sd and" in text for text in explained) == tossed


def test_a_control_adds_a_front_that_is_nowhere_lower():
    cooled = [
        sample("cooled", n, run_id="r", weight=1.0, quality=1.0, accepted=150) for n in range(4)
    ]
    swept = [row | {"run_id": "r"} for row in sweep()]
    data = pareto.draw(from_samples(samples(*swept, *cooled)), ("acceptance",)).data
    lines = {mark: line.sort_values("x") for mark, line in data.groupby("mark")}
    before, after = lines["front"], lines["sharpened front"]
    at = np.linspace(before["x"].min(), before["x"].max(), 20)
    plain, controlled = (np.interp(at, line["x"], line["quality"]) for line in (before, after))
    gain = controlled - plain
    assert (gain > -1e-9).all() and gain.max() > 1
