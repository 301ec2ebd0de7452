import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from specbench.errors import UsageError
from specbench.figures import timeline
from specbench.figures.cells import MOST_ROWS
from specbench.figures.style import PARTS

from .made import Made, from_samples, from_summary, sample, samples_of

draw = from_summary(timeline.draw)


def widths(axes):
    """Of each part, the widths of its bars from above."""
    colours = {colour.lower(): part for part, colour in PARTS.items()}
    found = {part: [] for part in PARTS}
    for bar in axes.patches:
        found[colours[to_hex(bar.get_facecolor())]].append(bar.get_width())
    return found


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_parts_are_stacked_to_the_whole_round_in_milliseconds():
    rows = [sample(method, number) for method in ("diversed", "sd") for number in range(3)]
    left, right = timeline.draw(from_samples(samples_of(rows))).figure.axes
    assert names(left) == ["SD", "DIVERSED"]
    found = widths(left)
    for part, milliseconds in {"draft": 3, "verify": 2, "accept": 1, "other": 2}.items():
        np.testing.assert_allclose(found[part], [milliseconds] * 2)
    ends = [bar.get_x() + bar.get_width() for bar in left.patches]
    assert max(ends) == pytest.approx(8)
    (mark,) = [c for c in left.containers if c.get_label() == "sd"]
    assert mark.lines[0].get_xydata().tolist() == [pytest.approx([8, 0])]
    (prefill,) = [c for c in right.containers if c.get_label() == "sd"]
    assert prefill.lines[0].get_xydata().tolist() == [pytest.approx([20, 0])]


def test_units_and_titles(summary):
    axes = draw(summary()).axes
    assert [one.get_title() for one in axes] == ["mini-math", "", "mini-news", ""]
    assert [one.get_xlabel() for one in axes[-2:]] == [
        "Time per round (ms)",
        "Prefill (ms)",
    ]
    (legend,) = draw(summary()).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "Draft",
        "Verify",
        "Accept",
        "Other",
    ]


def test_rounds_have_intervals(summary):
    left = draw(summary()).axes[0]
    (mark,) = [c for c in left.containers if c.get_label() == "diversed"]
    (bars,) = mark.lines[2]
    assert np.ptp(bars.get_segments()[0][:, 0]) == pytest.approx(40)


def test_settings_are_told_apart(summary):
    axes = draw(summary(tasks=("mini-math",), methods=("sd",), lengths=(3, 5))).axes
    assert names(axes[0]) == ["SD N = 3", "SD N = 5"]
    settings = (("eager", 1), ("graph", 8))
    axes = draw(summary(tasks=("mini-math",), methods=("sd",), settings=settings)).axes
    titles = ["mini-math (eager, batch 1)", "", "mini-math (graph, batch 8)", ""]
    assert [one.get_title() for one in axes] == titles


def test_parts_never_add_up_to_more_than_is_there(summary):
    frame = summary(methods=("sd",))
    frame.loc[frame["metric"] == "round_seconds", "value"] = 0.005
    assert widths(draw(frame).axes[0])["other"] == [0]


def test_the_data_behind_it_has_every_part(summary):
    data = timeline.draw(Made(summary=summary(methods=("sd",)))).data
    row = data[data["task"] == "mini-math"].iloc[0]
    parts = [f"{part}_ms" for part in PARTS]
    assert row[["round_ms", *parts, "prefill_ms"]].tolist() == pytest.approx([8, 3, 2, 1, 2, 50])
    assert row[["round_ms_low", "round_ms_high"]].tolist() == pytest.approx([-12, 28])


def test_runs_whose_parts_were_not_timed_are_refused(summary):
    frame = summary()
    frame.loc[frame["metric"] == "verify_seconds", "value"] = np.nan
    with pytest.raises(UsageError, match="not timed"):
        draw(frame)


def test_more_rows_than_a_page_has_are_refused(summary):
    runs = [summary(methods=("sd",)).assign(run_id=f"run-{i}") for i in range(MOST_ROWS + 1)]
    with pytest.raises(UsageError, match=r"61 settings .* place for 60; choose some by --method"):
        draw(pd.concat(runs))
