import json
import subprocess
from pathlib import Path

import pytest

from specbench.experiment.environment import (
    UNKNOWN,
    cpu_model,
    describe_environment,
    git_state,
)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_the_environment_is_plain_data_with_the_versions() -> None:
    import torch

    found = describe_environment()
    assert json.loads(json.dumps(found)) == found
    assert found["packages"]["torch"] == torch.__version__
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["command"][0] == "specbench"


def test_what_cannot_be_found_out_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = describe_environment()
    assert found["git"] == {"commit": UNKNOWN, "dirty": UNKNOWN}


def test_the_cpu_is_named_as_the_system_names_it(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert cpu_model(cpuinfo) == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "missing")


def test_git_state_is_that_of_the_code(tmp_path: Path) -> None:
    package, tasks = tmp_path / "package", tmp_path / "tasks"
    for folder in (package, tasks):
        folder.mkdir()
        (folder / "__init__.py").touch()
    git(tmp_path, "init", "--quiet")
    assert git_state(package)["commit"] == UNKNOWN  # not tracked: some other project's repository
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    state = git_state(package)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "results.csv").touch()  # not code
    assert git_state(package)["dirty"] is False
    (tasks / "__init__.py").write_text("changed")
    assert git_state(package)["dirty"] is True
