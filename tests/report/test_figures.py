"""What figures and tables are made of."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.figures import style
from specbench.report.cells import read_cells
from specbench.report.figures import DARK, _channels, _contrast, figure_data, lightened, outline
from specbench.report.pages import TEMPLATES
from specbench.report.tables import summary_tables


@pytest.fixture(scope="module")
def cells(finished: Path) -> list[dict[Any, Any]]:
    return read_cells([finished])[0]


def test_values_are_those_of_the_summary(finished: Path, cells: list[dict[Any, Any]]) -> None:
    summary = pd.read_csv(finished / "summary.csv")
    data = figure_data(cells)
    json.dumps(data, allow_nan=False)
    assert len(data["panels"]) == 2
    sd = next(p for p in data["panels"][0]["points"] if p["method"] == "sd")
    rows = summary[(summary["task"] == "mini-math") & (summary["method"] == "sd")]
    rows = rows.set_index("metric")
    acceptance = rows.loc["draft_acceptance_rate", ["value", "ci_low", "ci_high"]].astype(float)
    assert sd["values"]["acceptance"] == pytest.approx((100 * acceptance).tolist(), rel=1e-5)
    assert sum(sd["round"]) == pytest.approx(1000 * rows.loc["round_seconds", "value"], rel=1e-3)
    strict = next(p for p in data["panels"][0]["points"] if p["method"] == "autoregressive")
    assert strict["values"]["acceptance"] is None


def test_the_front_is_of_static_points_by_rising_gain(cells: list[dict[Any, Any]]) -> None:
    swept = [
        cells[1] | {"method": "static", "draft_acceptance_rate": a, "quality": q}
        for a, q in ((0.9, 0.2), (0.5, 0.8), (0.6, 0.1), (0.7, 0.6))
    ]
    (panel,) = figure_data([cells[0], *swept])["panels"]
    assert panel["fronts"]["acceptance"] == [2, 4, 1]


def test_draft_lengths_have_panels_of_their_own(cells: list[dict[Any, Any]]) -> None:
    ar, sd = cells[0], cells[1]
    panels = figure_data([ar, sd, sd | {"draft_length": 7}])["panels"]
    assert [panel["setting"] for panel in panels] == ["mini, T = 1, N = 5", "mini, T = 1, N = 7"]
    assert [[p["method"] for p in panel["points"]] for panel in panels] == [
        ["autoregressive", "sd"]
    ] * 2
    batched = [ar, sd, sd | {"batch_size": 8}]
    assert figure_data(batched)["panels"][1]["setting"] == "mini, T = 1, batch of 8, N = 5"


def test_a_round_that_was_not_timed_is_blank(cells: list[dict[Any, Any]]) -> None:
    (panel,) = figure_data([cells[1] | {"draft_seconds": float("nan")}])["panels"]
    assert panel["points"][0]["round"] is None


def test_marks_are_those_of_the_figures(cells: list[dict[Any, Any]]) -> None:
    looks = figure_data(cells)["methods"]
    assert looks["diversed"]["light"] == style.look("diversed").colour
    assert outline("s") == "M-1 1L1 1L1 -1L-1 -1Z"
    assert outline("*").count("L") == 9
    assert "C" in outline("o")


@pytest.mark.parametrize("method", style.LOOKS)
def test_a_method_stands_out_against_either_paper(method: str) -> None:
    colour = style.look(method).colour
    assert _contrast(_channels(lightened(colour, DARK)), _channels(DARK)) >= 4.5
    assert _contrast(_channels(colour), _channels("#ffffff")) >= 2.7


def test_texts_stand_out_against_either_paper() -> None:
    sheet = (TEMPLATES / "page.css").read_text()
    light, dark = sheet.split("@media")
    assert f"--paper: {DARK}" in dark
    for half in (light, dark):
        colours = {n: _channels(c) for n, c in re.findall(r"--(\w+): (#[0-9a-f]{6})", half)}
        for ink in ("ink", "soft", "link", "good", "bad"):
            for paper in ("paper", "raised"):
                assert _contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
        for ink in ("ink", "good", "bad"):  # on the shade of w = 1
            assert _contrast(colours[ink], colours["shade"]) >= 4.5, ink


def test_a_table_leaves_out_what_it_does_not_know(cells: list[dict[Any, Any]]) -> None:
    math, headline = summary_tables(cells, [])
    assert math.caption == "mini-math on mini, T = 1, 10 prompts"
    assert [name for name, _ in math.columns[:3]] == ["method", "N", "accuracy"]
    assert headline.columns[2][0] == "ROUGE-2"
    (alone,) = summary_tables([cells[0]], [])
    assert not any("accepted" in name for name, _ in alone.columns)
    row = {name: field for (name, _), field in zip(alone.columns, alone.rows[0], strict=True)}
    quality = 100 * cells[0]["quality"]
    assert row["accuracy"].text == f"{quality:.1f}"
    assert row["accuracy"].below.startswith(f"{100 * cells[0]['quality_low']:.1f} to ")


def test_runs_are_named_where_there_are_several(cells: list[dict[Any, Any]]) -> None:
    both = [cells[0], cells[0] | {"run_id": "other"}]
    (table,) = summary_tables(both, [])
    assert [row[0].below for row in table.rows] == ["small", "other"]
    assert [p["run"] for p in figure_data(both)["panels"][0]["points"]] == ["small", "other"]
