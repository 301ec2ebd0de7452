"""The README shows what the shipped code made, and its commands exist."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\.venv/bin/specbench (\S+)((?:.|\\\n)*?)(?:\s#.*)?$", README, re.MULTILINE)


@pytest.mark.parametrize("table", ["reference/summary.md", "reference-transfer/transfer.md"])
def test_its_tables_are_the_reference_runs(table):
    assert (ROOT / "results" / table).read_text(encoding="utf-8").strip() in README


def test_its_pictures_exist():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    assert [p for p in pictures if not (ROOT / p).is_file()] == []


def test_its_commands_know_their_options():
    used = {name: set() for name, _ in COMMANDS}
    assert used.keys() >= {"run", "sweep-weights", "train", "transfer", "plot", "list"}
    for name, rest in COMMANDS:
        used[name] |= set(re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", rest))
    for name, options in used.items():
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
        unknown = [option for option in options if not re.search(rf"{option}\b", shown)]
        assert unknown == [], name
