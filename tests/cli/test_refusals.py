"""``refused.tsv``: command lines that end with exit code 2 and a sentence that has these words.

An ``early`` one is refused before any library that takes seconds to import; in its folder is
nothing but full/x, used/, which another process writes, and done/, a run. A ``late`` one finds
what ``folders`` makes, RUN, a finished run, and URL, a server.
"""

import ast
import csv
import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.decoding.heads.registry import WEIGHTS
from specbench.experiment.store import lock
from specbench.tasks.task import load_task
from specbench.training.recipe import CHECKPOINT

from ..serving.fake import Fake, serving

HEAVY = {
    *("torch", "transformers", "pandas", "pyarrow", "numpy", "scipy", "matplotlib", "datasets"),
    *("ray", "huggingface_hub", "tokenizers"),
}
TABLE = Path(__file__).with_name("refused.tsv").read_text(encoding="utf-8").splitlines()
ROWS = list(csv.DictReader(TABLE, delimiter="\t", quoting=csv.QUOTE_NONE))
EARLY, LATE = (
    {row["line"]: row["says"] for row in ROWS if row["when"] == when} for when in ("early", "late")
)
CONFIG = {"tasks": [{"name": "math", "cells": [{"method": "sd", "draft_length": 5}]}]}
DATA = {"samples.csv", "summary.csv", "samples.jsonl"}
PROGRAM = f"""
import contextlib, io, sys
from specbench.cli.app import main
from specbench.engine import choice

choice.has_gpu_driver = lambda: False
for line in sys.argv[1:]:
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            main(line.split())
        except SystemExit as end:
            code = end.code
    print([line, code, error.getvalue(), sorted({HEAVY} & sys.modules.keys())])
"""


def test_a_refusal_imports_nothing_heavy(tmp_path, tmp_path_factory):
    """In one new process; the first line that imports something heavy fails."""
    installed = tmp_path_factory.mktemp("installed") / "ray.py"  # also where Ray is missing
    installed.touch()
    for name in ("full", "used", "done"):
        (tmp_path / name).mkdir()
    for name in ("full/x", *(f"done/{name}" for name in DATA)):
        (tmp_path / name).touch()
    (tmp_path / "done" / "config.json").write_text(json.dumps(CONFIG))
    paths = os.pathsep.join([str(installed.parent), *filter(None, sys.path)])
    with lock(tmp_path / "used"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *EARLY],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": paths},
        )
    assert done.returncode == 0, done.stderr
    answers = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert [line for line, *_ in answers] == [*EARLY]
    for line, code, error, heavy in answers:
        assert (line, code, heavy) == (line, 2, [])
        assert EARLY[line] in error and error.count("error: ") == 1
    left = {path.name for path in tmp_path.rglob("*")}
    assert left == {"full", "x", "used", ".lock", "done", "config.json", *DATA}


@pytest.fixture(scope="module")
def url():
    with serving(Fake()) as address:
        yield address


@pytest.fixture
def folders(tmp_path, finished) -> None:
    """Make p.txt with a prompt, few.csv with costs, wrong.py with a policy, rules.py and mine.py
    with rules of one name, and heads, tasks and folders of all kinds.

    full, taken and begun are folders with a file, a head and an unfinished training.
    """
    (tmp_path / "p.txt").write_text("a prompt\n")
    costs = ("batch_size,draft_length,round_seconds", "1,0,1", "1,12,2", "2,0,1", "2,12,2")
    (tmp_path / "few.csv").write_text("\n".join(costs))
    (tmp_path / "wrong.py").write_text(
        "from specbench.decoding.drafters.policies import policy\n"
        "@policy(predictable=False)\ndef drops(rounds):\n    return rounds.most\n"
    )
    for name in ("rules.py", "mine.py"):
        (tmp_path / name).write_text("def geometric(at, x, *, share=0.5): pass\n")
    heads = [f"taken/mini-news/{file}" for file in (WEIGHTS, "head.json")]
    for name in (*heads, f"begun/mini-news/{CHECKPOINT}", "empty/summary.csv", "full/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tables").mkdir()
    shutil.copy(Path(finished) / "samples.csv", tmp_path / "tables")
    shutil.copy(load_task("mini-math").path, tmp_path / "copy.toml")
    task = load_task("mini-math").path.read_text().replace('"mini-math"', '"unscored"', 1)
    (tmp_path / "unscored.toml").write_text(task.replace('metrics = ["accuracy"]', ""))


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("line", LATE)
def test_bad_input_is_refused_in_one_line(cli, engine, models, tmp_path, finished, url, line):
    before = sorted(tmp_path.rglob("*"))
    result = cli(*shlex.split(line.replace("RUN", finished).replace("URL", url)))
    assert (result.code, result.out) == (2, "")
    (error,) = [text for text in result.err.splitlines() if not text.startswith("note: ")]
    assert error.startswith("error: ")
    assert LATE[line] in error
    assert sorted(tmp_path.rglob("*")) == before
    assert engine.calls == models == []


def test_an_unexpected_failure_is_one_line(cli, monkeypatch):
    def broken():
        raise ZeroDivisionError("by nothing")

    from specbench.cli import lookup as module
    from specbench.cli.app import main

    monkeypatch.setitem(module.LISTS, "methods", broken)
    result = cli("list", "methods", code=1)
    assert "ZeroDivisionError: by nothing" in result.err and result.err.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "list", "methods"])

    def full():
        raise OSError(errno.ENOSPC, "no space", "a file")

    monkeypatch.setitem(module.LISTS, "methods", full)
    assert cli("list", "methods", code=2).err == "error: a file: no space\n"


@pytest.mark.parametrize("line", ["run --output locked/r", "train"])
def test_a_folder_without_write_permission_is_refused(cli, engine, models, monkeypatch, line):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = cli(*line.split())
    assert (result.code, result.err.count("error: ")) == (2, 1)
    assert ("locked/r" if "locked" in line else "results/heads/mini/mini-code") in result.err
    assert engine.calls == models == []


def test_a_missing_extra_is_refused_with_its_install_command(cli, models, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = "run -m sd -n 2 -t mini-math --workers 2"
    result = cli(*line.split(), code=2)
    assert "pip install '.[ray]'" in result.err
    assert models == [] and not list(Path().iterdir())
