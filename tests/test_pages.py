"""The commands, links and numbers on the pages are correct."""

import csv
import io
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli.app import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / folder / "README.md" for folder in ("results", "tasks", "tests")),
    *sorted((ROOT / "specbench").rglob("*.md")),
]
RUN = CliRunner()
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@PAGE
def test_links_and_pictures_exist(page):
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
    for path, anchor in links:
        place = page.parent / path if path else page
        assert place.exists(), path
        assert not anchor or anchor in _anchors(place), anchor


@PAGE
def test_commands_know_their_options(page):
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    lines = re.sub(r"\\\n", " ", blocks)
    for name, rest in re.findall(r"^\s*specbench (\S+)([^#\n]*)", lines, re.MULTILINE):
        command = [name, *rest.split()[:1]] if name == "pairs" else [name]  # a group
        shown = RUN.invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
        options = re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", rest)
        assert [o for o in options if not re.search(rf"{o}\b", shown)] == [], name


def test_the_readme_is_short_and_leads_to_every_page():
    text = README.read_text(encoding="utf-8")
    assert len(text) <= 10_000
    assert [p for p in PAGES[1:] if f"({p.relative_to(ROOT)})" not in text] == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_begins_with_its_question(page):
    assert re.match(r"# \w+: .+\?\n", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("table", ["reference/summary.md", "reference-transfer/transfer.md"])
def test_tables_are_those_of_the_reference_runs(table):
    text = (ROOT / "results" / table).read_text(encoding="utf-8").strip()
    assert text in (ROOT / "results" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("run", ["reference", "reference-greedy"])
def test_the_result_in_the_readme_is_what_compare_says(run):
    folder = ROOT / "results" / run
    line = ["compare", str(folder), "-m", "diversed", "--at", "acceptance", "--format", "csv"]
    found: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO(RUN.invoke(app, line).stdout)):
        value, low, high = (float(row[name] or "nan") for name in ("value", "ci_low", "ci_high"))
        cells = found.setdefault(
            row["task"], {"accepted": f"{100 * float(row['acceptance']):.0f} %"}
        )
        if row["metric"] == "times_as_fast":
            cells["speed"] = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        elif row["metric"] in ("quality_difference", "quality_above"):
            cells[row["metric"]] = f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        if row["metric"] == "acceptance_difference":
            cells["sd"] = f"{100 * (float(row['acceptance']) - value):.0f} →"
    greedy = ", T = 0" if run == "reference-greedy" else ", "
    result = README.read_text(encoding="utf-8").split("<!-- result -->")[1].splitlines()
    for task, cells in found.items():
        shown = next(text for text in result if text.startswith(f"| {task}{greedy}"))
        assert len(cells) == 5
        assert [cell for cell in cells.values() if cell not in shown] == []
