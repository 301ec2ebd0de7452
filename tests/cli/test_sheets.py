"""Tables of figures in terminals of some widths, and as Markdown."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import output
from specbench.cli.sheets import Sheet, number, print_markdown, print_text, with_interval
from specbench.cli.tables import print_run

from ..theory.runs import write_simulated

Cli = Callable[..., Any]
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
LONG = "speccascade token-v3 α=0.5"
SHEET = Sheet(
    "Made up: here",
    ["method", "N", "speed-up\npredicted", "\nmeasured", "best N\n[95 %]"],
    [
        ["sd", "5", "1.80", "1.81 [1.75, 1.85]", "4 [3, 5]"],
        [LONG, "3", "1.70", "1.71 [1.65, 1.75]", "6 [5, 7]"],
        [LONG, "5", "1.60", "1.61 [1.55, 1.65]", ""],
        ["autoregressive", "", "", "", ""],
    ],
    notes=("speed-up: over nothing.",),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the lines that a call shows in a terminal of so many columns."""

    def lines(width: int, call: Callable[..., Any], *arguments: Any) -> list[str]:
        screen = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(output.sys, "stdout", screen)
            patch.setenv("COLUMNS", str(width))
            patch.setenv("TERM", "xterm")
            patch.setenv("NO_COLOR", "1")
            call(*arguments)
        plain = screen.getvalue()
        for style in ("\x1b[0m", "\x1b[1m", "\x1b[3m"):
            plain = plain.replace(style, "")
        return [line.rstrip() for line in plain.splitlines()]

    return lines


def test_a_wide_terminal_has_all_columns_beside_each_other(shown: Any) -> None:
    lines = shown(100, print_text, [SHEET, SHEET])
    assert lines[0] == "Made up: here"
    assert lines.count("speed-up: over nothing.") == 1
    row = f"{LONG}  3       1.70  1.71 [1.65, 1.75]  6 [5, 7]"
    assert lines.count(row) == 2


def test_what_does_not_fit_follows_beside_the_names(shown: Any) -> None:
    width = len(f"{LONG}  3  predicted  1.71 [1.65, 1.75]")
    lines = shown(width, print_text, [SHEET])
    assert max(map(len, lines)) == width
    assert f"{LONG}  3       1.70  1.71 [1.65, 1.75]" in lines
    assert f"{LONG}  3  6 [5, 7]" in lines
    # In the second block a row is left out that has figures in the first alone, but none that has
    # none at all.
    assert sum(line.startswith(f"{LONG}  5") for line in lines) == 1
    assert lines.count("autoregressive") == 2


@pytest.mark.parametrize("width", [30, 45, 50])
def test_nothing_vanishes_in_a_narrow_terminal(shown: Any, width: int) -> None:
    lines = shown(width, print_text, [SHEET])
    words = " ".join(lines).split()
    for row in SHEET.rows:
        for text in row:
            assert set(text.split()) <= set(words)
    assert "…" not in "".join(lines)
    if width > 45:
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_of_a_run_keeps_its_methods(shown: Any, width: int) -> None:
    lines = shown(width, print_run, REFERENCE)
    assert max(map(len, lines)) <= width
    for name in (LONG, "autoregressive", "static w=0.9"):
        assert sum(line.startswith(f"{name} ") for line in lines) >= 8
    assert any("1.45" in line.split() for line in lines)  # a speed-up


@pytest.mark.parametrize("width", [60, 80])
def test_comparisons_keep_theirs(cli: Cli, shown: Any, width: int) -> None:
    lines = shown(width, cli, "compare", str(REFERENCE), "--task", "mini-news")
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert sum(line.startswith(f"{LONG} ") for line in lines) >= 4


def test_theory_keeps_its_methods(cli: Cli, shown: Any, tmp_path: Path) -> None:
    run = write_simulated(tmp_path / "run", lengths=(2, 5), prompts=10)
    lines = shown(60, cli, "theory", str(run))
    assert max(map(len, lines)) <= 60
    assert "…" not in "".join(lines)
    assert sum(line.startswith("sd ") for line in lines) >= 6


def test_in_markdown_a_column_has_the_name_of_its_group(capsys: Any) -> None:
    print_markdown([SHEET, SHEET])
    lines = capsys.readouterr().out.splitlines()
    header = "| method | N | speed-up predicted | speed-up measured | best N [95 %] |"
    assert lines.count(header) == 2
    assert lines.count(f"| {LONG} | 3 | 1.70 | 1.71 [1.65, 1.75] | 6 [5, 7] |") == 2
    assert lines.count("speed-up: over nothing.") == 1


def test_a_figure_of_nothing_has_no_sign_and_an_unknown_one_no_interval() -> None:
    nan = float("nan")
    assert [number(value, "+.1f") for value in (-0.01, 0.01, -0.1, nan)] == [
        "0.0",
        "0.0",
        "-0.1",
        "",
    ]
    assert with_interval(1, nan, nan, ".1f", " %") == "1.0 %"
    assert with_interval(nan, nan, nan, ".1f", " %") == ""
    assert with_interval(1, 0, 2, ".0f", " %") == "1 % [0, 2]"
