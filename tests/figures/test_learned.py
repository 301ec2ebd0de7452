from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.image import imread

from specbench.analysis import learned
from specbench.analysis.learned import About, tabulate
from specbench.errors import UsageError
from specbench.figures.learned import FEWEST, LOOKS, SHOWN, draw
from specbench.figures.saving import save

KINDS = list(LOOKS)


ABOUT = About("mini", "mini-math", "mini-math", "linear")


def table(words=40, occurrences=FEWEST, about=ABOUT):
    """Tokens t00, t01 ... whose weight falls evenly from 1 to 0, in every kind in turn."""
    rows = [
        (text, f"t{i:02}", KINDS[i % len(KINDS)], 1 - i / max(words - 1, 1), 0.1 + i / 100)
        for i in range(words)
        for text in range(occurrences)
    ]
    return tabulate(pd.DataFrame(rows, columns=["text", "name", "kind", "weight", "tv"]), about)


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def points(axes):
    drawn = [c.lines[0].get_xydata() for c in axes.containers if isinstance(c, ErrorbarContainer)]
    return np.vstack(drawn)


def test_both_ends_of_the_list_are_named_and_in_order():
    right = draw(table()).figure.axes[1]
    assert names(right) == [f"t{i:02}" for i in [*range(SHOWN), *range(40 - SHOWN, 40)]]
    found = points(right)
    found = found[found[:, 1].argsort()]
    np.testing.assert_allclose(found[[0, -1], 0], [1, 0])
    assert (np.diff(found[:, 0]) < 0).all()
    low, high = right.get_ylim()
    assert low > high  # the highest weight is on top


def test_a_short_list_is_shown_once():
    assert names(draw(table(words=15)).figure.axes[1]) == [f"t{i:02}" for i in range(15)]


def test_rare_tokens_are_left_out_but_their_kinds_are_not():
    left, right = draw(table(occurrences=FEWEST - 1)).figure.axes
    assert names(right) == []
    assert [text.get_text() for text in right.texts][-1] == f"None occurs {FEWEST} times"
    assert len(names(left)) == len(KINDS)


def test_boxes_and_both_means_are_those_of_the_table():
    frame = table()
    left = draw(frame).figure.axes[0]
    kinds = frame[frame["level"] == learned.KIND]
    assert names(left) == (kinds["name"] + "\nn = " + kinds["n"].astype("str")).tolist()
    extents = [patch.get_path().get_extents() for patch in left.patches]
    np.testing.assert_allclose([box.x0 for box in extents], kinds["weight_q25"])
    np.testing.assert_allclose([box.x1 for box in extents], kinds["weight_q75"])
    np.testing.assert_allclose(np.sort(points(left)[:, 0]), np.sort(kinds["mean_weight"]))
    hollow = [line for line in left.get_lines() if line.get_markerfacecolor() == "white"]
    np.testing.assert_allclose([line.get_xdata()[0] for line in hollow], kinds["effective_weight"])


def test_a_kind_looks_the_same_in_both_panels():
    assert len({marker for _, marker in LOOKS.values()}) == len(LOOKS)
    assert len({colour for colour, _ in LOOKS.values()}) == len(LOOKS)
    for axes in draw(table(words=16)).figure.axes:
        looks = {(to_hex(c.lines[0].get_color()), c.lines[0].get_marker()) for c in axes.containers}
        assert looks == {(colour.lower(), marker) for colour, marker in LOOKS.values()}


def test_the_title_names_head_and_task_and_what_else_it_was_trained_on():
    def title(trained_on):
        return draw(
            table(about=About("mini", "mini-math", trained_on, "mlp"))
        ).figure.get_suptitle()

    assert title("mini-math") == title("") == "mini-math (mini), mlp head"
    assert title("mini-news") == "mini-math (mini), mlp head trained on mini-news"


def test_tokens_are_not_read_as_formulas(tmp_path):
    frame = table(words=3)
    frame.loc[frame["name"] == "t01", "name"] = "$\\frac$"
    png, *_ = save(draw(frame), tmp_path, "weights-head")
    assert png.stat().st_size > 1000


@pytest.mark.parametrize("words", [1, 40])
def test_nothing_overlaps_or_runs_off_the_page(words, tmp_path):
    drawing = draw(table(words))
    figure = drawing.figure
    png, *_ = save(drawing, tmp_path, "weights-head")
    picture = imread(png)[..., :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        np.testing.assert_array_equal(edge, 1.0)
    left, right = (axes.get_tightbbox() for axes in figure.axes)
    assert not left.overlaps(right)
    boxes = [label.get_window_extent() for label in figure.axes[1].get_yticklabels()]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    assert not figure.legends[0].get_window_extent().overlaps(left)


def test_the_data_behind_it_is_the_whole_table():
    frame = table(words=40)
    pd.testing.assert_frame_equal(draw(frame).data, frame)


def test_nothing_to_draw():
    with pytest.raises(UsageError, match="no token was sampled"):
        draw(table().iloc[:0])
