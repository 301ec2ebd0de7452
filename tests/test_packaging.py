import re
import shutil
import subprocess
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from specbench.cli.app import main
from specbench.cli.lookup import pages

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCS = ROOT / "specbench" / "docs"
PINS = (ROOT / "constraints.txt").read_text().split()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_has_a_range_and_an_exact_pin_for_any_build():
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in PINS)
    assert "torch==2.13.0" in PINS
    project = PROJECT["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {canonical(pin.split("==")[0]) for pin in PINS}
    for requirement in needed:
        name = re.match(r"[\w.-]+", requirement)
        assert name
        assert canonical(name[0]) in pinned
        # Of llama.cpp one build is supported, since its structures change.
        exact = requirement in PINS and name[0] == "xllamacpp"
        assert exact or re.search(r">=[\d.]+,<[\d.]+$", requirement.partition(";")[0])


def test_the_wheel_carries_the_tasks_and_the_command():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    data = {"tasks": "specbench/tasks/definitions", "results": "specbench/docs/results"}
    assert wheel["sources"] == data
    # The page that stands elsewhere in a clone; that of the tasks is in their folder.
    elsewhere = [p for n, p in pages().items() if not p.is_relative_to(DOCS) and n != "tasks"]
    included = {str(path.relative_to(ROOT)) for path in elsewhere}
    assert {*wheel["only-include"]} == {"specbench", "tasks", *included} and len(included) == 1
    assert list((ROOT / "tasks").glob("*.toml"))
    # What made the bundled data and weights is not in it.
    kept_out = ["tasks/*.py", "tasks/drafters", "tasks/measure", "tasks/pretraining"]
    assert wheel["exclude"] == kept_out
    commands = entry_points(group="console_scripts", name="specbench")
    assert {command.load() for command in commands} == {main}


def test_nothing_asks_the_package_index_for_specbench():
    """``specbench`` on the package index is a different project."""
    assert PROJECT["project"]["name"] == "specbench-toolkit"
    sources = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "specbench").rglob("*.py")]
    for path in sources:
        assert not re.search(r"pip install\s+\S*specbench(?!-toolkit)", path.read_text()), path


@pytest.fixture
def checkout(tmp_path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-C", str(folder), *arguments], capture_output=True, text=True)


def test_make_lists_its_targets_and_uses_the_first_suitable_python(checkout):
    shown = make(checkout).stdout
    for target in ("run", "test", "lint", "help"):
        assert re.search(rf"^{target} +\w", shown, re.MULTILINE)
    for name, code in (("old", "exit 1"), ("new", 'echo "$0 $*" >> used; exit 0')):
        (checkout / name).write_text(f"#!/bin/sh\n{code}\n")
        (checkout / name).chmod(0o755)
    done = make(checkout, "run", "CANDIDATES=./old no-such-python")
    assert done.returncode != 0
    assert "specbench needs Python 3.11 or newer" in done.stderr
    assert not (checkout / ".venv").exists()
    make(checkout, "run", "CANDIDATES=missing ./old ./new")
    assert "./new -m venv .venv" in (checkout / "used").read_text()
