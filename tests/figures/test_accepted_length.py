import numpy as np
import pytest

from specbench.errors import UsageError
from specbench.figures.accepted_length import MEAN, draw, histogram
from specbench.figures.style import look

from .made import rounds_of

# Of five rounds one gets nothing accepted, two get one draft, two get all three.
SD = [[0, 1], [1, 3, 3]]


def bars(axes):
    return [bar.get_height() for bar in axes.patches]


def test_shares_and_mean_by_hand():
    marks = histogram(rounds_of({"sd": 5 * SD}).rounds)
    np.testing.assert_allclose(marks["value"], [20, 40, 0, 40, 8 / 5])
    assert marks["accepted"].tolist()[:-1] == [0, 1, 2, 3]
    assert marks["mark"].tolist() == ["share"] * 4 + ["mean"]
    assert (marks["value_low"] <= marks["value"]).all()
    assert (marks["value"] <= marks["value_high"]).all()


def test_intervals_are_over_prompts_not_rounds():
    alike = histogram(rounds_of({"sd": [[0, 3]] * 10}).rounds)
    apart = histogram(rounds_of({"sd": [[0, 0]] * 5 + [[3, 3]] * 5}).rounds)
    np.testing.assert_allclose(alike["value"], apart["value"])
    np.testing.assert_allclose(alike["value_low"], alike["value_high"])
    assert np.ptp(apart.loc[apart["mark"] == MEAN, ["value_low", "value_high"]]) > 1


def test_the_intervals_of_few_prompts_are_blank():
    marks = histogram(rounds_of({"sd": [[1, 2], [0, 2]]}).rounds)
    assert marks["value_low"].isna().all()


def test_a_row_per_method_in_its_look_and_its_mean_marked():
    figure = draw(rounds_of({"diversed": [[3, 3], [3, 2]], "sd": SD})).figure
    top, bottom = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == ["SD", "DIVERSED"]
    assert bars(top) == pytest.approx([20, 40, 0, 40])
    assert bars(bottom) == pytest.approx([0, 0, 25, 75])
    assert {bar.get_facecolor() for bar in top.patches} == {look_of("sd")}
    (mean,) = [c for c in top.containers if c.get_label() == "sd"]
    assert mean.lines[0].get_xdata() == pytest.approx([1.6])
    assert mean.lines[0].get_marker() == look("sd").marker
    assert [text.get_text() for text in top.texts] == ["1.60"]
    assert figure.get_supxlabel() == "Drafts accepted per round, with their mean"
    assert figure.get_supylabel() == "Share of rounds (%)"


def look_of(method):
    red, green, blue = (int(look(method).colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue, 0.8


def test_settings_of_a_method_have_rows_of_their_own():
    made = rounds_of({"static": SD})
    other = made.rounds.assign(weight=0.5, draft_length=5)
    made.__dict__["rounds"] = type(other)(
        [*made.rounds.assign(weight=0.0).to_dict("records"), *other.to_dict("records")]
    )
    axes = draw(made).figure.axes
    names = ["Static ensemble\nw=0, N = 3", "Static ensemble\nw=0.5, N = 5"]
    assert [one.get_ylabel() for one in axes] == names
    assert [len(bars(one)) for one in axes] == [4, 6]


def test_a_column_per_task_and_a_gap_where_a_method_is_missing():
    made = rounds_of({"sd": SD, "lossy": SD})
    rounds = made.rounds
    rounds.loc[(rounds["method"] == "lossy"), "task"] = "mini-news"
    axes = draw(made).figure.axes
    assert [one.get_title() for one in axes] == ["mini-math", "mini-news", "", ""]
    assert [len(bars(one)) for one in axes] == [4, 0, 0, 4]


def test_the_data_behind_it_is_every_bar_and_every_mean():
    data = draw(rounds_of({"sd": SD, "lossy": SD})).data
    assert len(data) == 2 * (4 + 1)
    assert data["mark"].value_counts().to_dict() == {"share": 8, "mean": 2}
    assert {"task", "method", "value", "value_low", "value_high"} <= set(data)


def test_nothing_to_draw():
    with pytest.raises(UsageError, match="no method of these runs drafts"):
        draw(rounds_of({"autoregressive": [[0, 0]]}))
    made = rounds_of({"sd": SD, "lossy": SD})
    made.rounds.loc[made.rounds["method"] == "sd", "temperature"] = 0.0
    with pytest.raises(UsageError, match=r"several temperatures \(0, 1\)"):
        draw(made)
