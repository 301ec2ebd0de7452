"""The figure of predictions against measurements."""

import json
from pathlib import Path

import numpy as np
import pytest

from specbench.analysis.selection import Selection
from specbench.errors import UsageError
from specbench.figures.theory import draw
from specbench.results import Results

from ..theory.runs import write_simulated


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_simulated(tmp_path / "run", lengths=(2, 5), prompts=40)


def test_points_lie_on_the_diagonal_with_the_interval_of_their_difference(run: Path) -> None:
    drawing = draw(Results([run]))
    titles = [axes.get_title() for axes in drawing.figure.axes]
    assert titles == [
        "Accepted / judged (%)",
        "Accepted length",
        "Speed-up at the measured\ntime of a round",
    ]
    data = drawing.data
    assert len(data) == 2 * 4  # two draft lengths, and the i.i.d. formula beside accepted lengths
    for _, row in data[data["metric"] != "accepted_length_iid"].iterrows():
        assert row["measured_low"] <= row["predicted"] <= row["measured_high"]
        assert row["measured_low"] <= row["measured"] <= row["measured_high"]
    by_formula = data[(data["metric"] == "accepted_length_iid") & (data["draft_length"] == 2)]
    (iid,) = by_formula.to_dict("records")
    assert not iid["measured_low"] <= iid["predicted"] <= iid["measured_high"]
    for axes in drawing.figure.axes:
        assert axes.get_xlim() == axes.get_ylim()
        diagonal = [line for line in axes.lines if len(set(map(tuple, line.get_xydata()))) == 2]
        assert any((line.get_xdata() == line.get_ydata()).all() for line in diagonal)


def test_marks_are_where_the_data_says(run: Path) -> None:
    drawing = draw(Results([run]))
    acceptance = drawing.data[drawing.data["metric"] == "acceptance"]
    axes = drawing.figure.axes[0]
    (marks,) = [c.lines[0] for c in axes.containers]
    expected = 100 * acceptance[["predicted", "measured"]].to_numpy()
    np.testing.assert_allclose(marks.get_xydata(), expected)


def test_tasks_of_a_run_are_drawn_alone(run: Path, tmp_path: Path) -> None:
    other = write_simulated(tmp_path / "other", prompts=4, task="mini-news", run_id="other")
    drawing = draw(Results([run, other], Selection(["mini-news"])))
    assert set(drawing.data["task"]) == {"mini-news"}
    with pytest.raises(UsageError, match="no task q"):
        draw(Results([run, other], Selection(["q"])))


def test_without_autoregressive_there_is_no_column_of_speedups(run: Path) -> None:
    path = run / "samples.jsonl"
    kept = [line for line in path.open() if json.loads(line)["draft_length"]]
    path.write_text("".join(kept))
    drawing = draw(Results([run]))
    assert [axes.get_title() for axes in drawing.figure.axes] == [
        "Accepted / judged (%)",
        "Accepted length",
    ]
    assert "speedup" not in set(drawing.data["metric"])


def test_temperatures_are_not_mixed(run: Path, tmp_path: Path) -> None:
    other = write_simulated(tmp_path / "other", prompts=4, temperature=0.5, run_id="other")
    with pytest.raises(UsageError, match="several temperatures"):
        draw(Results([run, other]))
