import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from specbench.errors import UsageError
from specbench.figures.training import draw

STEPS = 40


@pytest.fixture
def head(tmp_path):
    """Write a training whose curves are straight lines; return its folder."""

    def write(name, steps=STEPS, **changes):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        step = np.arange(1, steps + 1)
        table = {
            "step": step,
            "reward": 0.5 + 0.01 * step,
            "acceptance": 0.8 + 0.001 * step,
            "weight": 0.9 - 0.01 * step,
            "disagreement": np.full(steps, 0.3),
            "loss": -0.1 * step,
            "tokens": np.full(steps, 1000),
        }
        pd.DataFrame(table | changes).to_csv(folder / "training.csv", index=False)
        return folder

    return write


def curves(axes):
    """Lines by whether they are pale, each [steps, (x, y)]."""
    return {
        pale: [line.get_xydata() for line in axes.get_lines() if (line.get_alpha() == 0.3) is pale]
        for pale in (True, False)
    }


def test_four_panels_with_units_against_the_step(head):
    axes = draw([head("mini/mini-math")]).figure.axes
    assert [one.get_title() for one in axes] == [
        "Reward",
        "Acceptance",
        "Weight on the target",
        "Loss",
    ]
    assert [one.get_ylabel() for one in axes] == [
        "Mean score (%)",
        "Mean 1 − w TV(p, q) (%)",
        "Mean w",
        "Minus the objective\n(spreads of gain)",
    ]
    assert [one.get_xlabel() for one in axes] == ["", "", "Step", "Step"]


def test_curves_are_those_of_the_table_and_acceptance_has_its_floor(head):
    reward, acceptance, weight, _ = draw([head("mini/mini-math")]).figure.axes
    (raw,) = curves(reward)[True]
    np.testing.assert_allclose(raw[[0, -1]], [[1, 51], [STEPS, 90]])
    (smooth,) = curves(weight)[False]
    np.testing.assert_allclose(smooth[10:30, 1], 0.9 - 0.01 * smooth[10:30, 0] + 0.005)
    smooth, floor = curves(acceptance)[False]
    np.testing.assert_allclose(floor[:, 1], 70)
    assert smooth[:, 1].min() > 79


def test_one_head_is_diversed_s_red_and_several_are_told_apart(head):
    alone = draw([head("mini/mini-math")]).figure
    assert to_hex(alone.legends[0].get_lines()[0].get_color()) == "#cc3311"
    assert alone.legends[0].get_texts()[0].get_text() == "mini/mini-math"
    both = draw([head("a/mini-math"), head("b/mini-math")]).figure
    lines = both.legends[0].get_lines()
    assert [t.get_text() for t in both.legends[0].get_texts()] == [
        "a/mini-math",
        "b/mini-math",
        "acceptance at w = 1",
    ]
    assert len({to_hex(line.get_color()) for line in lines}) == 3


def test_a_loss_that_leaps_does_not_flatten_the_rest(head):
    loss = -0.1 * np.arange(1, STEPS + 1)
    loss[20] = -500
    (*_, axes) = draw([head("h", loss=loss)]).figure.axes
    low, high = axes.get_ylim()
    assert -10 < low < -4
    assert -0.1 < high < 5
    assert curves(axes)[False][0][:, 1].min() > -5


def test_the_data_behind_it_has_a_row_per_head_and_step(head):
    data = draw([head("a", steps=3), head("b", steps=5)]).data
    assert data["head"].value_counts().to_dict() == {"b": 5, "a": 3}
    assert data["reward"].tolist()[:3] == pytest.approx([51, 52, 53])
    for name in ("reward", "acceptance", "weight", "loss", "strict_acceptance"):
        assert f"{name}_smooth" in data


def test_a_single_step_is_drawn(head):
    assert len(draw([head("h", steps=1)]).data) == 1


def test_refusals(head, tmp_path):
    with pytest.raises(UsageError, match=r"nowhere holds no training.csv: give the folder"):
        draw([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="no step yet"):
        draw([head("empty", steps=0)])
    folder = head("old")
    (folder / "training.csv").write_text("step,reward\n1,0.5\n")
    with pytest.raises(UsageError, match="cannot be read") as raised:
        draw([folder])
    assert "\n" not in str(raised.value)
