"""What ``specbench list`` and ``specbench docs`` print."""

import json

import pytest

from specbench.analysis.figures import FIGURES
from specbench.cli.lookup import pages
from specbench.decoding.heads.registry import bundled_heads
from specbench.runs.tables import dictionary
from specbench.tasks.metrics import METRICS


def test_columns_of_every_table_are_explained(cli, stored):
    rows = json.loads(cli("list", "columns", "--json").out)
    assert len(rows) == len(dictionary())
    stored(*(row for row in rows if row["name"] == "draft_seconds" and "samples" in row["tables"]))
    printed = cli("list", "columns").out
    assert all(f"{row['name']} " in printed for row in rows)
    lines = printed.splitlines()
    assert lines[0] == "samples, summary, rounds, positions, runs"
    assert "samples, rounds" in lines and "runs" in lines


def test_bundled_models_and_heads_are_listed_by_their_names(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = cli("list", "pairs").out
    assert "bundled" in shown and "specbench/pairs" not in shown
    assert max(map(len, shown.splitlines())) <= 60  # piped tables follow COLUMNS
    rows = json.loads(cli("list", "pairs", "--json").out)
    assert rows[0]["target"] == rows[0]["draft"] == "bundled"
    rows = json.loads(cli("list", "heads", "--json").out)
    assert [row["head"] for row in rows] == [*bundled_heads()]
    printed = cli("list", "heads").out
    assert all(f"{row['head']} " in printed and row["description"] for row in rows)
    how = "--pair python -m diversed --head python/python-line"
    planned = cli(*f"run --dry-run -t python-block -n 3 {how},python-line".split(), code=0)
    assert "python/python-line (" in planned.err
    assert "diversed:head=python/python-line" in cli("serve", "--dry-run", *how.split()).out


@pytest.mark.parametrize("kind", ["metrics", "figures"])
def test_metrics_and_figures_are_described(cli, kind):
    rows = json.loads(cli("list", kind, "--json").out)
    names = {"metrics": METRICS, "figures": FIGURES}[kind]
    assert [row["name"] for row in rows] == [*names]
    assert all(row["description"].endswith(".") for row in rows)
    assert rows[0]["description"].split()[0] in cli("list", kind).out


def test_every_page_is_listed_with_its_question_and_printed_as_it_is_written(cli):
    result = cli("docs", code=0)
    for name, path in pages().items():
        question = path.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2]
        (line,) = (line for line in result.out.splitlines() if line.startswith(f"{name} "))
        assert line.endswith(question)
    assert {"methods", "tasks", "training", "results"} <= set(pages())
    assert cli("docs", "tasks").out == pages()["tasks"].read_text(encoding="utf-8")


def test_pages_of_an_installed_package_need_no_clone(monkeypatch, tmp_path):
    import specbench

    package = tmp_path / "specbench"
    (package / "docs").mkdir(parents=True)
    (package / "docs" / "heads.md").write_text("# Heads: what?\n")
    monkeypatch.setattr(specbench, "__file__", str(package / "__init__.py"))
    assert set(pages()) == {"heads", "tasks"}
    for name in ("results/README.md",):  # as in a wheel
        (package / "docs" / name).parent.mkdir(exist_ok=True)
        (package / "docs" / name).write_text("# Page: which?\n")
    assert set(pages()) == {"heads", "tasks", "results"}
