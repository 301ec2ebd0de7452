"""The transfer table: tidy, and as Markdown."""

import pandas as pd
import pytest

from specbench.analysis.summary import summarise
from specbench.analysis.transfer import COLUMNS, headings, transfer_markdown, transfer_table

# Quality and drafts accepted of 25 by the head and the task it serves; the run measured math first.
CELLS = {
    ("sd", "math"): (0.99, 10),
    ("sd", "news"): (0.5, 15),
    ("math", "math"): (0.9, 20),
    ("math", "news"): (0.25, 25),
    ("news", "math"): (0.8, 15),
    ("news", "news"): (0.5, 20),
}


@pytest.fixture
def summary(make):
    return summarise(
        make(
            *(
                {
                    "method": "sd" if head == "sd" else "diversed",
                    "head": None if head == "sd" else head,
                    "task": task,
                    "sample_id": f"{task}-{i}",
                    "quality": quality,
                    "quality_metric": "rouge2" if task == "news" else "accuracy",
                    "accepted": accepted,
                }
                for (head, task), (quality, accepted) in CELLS.items()
                for i in range(10)
            )
        )
    )


def test_the_table_is_tidy_and_has_every_head_on_every_task(summary):
    table = transfer_table(summary)
    assert list(table) == COLUMNS
    found = table.set_index(["trained_on", "task", "metric"])
    assert len(found) == 2 * len(CELLS)
    for (head, task), (quality, accepted) in CELLS.items():
        assert found.loc[(head, task, "quality"), "value"] == pytest.approx(quality)
        assert found.loc[(head, task, "draft_acceptance_rate"), "value"] == accepted / 25
    assert found.xs("news", level="task").xs("quality", level="metric")["unit"].unique() == [
        "rouge2"
    ]
    assert (table["n"] == 10).all()
    assert table[["ci_low", "ci_high"]].notna().all(axis=None)


def test_markdown_has_intervals_units_and_marks_the_diagonal(summary):
    *_, header, _, strict, maths, news = transfer_markdown(transfer_table(summary)).splitlines()
    assert header == "| trained on | math, accuracy (n = 10) | news, ROUGE-2 (n = 10) |"
    assert strict == (
        "| no head (sd) | 99.0 [99.0, 99.0]<br>40.0 % [40.0, 40.0] "
        "| 50.0 [50.0, 50.0]<br>60.0 % [60.0, 60.0] |"
    )
    assert maths.startswith("| math | **90.0 [90.0, 90.0]<br>80.0 % [80.0, 80.0]** | 25.0 ")
    assert news.endswith("| **50.0 [50.0, 50.0]<br>80.0 % [80.0, 80.0]** |")


def test_other_methods_do_not_matter(summary, make):
    more = summarise(make({"method": "static", "weight": 0.5, "task": "math"}))
    both = pd.concat([more, summary], ignore_index=True)
    pd.testing.assert_frame_equal(transfer_table(both), transfer_table(summary))


def test_what_was_not_measured_is_blank(summary):
    missing = (summary["head"] == "math") & (summary["task"] == "news")
    unscored = summary["metric"] == "quality"
    table = transfer_table(summary[~missing & ~(unscored & (summary["task"] == "news"))])
    lines = transfer_markdown(table).splitlines()
    assert headings(table)["news"] == "news (n = 10)"
    assert lines[-2].endswith("80.0 % [80.0, 80.0]** |  |")
    assert lines[-1].endswith("| **80.0 % [80.0, 80.0]** |")
