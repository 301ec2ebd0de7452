"""``specbench plot``: figures of made-up runs and trainings."""

import os
from pathlib import Path

import pandas as pd
import pytest

from .made import POINTS, write_run

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def run(tmp_path) -> Path:
    points = [point for point in POINTS if point[2] in (0, 3) and point[0] != "autoregressive"]
    return write_run(tmp_path / "results" / "mine", [*points, ("static", 0.5, 3, 0.5, 15, 0.5)])


def test_figures_go_into_the_run_folder_and_a_front_of_one_point_is_called_so(cli, run, tmp_path):
    result = cli("plot", "pareto", code=0)
    names = [f"pareto.{kind}" for kind in ("svg", "csv")]
    assert result.out.splitlines() == [f"results/mine/figures/{name}" for name in names]
    data = pd.read_csv(run / "figures" / "pareto.csv")
    assert set(data["against"]) == {"time", "acceptance"}
    assert data.loc[data["mark"] == "front", "quality_low"].notna().all()  # a band, from samples
    points = [("static", 0.0, 3, 0.0, 25, 0.4), ("static", 0.5, 3, 0.0, 15, 0.6)]
    write_run(tmp_path / "zero", [("sd", None, 3, 0.0, 10, 0.8), *points])
    result = cli("plot", "pareto", "zero")
    assert "the static front is one point on mini-math" in result.err
    assert "no static front" not in result.err


@pytest.mark.parametrize(
    ("line", "name", "column", "values"),
    [
        ("--cost acceptance,time --cost time", "-acceptance-time", "against", {"time"}),
        ("--task mini-news", "-mini-news", "task", {"mini-news"}),
        ("-t mini-news,mini-math", "-mini-news-mini-math", "task", {"mini-news", "mini-math"}),
        ("--task all -m sd,static", "-sd-static", "method", {"sd", "static"}),
    ],
)
def test_filters_are_part_of_the_file_name(cli, run, line, name, column, values):
    for file in ("samples.csv", "summary.csv"):
        rows = (run / file).read_text().splitlines()
        more = [row.replace("mini-math", "mini-news") for row in rows[1:]]
        (run / file).write_text("\n".join([*rows, *more]) + "\n")
    cli("plot", "pareto", *line.split(), code=0)
    drawn_values = set(pd.read_csv(run / "figures" / f"pareto{name}.csv")[column].dropna())
    assert values <= drawn_values
    assert column == "against" or values == drawn_values


def test_times_of_other_machines_on_one_axis_are_named(cli):
    runs = [str(RESULTS / name) for name in ("reference", "reference-compile")]
    said = [
        cli("plot", "pareto", *runs, "-t", "mini-math", *how, "-o", "f", code=0).err
        for how in ((), ("--cost", "acceptance"))
    ]
    assert ["times of these runs do not compare" in err for err in said] == [True, False]


def test_the_newest_training_is_drawn(cli, tmp_path):
    columns = "step,reward,acceptance,weight,disagreement,held_out_quality,held_out_acceptance,"
    columns += "held_out_weight,held_out_distance\n"
    for number, name in enumerate(("new", "old")):
        folder = tmp_path / "results/heads/mini" / name
        folder.mkdir(parents=True)
        (folder / "training.csv").write_text(columns + f"1,0.{number},0.8,0.9,0.2,,,,\n")
    os.utime(folder / "training.csv", (1, 1))
    result = cli("plot", "training", code=0)
    drawn = Path("results/heads/mini/new/figures/training.csv")
    assert str(drawn) in result.out.splitlines()
    assert pd.read_csv(drawn)["head"].tolist() == ["mini/new"]
    assert cli("plot", "training", "results/heads/mini/old", "results/heads/mini/new").code == 0
    assert pd.read_csv(drawn)["head"].tolist() == ["old", "new"]
    # A folder of heads, such as a family; the figure's own data is not a head.
    assert cli("plot", "training", "results/heads/mini", "-o", "all").code == 0
    assert pd.read_csv("all/training.csv")["head"].tolist() == ["new", "old"]
    assert cli("plot", "training").code == 0
    assert pd.read_csv(drawn)["head"].tolist() == ["mini/new"]
