"""``specbench compare`` on a small table of samples made up here."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.compare import COMPARISON
from specbench.analysis.frames import SAMPLES

Cli = Callable[..., Any]
#: Figures of the sheets: scale, format and unit.
SHOWN = {
    "times_as_fast": (1, ".2f", ""),
    "times_tokens_per_second": (1, ".2f", ""),
    "share_of_gain": (100, ".0f", " %"),
    "quality_difference": (100, "+.1f", ""),
    "acceptance_difference": (100, "+.1f", ""),
}
# Method, weight, draft length, quality, accepted of 25, seconds.
POINTS: list[tuple[str, float | None, int, float, int | None, float]] = [
    ("autoregressive", None, 0, 0.8, None, 1.6),
    *(("sd", None, n, 0.8, 10, seconds) for n, seconds in ((3, 0.8), (5, 1.0))),
    *(("static", 0.0, n, 0.2, 25, seconds) for n, seconds in ((3, 0.4), (5, 0.5))),
    *(("diversed", None, n, 0.7, 20, seconds) for n, seconds in ((3, 0.6), (5, 0.5))),
]


def write_run(folder: Path, points: list[Any], task: str = "mini-math") -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "run_id": folder.name,
            "pair": "mini",
            "task": task,
            "method": method,
            "weight": weight,
            "temperature": 1.0,
            "draft_length": length,
            "engine": "eager",
            "batch_size": 1,
            "sample_id": f"p{i:02}",
            "quality_metric": "accuracy",
            "quality": float(rng.random() < quality),
            "output_tokens": 20,
            "proposed": 25 if length else 0,
            "accepted": accepted,
            "prefill_seconds": 0.0,
            "decode_seconds": seconds * rng.uniform(0.9, 1.1),
            "stopped_by": "eos",
            **dict.fromkeys(("seed", "repeat", "prompt_tokens", "rounds"), 1),
        }
        for method, weight, length, quality, accepted, seconds in points
        for i in range(30)
    ]
    folder.mkdir(parents=True)
    pd.DataFrame(rows, columns=list(SAMPLES)).to_csv(folder / "samples.csv", index=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "one"
    write_run(folder, POINTS)
    return folder


def test_the_newest_run_is_compared_in_every_way(cli: Cli, run: Path) -> None:
    result = cli("compare")
    assert result.code == 0
    notes = result.err.splitlines()
    assert sum("points of quality apart" in note for note in notes) == 2  # lines of two weights
    assert sum("no control" in note for note in notes) == len(notes) - 2 == 1
    titles = [line for line in result.out.splitlines() if " on mini, T = 1, n = 30" in line]
    assert [title.strip().partition(":")[0] for title in titles] == [
        "Against sd, each at its own quality",
        "At equal acceptance",
        "At equal time",
        "At equal quality",
        "Hypervolume",
    ]
    tables, _, _ = result.out.partition("tokens/s: the method's over sd's")
    assert max(map(len, tables.splitlines())) <= 140  # a pipe's width
    assert "…" not in result.out  # nothing is cut


def test_all_formats_say_the_same(cli: Cli, run: Path) -> None:
    table = pd.read_csv(io.StringIO(cli("compare", "--at", "quality", "--format", "csv").out))
    assert tuple(table.columns) == COMPARISON
    assert set(table["at"]) == {"quality", "own quality"}
    assert set(table["metric"]) == {*SHOWN, "length_ratio"}
    text = cli("compare", "--at", "quality").out
    markdown = cli("compare", "--at", "quality", "--format", "markdown").out
    for row in table[table["metric"].isin(SHOWN)].itertuples():
        scale, form, unit = SHOWN[row.metric]
        numbers = (scale * number for number in (row.value, row.ci_low, row.ci_high))
        value, low, high = (
            shown.lstrip("+-") if float(shown) == 0 else shown
            for shown in (f"{number:{form}}" for number in numbers)
        )
        shown = f"{value}{unit} [{low}, {high}]"
        assert shown in text
        assert f"| {shown} |" in markdown
    assert "| diversed | chosen (5) |" in markdown
    assert "| sd, chosen (3) |" in markdown
    # Of another quality than sd: under a title of its own.
    own, equal = markdown.split("At equal quality")
    assert ("| sd, " in own, "| sd, " in equal) == (True, False)
    # N = 3, the one chosen for sd, is not compared with itself.
    assert "| diversed | 5 | had by N alone |" in markdown
    assert "| diversed | 3 | had by N alone |" not in markdown


def test_what_is_missing_is_said_once(cli: Cli, tmp_path: Path) -> None:
    points = [point for point in POINTS if point[0] in ("sd", "diversed") and point[2] == 5]
    write_run(tmp_path / "bare", points)
    result = cli("compare", "bare")
    assert result.code == 0
    notes = result.err.splitlines()
    assert len(notes) == 3
    assert sum("two static weights or more" in line for line in notes) == 1
    assert sum("--draft-length 3,5,7" in line for line in notes) == 1
    assert "Against sd, each at its own quality" in result.out
    assert "At equal quality" not in result.out
    assert "chosen" not in result.out
    assert "'static' cannot be compared here" in cli("compare", "bare", "-m", "static").err
    write_run(tmp_path / "statics", [point for point in POINTS if point[0] in ("sd", "static")])
    refused = cli("compare", "statics", "--method", "static")
    assert "compared with: these runs hold no other" in refused.err


def test_refusals(cli: Cli, run: Path) -> None:
    for line, message in (
        ("--at speed", "--at"),
        ("--method lossy", "--method 'lossy' cannot be compared here: name one of diversed"),
        ("--method sd", "--method 'sd' is what methods are compared with: name one of diversed"),
        ("--task mini-news", "these runs have no task mini-news"),
    ):
        result = cli("compare", *line.split())
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert message in result.err
