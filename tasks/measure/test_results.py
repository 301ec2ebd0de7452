"""The numbers on the pages of results are those of the committed runs."""

import csv
import io
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import specbench
from specbench.analysis.statistics import intervals
from specbench.analysis.statistics.front import front_of
from specbench.analysis.statistics.points import settings_of
from specbench.analysis.tables.table import with_interval
from specbench.analysis.written import write_summary
from specbench.cli.app import app
from specbench.files import open_text, stored
from specbench.runs.frames import read_samples
from tasks.measure import claims, recipe_claims

ROOT = Path(__file__).parents[2]
RUN = CliRunner()


@pytest.mark.parametrize(
    ("run", "end"),
    [
        ("reference", "At equal acceptance"),
        ("reference-transfer", "mini-code on mini, T = 1, n = "),
    ],
)
def test_tables_are_those_of_the_reference_runs(run, end):
    page = (ROOT / "results" / run / "summary.md").read_text(encoding="utf-8")
    assert page.partition(end)[0].strip() in (ROOT / "results" / "generated.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("run", ["reference-python-drafters", "reference-python-times"])
def test_summaries_of_committed_runs_are_those_of_today(run, tmp_path):
    """Both have at most 100 prompts, where another kind of interval begins."""
    shutil.copy(stored(ROOT / "results" / run / "samples.csv"), tmp_path)
    write_summary(tmp_path)
    for name in ("summary.csv", "summary.md"):
        with open_text(stored(ROOT / "results" / run / name)) as committed:
            assert (tmp_path / name).read_text() == committed.read()


PYTHON = ("line", "block", "docstring")  # tasks
QUALITY = ("accepted", "sd", "quality_difference", "quality_above")
SPEED = ("speed", "none")
RESULTS = ROOT / "results" / "README.md"
# Temperature and numbers of the runs in the result of the page. Of the pair python, qualities were
# measured in large batches, and times at batch 1.
SHOWN_RUNS = {
    "reference": ("", QUALITY + SPEED),
    "reference-greedy": ("T = 0 ", QUALITY + SPEED),
    **{f"reference-python-{task}": ("T = 0.4", QUALITY) for task in PYTHON},
    "reference-python-times": ("T = 0.4", SPEED),
}
SHOWN_LABEL = re.compile(r"diversed( features, mean of \d+ seeds)?")


@cache
def comparison(run: str) -> list[dict[str, str]]:
    """Return the rows of ``compare --at acceptance`` on a run, of all methods if all are shown."""
    line = ["compare", str(ROOT / "results" / run), "--at", "acceptance", "--format", "csv"]
    line += ["--method", "diversed"] if run in SHOWN_RUNS and run not in SOURCE_CODE_RUNS else []
    return list(csv.DictReader(io.StringIO(RUN.invoke(app, line).stdout)))


def _compared(run: str) -> dict[str, dict[str, str]]:
    """Return what ``compare`` says about DIVERSED in a run, by task, as the page writes it."""
    by_task: dict[str, dict[str, str]] = {}
    for row in comparison(run):
        if not SHOWN_LABEL.fullmatch(row["label"]):
            continue
        value, low, high = (float(row[name] or "nan") for name in ("value", "ci_low", "ci_high"))
        cells = by_task.setdefault(
            row["task"], {"accepted": f"{100 * float(row['acceptance']):.0f} %"}
        )
        if row["metric"] == "times_as_fast":
            name = "none" if row["against"] == "autoregressive" else "speed"
            cells[name] = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        elif row["metric"] == "quality_difference" or row["against"].startswith("static front"):
            cells[row["metric"]] = _points(row)
        if row["metric"] == "acceptance_difference":
            cells["sd"] = f"{100 * (float(row['acceptance']) - value):.0f} →"
    return by_task


def _points(row: dict[str, str]) -> str:
    """Return a difference in points with its interval; a lead with both its ends."""
    names = ("value", "ci_low", "ci_high", "least")
    value, low, high, least = (100 * float(row[name] or "nan") for name in names)
    return with_interval(value, low, high, "+.1f", least=least)


def _missing_results(run: str, text: str) -> list[str]:
    """Return what a run found and the table of results in a text does not say."""
    temperature, only = SHOWN_RUNS[run]
    result = text.split("<!-- result -->")[1].splitlines()
    missing = []
    for task, cells in _compared(run).items():
        shown = next(line for line in result if line.startswith(f"| {task}, {temperature}"))
        missing += [cells[name] for name in only if cells[name] not in shown]
    return missing


@pytest.mark.parametrize("run", SHOWN_RUNS)
def test_the_result_on_the_page_is_what_compare_says(run):
    assert _missing_results(run, RESULTS.read_text(encoding="utf-8")) == []


def test_a_wrong_result_is_found():
    text = RESULTS.read_text(encoding="utf-8")
    wrong = text.replace("44 → 80 %", "44 → 81 %").replace("+23.5 [+20", "+22.5 [+20")
    assert _missing_results("reference-greedy", wrong) == ["80 %", "+23.5 [+20.0, +27.4]"]


SOURCE_CODE = ROOT / "results" / "source-code.md"
SOURCE_CODE_RUNS = [*(f"reference-python-{task}" for task in PYTHON), "reference-python-line-T1"]
_ABOVE = {"static front": "above the static front", "sharpened front": "above it with `cooled`"}


@cache
def source_code_tables(run: str) -> tuple[str, str]:
    """Return the tables of a run on source code: methods, and the single seeds of its recipes.

    Each cell of the first has one number with one interval, and a recipe is its mean over seeds.
    """
    cells: dict[str, dict[str, str]] = {}
    seeds: dict[tuple[str, str], list[str]] = {}
    for row in comparison(run):
        if row["method"] == "cooled" and "w=0" in row["label"]:
            continue  # the draft alone at a lower temperature, a point of the second front only
        if row["method"] in ("static", "sd"):
            continue  # beside a coin, and beside no speculation
        front = re.sub(r" \(.*", "", row["against"])
        if seed := re.fullmatch(r"(diversed(?: \w+)?)[ /]seed-\d+", row["label"]):
            if row["metric"] == "quality_above" and front == "static front":
                setting = f"`{row['task']}`, T = {float(row['temperature']):g}"
                above = seeds.setdefault((setting, seed[1]), [])
                above.append(_points(row).partition(" [")[0])
            continue
        text = _points(row)
        named = cells.setdefault(
            row["label"], {"accepted": f"{100 * float(row['acceptance']):.0f} %"}
        )
        if row["metric"] == "quality_difference":
            named["minus SD"] = text
        elif row["metric"] == "quality_above":
            named[_ABOVE[front]] = f"**{text}**" if float(row["ci_low"]) > 0 else text
    names = ["accepted", "minus SD", *_ABOVE.values()]
    lines = [f"| method | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
    for label, texts in cells.items():
        lines.append(f"| `{label}` | {' | '.join(texts.get(name, '') for name in names)} |")
    single = [
        f"| {task} | `{name}` | {', '.join(above)} |" for (task, name), above in seeds.items()
    ]
    return "\n".join(lines), "\n".join(single)


@pytest.mark.parametrize("run", SOURCE_CODE_RUNS)
def test_the_tables_of_source_code_are_those_of_the_runs(run):
    text = SOURCE_CODE.read_text(encoding="utf-8")
    assert [table for table in source_code_tables(run) if table not in text] == []


def test_a_wrong_table_of_source_code_is_found():
    text = SOURCE_CODE.read_text(encoding="utf-8")
    table, _ = source_code_tables(SOURCE_CODE_RUNS[0])
    digit = re.search(r"\d(?=\])", table)
    assert digit is not None
    wrong = f"{table[: digit.start()]}{9 - int(digit[0])}{table[digit.end() :]}"
    assert wrong not in text


def _wrong_drafters(text: str) -> list[str]:
    """Return the rows of the table of drafters that differ from its run."""
    with open_text(stored(ROOT / "results" / "reference-drafters" / "summary.csv")) as file:
        rows = list(csv.DictReader(file))
    value = {(r["method"], r["drafter"], r["task"], r["metric"]): r["value"] for r in rows}
    lines = re.findall(r"^\| `(\w+)`, `(model|greedy|prompt-lookup)` \|(.*)\|$", text, re.MULTILINE)
    assert len(lines) == 6
    wrong = []
    for method, drafter, cells in lines:
        expected = []
        for task in ("mini-math", "mini-code", "mini-headline", "mini-news"):
            accepted, length, speedup = (
                float(value[method, drafter, task, metric])
                for metric in ("draft_acceptance_rate", "acceptance_length", "speedup")
            )
            expected.append(f"{100 * accepted:.0f} %, {length:.2f}, {speedup:.2f}×")
        if [cell.strip() for cell in cells.split("|")] != expected:
            wrong.append(f"{method}, {drafter}")
    return wrong


def test_the_table_of_drafters_is_that_of_its_run():
    text = (ROOT / "results" / "drafters.md").read_text(encoding="utf-8")
    assert _wrong_drafters(text) == []
    assert _wrong_drafters(text.replace("10 %, 1.28, 0.87×", "10 %, 1.29, 0.87×")) == [
        "sd, prompt-lookup"
    ]


def test_the_tables_of_rules_are_those_of_their_runs(capsys, monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", intervals.RESAMPLES)  # which the script raises
    page = (ROOT / "results" / "rules.md").read_text(encoding="utf-8")
    command = page.partition("tasks/measure/claims.py ")[2].partition("   #")[0]
    claims.main(*re.sub(r"\bresults", str(ROOT / "results"), command).replace("\\", "").split())
    printed = re.sub(r"inside=\S*`", "inside`", capsys.readouterr().out)
    rows = [line for line in printed.splitlines() if line.startswith("| `")]
    assert len(rows) == 53 and [row for row in rows if row not in page.splitlines()] == []


PUBLISHED = ROOT / "results" / "published"


def _distances_of(page: str) -> dict[str, list[str]]:
    """Return the distances from the static front on a page of published runs, by task."""
    table = page.partition("## Distance from the static front")[2].partition("\n- ")[0]
    header, _, *rows = [line.strip("| ").split(" | ") for line in table.split("\n") if "|" in line]
    cells = [[cell.strip("*| ") for cell in row] for row in rows]
    return {
        task: [row[column] for row in cells if len(row) > column and row[column]]
        for column, task in enumerate(header[1:], 1)
    }


@pytest.mark.parametrize("task", ["mbpp", "gsm8k", "humaneval", "xsum", "cnndm"])
def test_the_distances_of_published_runs_are_those_of_compare(task):
    page = (PUBLISHED / "README.md").read_text(encoding="utf-8")
    shown = _distances_of(page)[task]
    rows = [
        row
        for row in comparison(f"published/{task}")
        if row["metric"] == "quality_above" and row["against"].startswith("static front")
    ]
    unsigned = [re.sub(r"(?<=[\[ ])\+(?=[\d.]+[,\]])", "", _points(row)) for row in rows]
    assert len(shown) >= 6 and [text for text in shown if text not in unsigned] == []
    means = [
        text.partition(" [")[0]
        for row, text in zip(rows, unsigned, strict=True)
        if "mean of" in row["label"]
    ]
    transfers = page.partition("## Other tasks than the head's own")[2].partition("\n## ")[0]
    assert means and all(f", {text} |" in transfers for text in means)


def test_the_claims_of_the_recipes_are_those_of_their_run(capsys, monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", intervals.RESAMPLES)  # which the script raises
    recipe_claims.main(str(ROOT / "results" / "published" / "whole" / "mbpp"))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    page = (ROOT / "results" / "published" / "recipes.md").read_text(encoding="utf-8")
    signs = r"(?<=[\[ ])\+(?=[\d.]+[,\]])|(?<=^)0(?=\.)"  # as the page writes numbers
    results = [
        " | ".join(re.sub(signs, "", cell) for cell in row[3:]).removesuffix(" |")
        for row in rows
        if len(row) == 6
    ]
    assert len(results) == len(recipe_claims.CLAIMS)
    assert [result for result in results if f"| {result}" not in page] == []


def test_a_recipe_leads_itself_by_nothing_and_loses_to_what_is_better():
    samples = claims.pooled(read_samples(ROOT / "results" / "published" / "whole" / "mbpp"))
    settings = settings_of(samples)
    whole, paper = (
        [setting for setting in settings if f"heads/{name}/" in str(setting.cell["head"])]
        for name in ("whole", "paper")
    )
    itself = claims.difference_of_leads(whole, whole, front_of(settings))
    assert itself[:3] == (0, 0, 0) and itself.p == 1 and itself.least == 0
    one, other = (
        claims.difference_of_leads(*sides, front_of(settings))
        for sides in ((whole, paper), (paper, whole))
    )
    assert one.high > one.value > one.least > one.low
    assert (one.value, one.low) == pytest.approx((-other.least, -other.high))
    assert one.p == pytest.approx(other.p) and one.value > 0


def test_rounds_of_a_run_add_up_to_its_samples():
    results = specbench.load(ROOT / "results" / "published" / "humaneval-T0")
    key = list(results.rounds)[: list(results.rounds).index("round")]
    summed = results.rounds.groupby(key, dropna=False)[["proposed", "accepted", "emitted"]].sum()
    both = results.samples.merge(summed, on=key, suffixes=("", "_summed"))
    assert len(both) == len(results.samples)
    assert (both["proposed"] == both["proposed_summed"]).all()
    drafted = both[both["proposed"] > 0]
    assert (drafted["accepted"] == drafted["accepted_summed"]).all()
    assert drafted["acceptance_length"].to_numpy() == pytest.approx(
        (drafted["emitted"] / drafted["rounds"]).to_numpy()
    )
