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
    assert (result.code, result.err) == (0, "")
    titles = [line for line in result.out.splitlines() if " on mini, T = 1, n = 30" in line]
    assert [title.strip().partition(":")[0] for title in titles] == [
        "At equal acceptance",
        "At equal time",
        "At equal quality",
        "Against sd, each at its own quality",
        "Hypervolume",
    ]
    tables, _, notes = result.out.rpartition("chosen: N is chosen")
    assert max(map(len, tables.splitlines())) <= 100
    assert notes.count("\n") == 3
    assert "…" not in result.out  # nothing is cut


def test_all_formats_say_the_same(cli: Cli, run: Path) -> None:
    table = pd.read_csv(io.StringIO(cli("compare", "--at", "quality", "--format", "csv").out))
    assert tuple(table.columns) == COMPARISON
    assert set(table["at"]) == {"quality", "own quality"}
    text = cli("compare", "--at", "quality").out
    markdown = cli("compare", "--at", "quality", "--format", "markdown").out
    for row in table.itertuples():
        if row.metric == "times_as_fast":
            shown = f"{row.value:.2f} [{row.ci_low:.2f}, {row.ci_high:.2f}]"
        else:
            shown = f"{100 * row.value:.0f} % [{100 * row.ci_low:.0f}, {100 * row.ci_high:.0f}]"
        assert shown in text
        assert f"| {shown} |" in markdown
    assert "| diversed | chosen (5) |" in markdown
    assert "| sd, chosen (3) |" in markdown
    # Of another quality than sd: under a title of its own.
    equal, own = markdown.split("Against sd, each at its own quality")
    assert ("| sd, " in own, "| sd, " in equal) == (True, False)
    for said in (text, markdown):
        assert said.count("N is chosen on one half of the prompts and measured on the other") == 1
    # N = 3, the one chosen for sd, is not compared with itself.
    assert "| diversed | 5 | had by N alone |" in markdown
    assert "| diversed | 3 | had by N alone |" not in markdown


def test_one_task_of_several(cli: Cli, run: Path) -> None:
    write_run(run.parent / "two", POINTS, task="mini-code")
    result = cli(
        *("compare", "results/one", "results/two"),
        *("--at", "time", "-m", "diversed", "-t", "mini-code"),
    )
    assert result.code == 0
    assert "mini-code on mini, T = 1, n = 30" in result.out
    assert "mini-math" not in result.out


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
    # What is there to be compared with is no method to compare.
    refused = cli("compare", "bare", "--method", "sd")
    assert "'sd' is what methods are compared with: name one of diversed" in refused.err
    assert "'static' is not to be compared here" in cli("compare", "bare", "-m", "static").err
    write_run(tmp_path / "statics", [point for point in POINTS if point[0] in ("sd", "static")])
    refused = cli("compare", "statics", "--method", "static")
    assert "compared with: these runs hold no other method that drafts" in refused.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--at speed", "unknown --at 'speed': give one of acceptance, time, quality, hypervolume"),
        ("--format latex", "give one of text, markdown, csv"),
        ("--method lossy", "--method 'lossy' is not to be compared here: these runs have diversed"),
        ("--method sd", "--method 'sd' is what methods are compared with: name one of diversed"),
        ("--task mini-news", "these runs have mini-math"),
        ("--method diversed,", "--method '' is not"),
        ("results/three", "no folder results/three"),
    ],
)
def test_refusals(cli: Cli, run: Path, line: str, message: str) -> None:
    result = cli("compare", *line.split())
    assert result.code == 2
    assert message in result.err.replace(str(run.parents[1]) + "/", "")
    assert result.err.count("\n") == 1
    assert result.out == ""
