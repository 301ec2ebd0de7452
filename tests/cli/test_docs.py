"""``specbench docs``: every page can be listed and printed."""

from pathlib import Path

from specbench.cli.lookup import pages

from .conftest import Cli


def test_every_page_is_listed_with_its_question(cli: Cli) -> None:
    result = cli("docs")
    assert result.code == 0
    for name, path in pages().items():
        question = path.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2]
        (line,) = (line for line in result.out.splitlines() if line.startswith(f"{name} "))
        assert line.endswith(question)
    assert {"methods", "tasks", "training", "statistics", "results", "findings"} <= set(pages())


def test_a_page_is_printed_as_it_is_written(cli: Cli) -> None:
    assert cli("docs", "tasks").out == pages()["tasks"].read_text(encoding="utf-8")
    result = cli("docs", "trainig")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: unknown page `trainig`; did you mean `training`?\n"


def test_pages_of_an_installed_package_need_no_clone(monkeypatch, tmp_path: Path) -> None:
    import specbench

    package = tmp_path / "specbench"
    (package / "docs").mkdir(parents=True)
    (package / "docs" / "heads.md").write_text("# Heads: what?\n")
    monkeypatch.setattr(specbench, "__file__", str(package / "__init__.py"))
    assert set(pages()) == {"heads", "tasks"}
