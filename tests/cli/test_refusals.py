"""Refusals come first: before any library that takes seconds to import, and without traces."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.experiment.store import lock

HEAVY = {
    *("torch", "transformers", "pandas", "pyarrow", "numpy", "scipy", "matplotlib", "datasets"),
    *("ray", "huggingface_hub", "tokenizers"),
}
# Command lines, each with text that its error message must contain. No file exists except full/x,
# used/, which another process writes, and done/, a run.
REFUSED = {
    "run --device cuda": "no device cuda here",
    "run --device cuda:1 -t gsm8k": "no device cuda:1 here",
    "run --device gpu": "no device gpu here",
    "run --engine graph": "needs one CUDA device",
    "run --engine llamacpp": "runs GGUF files only",
    "run --dtype half": "--dtype",
    "run --target a/b --draft ./c": "no model folder ./c",
    "run --target a/b --draft prompt-lookup": "give --drafter prompt-lookup",
    "check --draft prompt-lookup:2-5 --pair mini": "give --drafter prompt-lookup:2-5",
    "run --draft greedy": "give --drafter greedy",
    "run --target a.gguf --draft b.gguf": "no file a.gguf",
    "run -m sdd": "did you mean `sd`?",
    "run -m static --weight 0.7": "--set weight=VALUE",
    "table none --lenience 0.2": "--set lenience=VALUE",
    "run -m sd --wait 0.2": "No such option",
    "run -t mini-maths": "did you mean `mini-math`?",
    "run --drafter models": "unknown drafter `models`",
    "run -t mini-math -m diversed --drafter eagle3": "its linear head cannot read the states",
    "check -t mini-math -m diversed --drafter eagle3": "its linear head cannot read the states",
    "run -t mini-math -m sd -o full": "full is not empty",
    "run -t mini-math -m sd -o used": "another process is writing used",
    "run -t mini-math -m sd -o full --workers 2": "full is not empty",
    "run -t mini-math -m sd -o /proc/none": "cannot write /proc/none",
    "sweep-weights -t mini-math -o full": "full is not empty",
    "sweep-weights --device cuda": "no device cuda here",
    "sweep-weights --pair mini,mimi": "did you mean `mini`?",
    "sweep-weights --engine graph": "needs one CUDA device",
    "bench --engine eager,graph": "needs one CUDA device",
    "bench --device cuda": "no device cuda here",
    "bench -o full": "full is not an empty folder",
    "check -m sd -t mini-math --device cuda": "no device cuda here",
    "check -m sd -t mini-math -o full": "full is not an empty folder",
    "audit --decoder transformers -t mini-math --device cuda": "no device cuda here",
    "audit --decoder transformers -t mini-math -o full": "full is not an empty folder",
    "train -t mini-math --device cuda": "no device cuda here",
    "finetune-draft -t mini-math --device cuda": "no device cuda here",
    "table none": "no folder",
    "table none --by position": "no folder",
    "compare none": "no folder",
    "table none --frame x.csv": "no folder",
    "table full --frame none/x.csv": "cannot write none/x.csv",
    "report none": "no folder",
    "trace none": "none",
    "trace full -o none/x.svg": "cannot write none/x.svg",
    "plot pareto none": "no folder none",
    "plot paretto none": "unknown figure `paretto`",
    "plot training none": "no folder none",
    "verify none": "none is not a run folder",
    "score none": "none is not a run folder",
    "table done -m sdd": "these runs have no method sdd: did you mean `sd`?",
    "table done --by position -t maths": "these runs have no task maths",
    "compare done -m sdd": "these runs have no method sdd",
    "table done --frame x.csv -m sdd": "these runs have no method sdd",
    "report done -m sdd": "these runs have no method sdd",
    "trace done -m sdd": "these runs have no method sdd",
    "plot pareto done -m sdd": "these runs have no method sdd",
    "verify done -m sdd": "these runs have no method sdd",
}
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


def test_a_refusal_imports_nothing_heavy(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In one new process; the first line that imports something heavy fails."""
    installed = tmp_path_factory.mktemp("installed") / "ray.py"  # also where Ray is missing
    installed.touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "config.json").write_text(json.dumps(CONFIG))
    for name in DATA:
        (tmp_path / "done" / name).touch()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(installed.parent), *filter(None, sys.path)])
    }
    held = lock(tmp_path / "used")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *REFUSED],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    held.release()
    assert done.returncode == 0, done.stderr
    answers = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert [line for line, *_ in answers] == [*REFUSED]
    for line, code, error, heavy in answers:
        assert (line, code, heavy) == (line, 2, [])
        assert REFUSED[line] in error and error.count("error: ") == 1
    left = {path.name for path in tmp_path.rglob("*")}
    assert left == {"full", "x", "used", ".lock", "done", "config.json", *DATA}
