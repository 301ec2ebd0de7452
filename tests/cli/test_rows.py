"""The part of finished runs that a command reads: --task, --method and --draft-length."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.cli.app import main

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two tasks, two draft lengths, four methods."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    line = "run -m autoregressive,sd,static,diversed -t mini-math,mini-headline -n 2 --weight 0.4"
    more = "--draft-length 2,3 --device cpu --no-progress --output"
    with pytest.raises(SystemExit) as exit:
        main([*line.split(), *more.split(), str(folder)])
    assert exit.value.code == 0
    return str(folder)


def printed(result: Any) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(result.out))


def drawn(result: Any) -> pd.DataFrame:
    return pd.read_csv(result.out.split()[-1])


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("table --format csv", printed),
        ("summary", printed),
        ("summary --frame samples", printed),
        ("theory --format csv", printed),
        ("compare --format csv --at time", printed),
        ("plot acceptance-time -o figures", drawn),
    ],
)
def test_every_command_reads_the_part_that_is_chosen(
    cli: Cli, run: str, command: str, read: Callable[[Any], pd.DataFrame]
) -> None:
    line = "-t mini-math -m diversed --draft-length 3"
    result = cli(*command.split(), run, *line.split())
    assert result.code == 0, result.err
    rows = read(result)
    assert set(rows["task"]) == {"mini-math"}
    assert set(rows["method"]) == {"diversed"}
    assert set(rows["draft_length"].dropna()) == {3}


def test_a_report_shows_the_part_that_is_chosen(cli: Cli, run: str) -> None:
    assert cli("report", run, "-o", "p.html", "-t", "mini-math", "-m", "sd").code == 0
    assert "DIVERSED" not in Path("p.html").read_text()


def test_several_draft_lengths_are_refused_with_what_to_do(cli: Cli, run: str) -> None:
    refused = cli("plot", "pareto", run, "-o", "figures")
    assert refused.code == 2
    assert "--draft-length" in refused.err
    line = "--draft-length 2 -m sd,static --against speedup -o figures"
    done = cli("plot", "pareto", run, *line.split())
    assert done.code == 0, done.err
    assert "-N2.png" in done.out


@pytest.mark.parametrize(
    "line",
    [
        "summary RUN --task mini-new",
        "table RUN --method sdd",
        "theory RUN --task mini-new",
        "compare RUN --draft-length x",
        "report RUN -m ,",
        "summary RUN --frame runs -m sd",
        "plot weights --head bundled -t mini-math -m sd",
        "plot training -m sd",
    ],
)
def test_what_is_not_there_is_refused(cli: Cli, run: str, line: str) -> None:
    refused = cli(*line.replace("RUN", run).split())
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.count("\n") == 1
