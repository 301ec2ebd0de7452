from itertools import pairwise

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from specbench.errors import UsageError
from specbench.figures import transfer

from .made import Made, from_summary

draw = from_summary(transfer.draw)

TASKS = ("mini-math", "mini-news", "mini-code")


def matrix(axes):
    """The texts of a panel, [heads, tasks]."""
    shape = axes.images[0].get_array().shape
    texts = np.full(shape, "", dtype=object)
    for text in axes.texts:
        column, row = text.get_position()
        texts[row, column] = text.get_text()
    return texts.tolist()


def names(labels):
    return [label.get_text() for label in labels]


def test_heads_stand_down_and_tasks_across(summary):
    left, right = draw(summary(tasks=TASKS, heads=TASKS[:2])).axes
    assert names(left.get_yticklabels()) == ["no head (SD)", "mini-math", "mini-news"]
    assert names(left.get_xticklabels()) == list(TASKS)
    assert names(right.get_xticklabels()) == [
        "mini-math\naccuracy",
        "mini-news\nROUGE-2",
        "mini-code\naccuracy",
    ]


def test_acceptance_is_absolute_and_quality_is_compared_with_strict_verification(summary):
    frame = summary(tasks=TASKS[:2], heads=TASKS[:2])
    moved = (frame["task"] == "mini-news") & (frame["head"] == "mini-math")
    frame.loc[moved & (frame["metric"] == "quality"), "value"] = 0.9
    left, right = draw(frame).axes
    assert matrix(left) == [["60", "60"], ["88", "88"], ["92", "92"]]
    assert matrix(right) == [["80.0", "80.0"], ["−5.0", "+10.0"], ["−10.0", "−10.0"]]
    np.testing.assert_allclose(right.images[0].get_array(), [[0, 0], [-5, 10], [-10, -10]])


def test_no_change_has_no_sign_of_loss(summary):
    frame = summary(tasks=TASKS[:1], heads=TASKS[:1])
    frame.loc[(frame["head"] == "mini-math") & (frame["metric"] == "quality"), "value"] = 0.79999
    assert matrix(draw(frame).axes[1])[1] == ["+0.0"]


def test_a_frame_marks_the_task_of_a_head(summary):
    for axes in draw(summary(tasks=TASKS, heads=(TASKS[1], "elsewhere"))).axes:
        frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        centres = [(f.get_x() + f.get_width() / 2, f.get_y() + f.get_height() / 2) for f in frames]
        assert centres == [pytest.approx((1, 1))]


def test_a_task_without_quality_keeps_its_acceptance(summary):
    frame = summary(tasks=TASKS[:2], heads=TASKS[:2])
    blank = (frame["task"] == "mini-news") & (frame["metric"] == "quality")
    frame.loc[blank, ["value", "ci_low", "ci_high", "unit"]] = np.nan
    left, right = draw(frame).axes
    assert [row[1] for row in matrix(left)] == ["60", "88", "92"]
    assert [row[1] for row in matrix(right)] == ["", "", ""]


def test_the_data_behind_it_is_what_the_fields_say(summary):
    data = transfer.draw(Made(summary=summary(tasks=TASKS[:2], heads=TASKS[:2]))).data
    assert set(data["metric"]) == {"draft_acceptance_rate", "quality"}
    assert len(data) == 3 * 2 * 2
    row = data[(data["trained_on"] == "mini-news") & (data["task"] == "mini-math")]
    assert row.set_index("metric")["value"]["draft_acceptance_rate"] == pytest.approx(0.92)


@pytest.mark.parametrize("tasks", [1, 2, 4, 9])
def test_names_fit_on_the_page_and_below_one_another_s_cells(summary, tasks):
    names = tuple(f"a-long-task-{i}" for i in range(tasks))
    figure = draw(summary(tasks=names, heads=names))
    figure.draw_without_rendering()
    left, right = figure.axes
    assert not left.get_tightbbox().overlaps(right.bbox)
    assert not left.title.get_window_extent().overlaps(right.title.get_window_extent())
    assert left.get_tightbbox().x0 >= 0
    assert right.get_tightbbox().x1 <= figure.bbox.width
    boxes = [label.get_window_extent() for label in left.get_xticklabels()]
    if left.get_xticklabels()[0].get_rotation() == 0:
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"methods": ("sd", "static")}, "compare no heads: start with `specbench transfer`"),
        ({}, "compare no heads"),  # found by itself: nothing says what it was trained for
        ({"heads": TASKS, "pairs": ("mini", "llama")}, "of one run"),
        ({"heads": TASKS, "lengths": (3, 5)}, "of one draft length"),
    ],
)
def test_what_is_no_transfer_is_refused(summary, changes, complaint):
    with pytest.raises(UsageError, match=complaint):
        draw(summary(**changes))
