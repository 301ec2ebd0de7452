"""The figures of the report are those of ``plot``, with the same fronts."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.compare import compare, verdicts_of
from specbench.analysis.compare_tables import overview
from specbench.analysis.comparison import ABOVE, FRONT
from specbench.analysis.figures import pareto
from specbench.analysis.report.figures import draws_of
from specbench.analysis.run_tables import summary_page
from specbench.analysis.summary import summarise
from specbench.runs.table import to_text

from ...synthetic import samples
from ..figures.made import from_samples, sample

# Accepted and proposed drafts, and the share of right answers.
POINTS: dict[tuple[str, float | None], tuple[int, int, float]] = {
    ("sd", None): (60, 200, 0.9),
    ("static", 0.5): (60, 150, 0.75),
    ("static", 0.0): (50, 50, 0.1),
    ("diversed", None): (75, 150, 0.8),
}


@pytest.fixture
def altered() -> pd.DataFrame:
    """A run whose acceptance mixes far from a straight line, since the draft has few rounds."""
    rows: list[dict[str, Any]] = [
        sample(
            method,
            number,
            weight=weight,
            head="bundled" if method == "diversed" else None,
            accepted=float(accepted),
            proposed=proposed,
            draft_acceptance_rate=accepted / proposed,
            quality=float((number + 0.5) / 20 < right),
            repetition=0.0,
        )
        for (method, weight), (accepted, proposed, right) in POINTS.items()
        for number in range(20)
    ]
    return samples(*rows)


def test_report_figure_table_and_sentence_have_one_front(altered: pd.DataFrame) -> None:
    rows = compare(altered, ["acceptance"]).rows
    placed = rows[(rows["metric"] == ABOVE) & (rows["against"] == FRONT)]
    front = 100 * placed["reference"].item()
    # Between static at w = 0.5 and the draft, with the draft for a share s of the prompts, so that
    # (60 - 10 s) / (150 - 100 s) = 0.5; straight segments would be at 64.2.
    share = (75 - 60) / (50 - 10)
    assert front == pytest.approx(100 * (0.75 - 0.65 * share))
    results = from_samples(altered)
    drawn = pareto.draw(results, ("acceptance",))
    reported = draws_of(results.cells, altered)["Quality vs. cost"]()
    for drawing in (drawn, reported):
        line = drawing.data.query("mark == 'front' and against == 'acceptance'").sort_values("x")
        assert np.interp(50, line["x"], line["quality"]) == pytest.approx(front, abs=0.2)
    page = summary_page(altered, summarise(altered))
    assert f"at the acceptance of diversed | {front:.1f}<br>50 % |" in page
    assert f" {front:.1f}\n" in to_text(overview(rows), width=100)
    (sentence,) = verdicts_of(altered)["sentence"]
    assert f" {80 - front:.1f} [" in sentence and "above the randomised static front" in sentence


def test_without_samples_the_report_draws_no_front(altered: pd.DataFrame) -> None:
    drawing = draws_of(from_samples(altered).cells, None)["Quality vs. cost"]()
    assert set(drawing.data["mark"]) == {"point"}
