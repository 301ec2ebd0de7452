"""A run that is killed or interrupted: what it says and what is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..benchmarks.kill_and_resume import survive

Cli = Callable[..., Any]
RUN = ("run", "-m", "sd", "-t", "mini-math", "-n", "4", "--output", "r")


def test_killed_at_random_moments_a_run_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """The short form of ``tests/benchmarks/kill_and_resume.py``."""
    plan = ["run", "-m", "sd,diversed", "-t", "mini-math", "-n", "12", "--no-progress"]
    assert survive(tmp_path, 2, 3, plan) == (2, 24)


def interrupting(engine: Any, at: int, times: int = 1) -> None:
    """Let the user press Ctrl-C while a text is decoded."""
    decode_all = engine.decode_all

    def decode(*args: Any, **named: Any) -> Any:
        for found in decode_all(*args, **named):
            if len(engine.calls) - 1 == at:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            yield found

    from specbench.experiment import decoder

    decoder.decode_all = decode  # the fixture of the fake engine puts it back


def test_ctrl_c_finishes_the_sample_and_says_how_to_go_on(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupting(engine, at=2)
    result = cli(*RUN)
    assert result.code == 130
    assert "note: stopping after this sample; Ctrl-C again stops at once" in result.err
    assert "interrupted: 2 of 4 samples are in r; the same command goes on from there" in result.err
    assert signal.getsignal(signal.SIGINT) is before
    assert len((tmp_path / "r" / "samples.csv").read_text().splitlines()) == 1 + 2

    result = cli(*RUN)
    assert result.code == 0
    assert "note: going on with r: 2 of 4 samples are there" in result.err
    assert len((tmp_path / "r" / "samples.csv").read_text().splitlines()) == 1 + 4


def test_a_second_ctrl_c_stops_at_once(cli: Cli, engine: Any, tmp_path: Path) -> None:
    interrupting(engine, at=2, times=2)
    result = cli(*RUN)
    assert result.code == 130
    assert "1 of 4 samples are in r" in result.err


def test_a_dry_run_prints_the_plan_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        *("run", "-m", "autoregressive,sd", "-t", "mini-math", "-n", "30"),
        *("--draft-length", "2,4", "--dry-run"),
    )
    assert result.code == 0
    assert not list(tmp_path.iterdir())
    assert "ms/token" in result.out
    assert result.out.count("│ sd") == 2
    assert "90 samples; " in result.out and " GiB free" in result.out
    assert "engine eager; at most 0:" in result.out


def test_ctrl_c_while_another_is_dealt_with_is_no_traceback(
    cli: Cli, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.cli import app

    interrupting(engine, at=2, times=2)
    pressed: list[str] = []

    def say(message: str) -> None:
        pressed.append(message)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(app, "_say", say)
    assert cli(*RUN).code == 130
    assert len(pressed) == 1


def test_ctrl_c_at_the_very_end_is_no_traceback(tmp_path: Path) -> None:
    code = (
        "import atexit, os, signal, sys; sys.argv = ['specbench', 'list', 'methods']; "
        "atexit.register(os.kill, os.getpid(), signal.SIGINT); "
        "from specbench.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
