"""The orchestration of the hour on a GPU, with short commands in place of its parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import gpu_hour
from .gpu_hour import Part, hour, parts

ROOT = Path(__file__).parents[2]


def part(name: str, code: str) -> Part:
    """A part that runs Python code."""
    return Part(name, f"question of {name}", [sys.executable, "-c", code])


def records(folder: Path) -> dict[str, str]:
    return {
        file.stem: json.loads(file.read_text())["result"]
        for file in folder.glob("*.json")
        if file.name != gpu_hour.ENVIRONMENT
    }


def test_a_failing_and_a_slow_part_do_not_stop_the_others(tmp_path: Path) -> None:
    child = "import subprocess; subprocess.run(['sleep', '600'])"
    known = [
        part("broken", "raise SystemExit('no such thing')"),
        part("slow", f"print('begun', flush=True); {child}"),
        Part("missing", "question", ["no-such-program", "--option"]),
        part("bench", "print('a table')"),
        part("targets", "print('the targets')"),
        part("later", ""),
    ]
    assert not hour(known[:5], known, tmp_path, limit=5)
    assert records(tmp_path) == {
        "broken": "failed (exit code 1)",
        "slow": "stopped after 0.0833 minutes",
        "missing": "skipped",
        "bench": "ok",
        "targets": "ok",
    }
    page = (tmp_path / "page.md").read_text()
    machine = json.loads((tmp_path / "environment.json").read_text())
    assert page.startswith(f"# specbench on {machine['cpu']['model']}\n")
    assert f"torch {machine['packages']['torch']}" in page
    assert "| `missing` | question | skipped: no-such-program is not installed | 0 |" in page
    assert "| `later` | question of later | not run |  |" in page
    told = ["the targets", "no such thing", "begun", "a table"]  # the targets first
    assert sorted(told, key=page.index) == told


def test_only_parts_that_succeeded_are_skipped(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    flaky = f"import pathlib; p = pathlib.Path({str(marker)!r}); ok = p.exists(); p.touch(); "
    known = [
        part("good", "import uuid; print(uuid.uuid4())"),
        part("flaky", f"{flaky} raise SystemExit(not ok)"),
    ]
    folder = tmp_path / "out"
    assert not hour(known, known, folder)
    first = (folder / "good.txt").read_text()
    assert hour(known, known, folder)
    assert (folder / "good.txt").read_text() == first
    assert records(folder) == {"good": "ok", "flaky": "ok"}


def test_a_killed_hour_resumes(tmp_path: Path) -> None:
    """The second part kills the orchestration when it first runs."""
    marker = tmp_path / "marker"
    program = f"""
import os, pathlib, signal, sys
from tests.benchmarks.test_gpu_hour import hour, part
kill = '''
import os, pathlib, signal
marker = pathlib.Path({str(marker)!r})
if not marker.exists():
    marker.touch()
    os.kill(os.getppid(), signal.SIGKILL)
'''
known = [part("first", "import uuid; print(uuid.uuid4())"), part("second", kill)]
hour(known, known, pathlib.Path({str(tmp_path / "out")!r}))
"""
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    codes, texts = [], []
    for _ in range(2):
        codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
        texts.append((tmp_path / "out" / "first.txt").read_text())
    assert codes[0] < 0 == codes[1]
    assert texts[0] == texts[1]
    assert records(tmp_path / "out") == {"first": "ok", "second": "ok"}


def test_the_parts_are_commands_that_exist(tmp_path: Path) -> None:
    known = parts(tmp_path)
    names = [part.name for part in known]
    assert len(set(names)) == len(names)
    kinds = ("bench", "eager", "compile")
    assert {f"{kind}-{pair}" for kind in kinds for pair in gpu_hour.PAIRS} < set(names)
    assert names.index("bench-llama") + 1 == names.index("targets")
    for part in known:
        for word in part.command:
            if word.endswith(".py"):
                assert (ROOT / word.removeprefix("--ignore=")).is_file(), word
        assert "cuda" in part.command or "gpu" in part.command or part.name == "targets"


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_hour.py", "nothing", "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="2"):
        gpu_hour.main()
    assert not (tmp_path / "out").exists()
