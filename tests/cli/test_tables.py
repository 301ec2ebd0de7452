"""``specbench table`` and ``compare``: formats, notes, filters."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.tables.table import Column, Table, TableCell
from specbench.analysis.verdicts.contrasts import COMPARISON
from specbench.analysis.verdicts.two_runs import run_differences
from specbench.cli import output, tables
from specbench.files import PACKINGS
from specbench.runs.configuration import RunConfig
from specbench.runs.run import Run

from .made import POINTS, strict, write_run


@pytest.fixture
def run(once, tmp_path) -> Path:
    return Path(shutil.copytree(once("one", write_run), tmp_path / "results" / "one"))


def printed(result: Any) -> pd.DataFrame:
    assert result.code == 0, result.err
    return pd.read_csv(io.StringIO(result.out))


def drawn(result: Any) -> pd.DataFrame:
    assert result.code == 0, result.err
    return pd.read_csv(result.out.split()[-1])


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("table --format csv", printed),
        ("table --by position --format csv", printed),
        ("compare --format csv --at time", printed),
        ("plot acceptance-time -o figures", drawn),
    ],
)
def test_every_command_applies_the_filters(cli, finished, command, read):
    line = "-t mini-math -m diversed --draft-length 3"
    rows = read(cli(*command.split(), finished, *line.split()))
    assert set(rows["task"]) == {"mini-math"}
    assert set(rows["method"]) == {"diversed"}
    assert set(rows["draft_length"].dropna()) == {3}


@pytest.mark.parametrize("command", ["table", "compare"])
def test_all_formats_of_a_table_have_the_same_content(cli, one_task, command):
    texts = [cli(command, str(one_task), "--format", name) for name in ("text", "markdown", "csv")]
    assert [result.code for result in texts] == [0] * 3
    text, markdown, csv = (result.out for result in texts)
    rows = [line for line in markdown.splitlines() if "| diversed |" in line]
    assert rows
    for row in rows:
        cells = [cell.strip(" *") for cell in row.strip("|").split("|")]
        assert all(word in text for cell in cells for word in cell.split())
    assert max(map(len, text.splitlines())) <= output.PIPED_WIDTH
    assert {"task", "method"} < set(pd.read_csv(io.StringIO(csv)))
    assert "\x1b" not in text


@pytest.mark.parametrize("against", ["", "--against sd --margin 2"])
def test_a_line_per_method_over_all_tasks_is_printed_first(cli, finished, against):
    def lines(form: str) -> list[str]:
        line = f"compare {finished} --draft-length 3 {against} {form}"
        return cli(*line.split(), code=0).out.splitlines()

    counted = "diversed: too few prompts on 2 of 2 tasks"
    for form, sign, mark in (("text", "", ""), ("markdown", "", "- "), ("latex", "% ", "% ")):
        text = lines(f"--format {form}")
        assert text[0] == f"{sign}2 tasks on mini, T = 1"
        assert f"{mark}{counted}" in text[1 : text.index("")]
    assert not any(counted in text for form in ("--format csv", "--json") for text in lines(form))
    line = f"compare {finished} --draft-length 3 -t mini-math {against}"
    assert "too few prompts on" not in cli(*line.split(), code=0).out


def test_the_asked_tables_are_printed_alone(cli, run):
    both = cli("compare", "--at", "sd,acceptance", code=0).out
    placed = cli("compare", "--at", "acceptance", code=0).out
    assert placed.startswith("At equal acceptance: ") and "Against sd" not in placed
    beside_sd = cli("compare", "--at", "sd", code=0).out
    assert beside_sd.startswith("Against sd ") and "At equal" not in beside_sd
    assert both.startswith("Against sd ") and "At equal acceptance: " in both
    strict = write_run(
        run.with_name("strict"), [p for p in POINTS if p[0] in ("autoregressive", "sd")]
    )
    nothing = cli("compare", str(strict), "--at", "time", code=0)
    assert nothing.out == "" and "no method has a front at equal time: see --at sd" in nothing.err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_notes_are_wrapped_at_the_width_of_a_terminal_alone(monkeypatch):
    folder = "results/a-name-of-many-parts"
    text = f"this run in {folder} lacks {'prompts ' * 9}".strip()
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(output.sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", "40")
        output.note(text)
        first, *others = stream.getvalue().splitlines()
        assert " ".join([first, *map(str.strip, others)]) == f"note: {text}"
        assert bool(others) == stream.isatty() and any(folder in line for line in [first, *others])
        assert all(line.startswith("  ") and len(line) <= 40 for line in others)


def test_a_terminal_gets_its_width_and_the_best_in_bold(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(output.sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    wide = Column("a heading so long that it takes more than a line of the terminal")
    output.print_table(Table("title", [wide], [[TableCell("72.6", best=True)]]))
    assert "\x1b[1m72.6*\x1b[0m" in screen.getvalue()
    plain = screen.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(map(len, plain.splitlines())) <= 70


def test_the_newest_run_or_a_folder_of_runs_is_taken(cli, run):
    shown = cli("table", code=0)
    assert shown.out.startswith("Pair mini, T = 1, N = 3: 30 prompts per task tell quality")
    assert cli("table", "results").out == cli("table", "results/one").out == shown.out
    write_run(run.with_name("two"))
    csv = ("table", "--format", "csv")
    assert list(printed(cli(*csv, "results"))["run_id"].unique()) == ["one", "two"]
    assert list(printed(cli(*csv))["run_id"].unique()) == ["two"]


def test_many_runs_have_no_verdicts_beside_them(cli, run, monkeypatch):
    assert "- sd" in cli("table", "results").out
    monkeypatch.setattr(tables, "MOST_JUDGED", 0)
    shown = cli("table", "results", code=0)
    assert "- sd" not in shown.out and "no verdicts beside more than 0 runs" in shown.err


def test_notes_on_runs(cli, run, stored):
    config: dict[str, Any] = {"samples_planned": 9, "tasks": []}
    config |= {"progress": {"state": "interrupted", "samples": 3}}
    config |= {"loading": {"load_format": "dummy"}}
    (run / "config.json").write_text(json.dumps(config))
    stored(cli("table", str(run)).err, cli("table", "--paper").err)


@pytest.mark.parametrize("format", ["text", "csv"])
def test_published_numbers_are_shown_or_their_absence_explained(cli, run, format, stored):
    shown = cli("table", str(run), "--paper", "--format", format)
    stored(shown.out if format == "text" else "", shown.err)
    for name in ("samples.csv", "summary.csv"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace("mini-math", "gsm8k").replace("mini", "llama"))
    assert printed(cli("table", "--paper", "--format", "csv"))["published"].any()


@pytest.mark.latex
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_every_table_compiles_in_latex_and_fits_the_page(cli, finished, run, tmp_path):
    lines = [
        f"table {run} --intervals --paper",
        f"table {finished} --by position --intervals",
        f"compare {run} {write_run(tmp_path / 'two')} --at all",
        f"compare {run}",
        f"compare {run} --against sd --margin 2 --draft-length 3 --legend",
    ]
    made = [cli(*line.split(), "--format", "latex", code=0).out for line in lines]
    document = (
        "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n"
        f"\\begin{{document}}\n{''.join(made)}\\end{{document}}\n"
    )
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    line = ("pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert not re.findall("Overfull .*|.*multiply defined.*", done.stdout)


def without_sd(text: str) -> list[str]:
    """The lines of a comparison but those on ``sd``, which is no method that is named."""
    return re.sub(r"(?ms)^sd: .*?[.)]\n", "", text).splitlines()


def test_the_newest_run_is_compared_in_every_way(cli, run, stored):
    short = cli("compare", "--legend", code=0)
    result = cli("compare", str(run), "--at", "all", "--legend", code=0)
    stored(short.out, short.err, result.out, result.err)
    table = short.out.partition("mini-math on mini, T = 1, n = 30\n")[0]
    assert cli("compare").out == table.removesuffix("\n") + "--legend explains all words.\n"
    named = cli("compare", "-m", "autoregressive,sd,diversed", "--legend").out
    assert without_sd(named) == without_sd(short.out)
    table = printed(cli("compare", "--at", "quality", "--format", "csv"))
    assert tuple(table.columns) == COMPARISON
    assert set(table["at"]) == {"quality", "own quality"}


def test_what_a_comparison_lacks_is_noted_once(cli, tmp_path, stored):
    points = [point for point in POINTS if point[0] in ("sd", "diversed") and point[2] == 5]
    write_run(tmp_path / "bare", points)
    result = cli("compare", "bare", "--at", "all", "--legend", code=0)
    stored(result.out, result.err)


def environment(folder: Path, day: str = "2026-01-01", model: str = "x") -> None:
    facts = {"started": f"{day}T00:00:00Z", "cpu": {"model": model}, "git": {"commit": folder.name}}
    (folder / "environment.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("changes", "options", "timed"),
    [
        ({}, (), True),
        ({"day": "2026-01-02"}, (), False),
        ({"model": "y"}, (), False),
        ({"model": "y"}, ("--times",), True),
    ],
)
def test_two_runs_are_paired_and_timed_only_on_one_machine_and_day(
    cli, run, changes, options, timed, stored
):
    other = write_run(run.with_name("two"))
    environment(run)
    environment(other, **changes)
    shown = cli("compare", str(run), str(other), "-m", "diversed", "--legend", *options, code=0)
    stored(shown.out, shown.err)
    table = printed(cli("compare", str(run), str(other), "--format", "csv", *options))
    rows = table[table["at"] == "two runs"]
    assert set(rows["method"]) == {point[0] for point in POINTS}
    assert ("times_as_fast" in set(rows["metric"])) == timed
    assert rows.loc[rows["metric"] == "equal_samples", "value"].eq(1).all()


def test_what_differs_includes_unset_options_and_edited_files(tmp_path):
    first, second = (
        Run(
            tmp_path / name,
            RunConfig(settings={"top_p": top_p}, sources={"r.py:f": digest}, tasks=[], **only),
        )
        for name, top_p, digest, only in (
            ("a", 0.9, "1", {}),
            ("b", None, "2", {"added": 1}),  # a fact that one run lacks is no difference
        )
    )
    differences = run_differences(first, second)
    assert differences == [("settings.top_p", 0.9, None), ("sources.r.py:f", "1", "2")]


@pytest.mark.parametrize("command", ["table", "compare", "verify"])
def test_json_has_numbers_and_nothing_else_is_printed(cli, one_task, command):
    options = ("-n", "0") if command == "verify" else ()
    document = strict(cli(command, str(one_task), "--json", *options).out)
    rows = document["rows"] if command == "compare" else document
    assert rows and len({tuple(row) for row in rows}) == 1
    if command != "verify":
        table = printed(cli(command, str(one_task), "--format", "csv"))
        assert [row["value"] for row in rows] == [
            None if value != value else pytest.approx(value) for value in table["value"]
        ]


def test_json_of_a_run_has_its_folder_its_cells_and_its_verdicts(cli, engine):
    line = "run -m sd,diversed -t mini-math -n 12 --json -o out"
    document = strict(cli(*line.split(), code=0).out)
    assert document["results"] == "out"
    assert [cell["method"] for cell in document["cells"]] == ["autoregressive", "sd", "diversed"]
    assert isinstance(document["cells"][0]["tokens_per_second"], float)
    sentences = [verdict["sentence"].partition(":")[0] for verdict in document["verdicts"]]
    assert sentences == ["sd", "diversed"]
    planned = strict(cli(*line.split(), "--dry-run").out)
    assert planned["samples"] == 36 and len(planned["cells"]) == 3


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_methods_are_compared_with_one_within_a_margin(cli, run, form, stored):
    options = "--margin 2 --draft-length 5 --legend"
    line = ("compare", str(run), "--against", "static w=0", *options.split())
    stored(cli(*line, "-m", "diversed", "--format", form, code=0).out)
    rows = strict(cli(*line, "--json").out)
    assert [row["method"] for row in rows] == ["static", "autoregressive", "sd", "diversed"]
    assert rows[-1]["sentence"].endswith("a gain is shown") and rows[0]["sentence"] is None
    table = printed(cli(*line, "--format", "csv"))
    assert list(table["n"]) == [30] * 4 and set(table["against"].dropna()) == {"static w=0"}


@pytest.mark.parametrize(
    ("diversed", "options", "times"),
    [
        ({}, [], 1),
        ({"rule": "lossy"}, [], 0),
        ({"url": "http://b"}, [], 0),
        ({"url": "http://b"}, ["--noise", "diversed"], 1),
        ({"url": "http://b", "version": "2"}, ["--noise", "diversed"], None),
        ({}, ["--noise", "other"], None),
    ],
)
def test_two_arms_with_one_address_and_rule_are_an_a_a_test(cli, run, diversed, options, times):
    told = {"sd": {"url": "http://a"}, "diversed": {"url": "http://a"} | diversed}
    (run / "environment.json").write_text(json.dumps({"servers": told}))
    servers = [{"name": "sd"}, {"name": "diversed", **diversed}]
    (run / "config.json").write_text(json.dumps({"servers": servers}))
    line = f"compare {run} --against sd --margin 2 --draft-length 3 --legend"
    shown = cli(*line.split(), *options)
    if times is None:
        assert shown.code == 2 and shown.err.startswith("error: --noise: ")
        return
    assert shown.code == 0, shown.err
    assert shown.out.count("diversed: the same server again:") == times
    assert shown.out.count("the same server again") == times


@pytest.mark.parametrize(
    ("suffix", "records", "commands"),
    [
        (".gz", True, ("compare {}", "verify {} --limit 0")),
        (".gz", False, ("verify {} --limit 0",)),
        (".bz2", True, ("table {} --json",)),
        (".xz", True, ("compare {}",)),
    ],
)
def test_a_run_may_be_packed(cli, one_task, tmp_path, suffix, records, commands):
    """All tables and checks are those of the plain run."""
    plain, packed = (Path(shutil.copytree(one_task, tmp_path / n / "small")) for n in ("a", "b"))
    if not records:
        for folder in (plain, packed):
            (folder / "samples.jsonl").unlink()
    files = ["samples.csv", *(["samples.jsonl"] if records else [])]
    for file in (packed / name for name in files):
        with PACKINGS[suffix](f"{file}{suffix}", "wb") as packed_file:
            packed_file.write(file.read_bytes())
        file.unlink()
    for line in commands:
        one, two = (cli(*line.format(folder).split()) for folder in (plain, packed))
        assert one.code == two.code == 0, two.err
        if not line.startswith("verify"):
            assert one.out.replace(str(plain), str(packed)) == two.out
    damaged = packed / f"samples.csv{suffix}"
    damaged.write_bytes(damaged.read_bytes()[:200])
    assert f"{damaged.name} is damaged" in cli("table", str(packed), code=2).err
