"""Killed and interrupted runs: messages, remaining files, and resuming."""

import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.cli.app import main
from specbench.runs.frames import read_samples
from specbench.runs.model import SampleRecord
from tasks.measure.kill_and_resume import untimed

RUN = ("run", "-m", "autoregressive", "-t", "mini-math", "-n", "4", "--output", "r")


def started(*arguments: str) -> int:
    """Run a command in a fork of this process, with its fake engine; return the process id."""
    child = os.fork()
    if child == 0:
        try:
            main(arguments)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(70)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_run_killed_at_any_moment_resumes_to_the_same_result(cli, engine):
    """A short form of ``tasks/measure/kill_and_resume.py`` with a fake engine."""
    plan = ("run", "-m", "sd,diversed", "-t", "mini-math", "-n", "8", "--no-progress", "-o")
    assert cli(*plan, "undisturbed/run").code == 0
    engine.on_call = lambda number: time.sleep(0.01)
    moments, codes = random.Random(3), []
    for folder in ("killed-0/run", "killed-1/run"):
        for _ in range(3):
            child = started(*plan, folder)
            time.sleep(moments.uniform(0, 0.3))
            os.kill(child, signal.SIGKILL)
            codes.append(ended(child))
        assert ended(started(*plan, folder)) == 0
        for table in ("samples.csv", "summary.csv"):
            files = (Path(run, table) for run in ("undisturbed/run", folder))
            pd.testing.assert_frame_equal(*(untimed(pd.read_csv(file)) for file in files))
        assert len(pd.read_csv(f"{folder}/samples.csv")) == 24
    assert set(codes) <= {0, -signal.SIGKILL} and -signal.SIGKILL in codes


def press(engine: Any, at: int, times: int = 1) -> None:
    def on_call(number: int) -> None:
        for _ in range(times if number == at else 0):
            os.kill(os.getpid(), signal.SIGINT)

    engine.on_call = on_call


def samples(folder: Path) -> int:
    return len((folder / "r" / "samples.csv").read_text().splitlines()) - 1


def test_ctrl_c_drops_the_text_that_is_decoded_and_the_same_command_resumes(cli, engine, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    press(engine, at=2)
    assert "1 of 4 samples are in r" in cli(*RUN, code=130).err
    assert signal.getsignal(signal.SIGINT) is before
    assert samples(tmp_path) == 1
    assert "1 of 4 samples" in cli(*RUN, code=0).err
    assert samples(tmp_path) == 4


class _Finalized:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    "swallow",
    [ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT)), _Finalized],
    ids=["callback", "finalizer"],
)
def test_ctrl_c_counts_where_python_ignores_exceptions(cli, engine, tmp_path, swallow):
    def on_call(number):
        if number == 2:
            swallow()
            time.sleep(5)

    engine.on_call = on_call
    hook = sys.unraisablehook
    stopped = cli(*RUN)
    assert (stopped.code, "Traceback" in stopped.err) == (130, False)
    assert stopped.err.count("press Ctrl-C again") == 1
    assert samples(tmp_path) == 1
    assert sys.unraisablehook is hook


def test_ctrl_c_while_a_record_is_written_stops_behind_it(cli, engine, tmp_path, monkeypatch):
    def line(record):
        if not done:
            done.append(os.kill(os.getpid(), signal.SIGINT))
        return written(record)

    done, written = [], SampleRecord.line
    monkeypatch.setattr(SampleRecord, "line", line)
    assert cli(*RUN).code == 130
    assert samples(tmp_path) == 1


def test_an_interrupt_that_a_library_swallows_arrives_a_second_later(cli, engine, tmp_path):
    def on_call(number):
        if number == 2:
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
            pytest.fail("it did not arrive")

    engine.on_call = on_call
    assert cli(*RUN).code == 130
    assert samples(tmp_path) == 1


def test_ctrl_c_while_the_models_are_loaded_stops_at_once(cli, engine, tmp_path, monkeypatch):
    def load(*_):
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the models are still loaded")

    monkeypatch.setattr(engine, "check_memory", load)
    stopped = cli(*RUN)
    assert (stopped.code, "no sample was finished" in stopped.err) == (130, True)
    assert not (tmp_path / "r").exists()


def test_batches_are_stopped_at_four_moments_and_resumed(cli, engine, tmp_path):
    """Cells without a whole block stand beside whole ones, and ids of numbers beside names."""
    tasks = f"mini-math,gsm8k,mbpp --data {Path(__file__).parents[1] / 'data'}"
    line = f"run -m autoregressive,sd,lossy -t {tasks} -n 5 --batch-size 4 --no-progress --output"
    assert cli(*line.split(), "whole/r").code == 0
    calls, random_call = len(engine.calls), random.Random(4).randrange
    for _ in range(4):
        press(engine, at=len(engine.calls) + random_call(calls // 2))
        assert cli(*line.split(), "r").code in (0, 130)
    engine.on_call = lambda number: None
    assert cli(*line.split(), "r").code == 0
    whole, resumed = (untimed(pd.read_csv(f"{run}/samples.csv")) for run in ("whole/r", "r"))
    pd.testing.assert_frame_equal(resumed, whole)


STRANGE_IDS = ["007", "1e5", "12.0", "true", "NA", "9" * 40, 7, 2.5, False, 10**40 - 7, "a\rb"]


def test_ids_are_text_from_the_file_to_the_tables(cli, engine, tmp_path):
    names = [*map(json.dumps, STRANGE_IDS), "1e6", "1E400", "-0.0"]
    rows = [f'{{"id": {name}, "prompt": "{"p" * n}"}}' for n, name in enumerate(names, 1)]
    (tmp_path / "p.jsonl").write_text("\n".join(rows))
    run = ("run", "-m", "autoregressive,sd", "--prompts", "p.jsonl", "--batch-size", "4", "-o", "r")
    press(engine, at=25)
    assert cli(*run).code == 130
    engine.on_call = lambda number: None
    assert cli(*run).code == 0
    texts = [name.strip('"').replace("\\r", "\r") for name in names]
    assert list(read_samples("r")["sample_id"].unique()) == texts
    assert cli("table", "r").code == 0


def test_a_second_ctrl_c_stops_at_once_and_a_third_prints_no_traceback(cli, engine, monkeypatch):
    class Interrupted(StringIO):
        """A terminal on which Ctrl-C is pressed once the last line is printed."""

        def write(self, text):
            count = super().write(text)
            if text == "\n" and "interrupted:" in self.getvalue():
                os.kill(os.getpid(), signal.SIGINT)
            return count

    press(engine, at=2, times=2)
    terminal = Interrupted()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli(*RUN).code == 130
    *_, error = terminal.getvalue().splitlines()
    assert error.startswith("interrupted: ") and "1 of 4 samples are in r" in error


def test_ctrl_c_at_the_very_end_is_no_traceback():
    code = (
        "import atexit, os, signal, sys; sys.argv = ['specbench', '--version']; "
        "atexit.register(os.kill, os.getpid(), signal.SIGINT); "
        "from specbench.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_dry_runs_print_the_plan_or_steps_and_memory_and_write_nothing(cli, tmp_path):
    line = "run -m autoregressive,sd -t mini-math -n 30 --draft-length 2,4 --dry-run"
    result = cli(*line.split(), code=0)
    assert not list(tmp_path.iterdir())
    assert re.search(r"90 samples; needs 0\.0\d GiB of \d+\.\d free; engine", result.out)
    result = cli("train", "--pair", "mini", "-t", "mini-math", "--steps", "3", "--dry-run")
    assert result.code == 0 and not list(tmp_path.iterdir())
    plan, memory = result.out.splitlines()
    assert "3 steps of 16 prompts with 4 texts each (192 texts" in plan
    assert "reward accuracy; results/heads/mini/mini-math" in plan.replace("\\", "/")
    assert re.match(r"needs \d\.\d\d GiB of \d+\.\d free$", memory)


def test_a_limit_beyond_the_prompts_is_noted(cli, tmp_path):
    (tmp_path / "q.txt").write_text("one\ntwo\nthree\n")
    for limit, noted in (("3", False), ("6", True)):
        err = cli("run", "-m", "sd", "--prompts", "q.txt", "--limit", limit, "--dry-run").err
        assert ("q has 3 examples, fewer than --limit 6" in err) == noted
