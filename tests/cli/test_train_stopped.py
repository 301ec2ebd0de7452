"""A training that is stopped, killed or cannot write, and what ``--resume`` makes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.heads.registry import WEIGHTS, is_head
from specbench.training import verifier
from specbench.training.folder import CHECKPOINT, LOG

from .training import HEAD, TINY, errors, logged_steps, rewards

Cli = Callable[..., Any]


@pytest.mark.parametrize("output", [[], ["--output", "elsewhere"]])
def test_after_ctrl_c_it_goes_on_with_resume(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch, output: list[str]
) -> None:
    monkeypatch.setattr(verifier, "reward", rewards(0.5, KeyboardInterrupt()))
    folder = Path("elsewhere/mini-headline") if output else HEAD
    stopped = cli(*TINY, *output)
    assert stopped.code == 130
    (told,) = errors(stopped)
    assert f"every finished step of {folder} is kept" in told
    assert "--resume" in told
    assert logged_steps(folder) == ["1"]
    assert cli(*TINY, *output, "--resume").code == 0
    assert is_head(folder)
    assert logged_steps(folder) == ["1", "2", "3"]


def test_resume_passes_over_finished_heads_and_begins_new_ones(cli: Cli, models: list[Any]) -> None:
    assert cli(*TINY).code == 0
    weights = (HEAD / WEIGHTS).read_bytes()
    result = cli(*TINY, "-t", "mini-news", "--resume")
    assert result.code == 0
    assert f"note: {HEAD} is trained already\n" in result.err
    assert (HEAD / WEIGHTS).read_bytes() == weights
    assert is_head(HEAD.with_name("mini-news"))
    again = cli(*TINY, "--resume")
    assert again.code == 0
    assert len(models) == 2  # nothing was left to load them for
    assert "mini-headline" in again.out


def test_resume_with_other_values_is_refused_before_any_head_is_trained(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "reward", rewards(0.5, KeyboardInterrupt()))
        assert cli(*TINY).code == 130
    arguments = [part if part != "mini-headline" else "mini-code,mini-headline" for part in TINY]
    result = cli(*arguments, "--kl-weight", "0.5", "--resume")
    assert result.code == 2
    (told,) = result.err.splitlines()
    assert "kl_weight 0.0 instead of 0.5" in told
    assert not HEAD.with_name("mini-code").exists()
    assert logged_steps(HEAD) == ["1"]


def test_a_loss_that_is_no_number_is_one_line(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "reward", rewards(0.5, float("nan")))
    result = cli(*TINY, "--no-progress")
    assert result.code == 1
    (told,) = result.err.splitlines()
    assert "is nan at step 2" in told
    assert (HEAD / CHECKPOINT).exists()
    assert result.out == ""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_killed_process_goes_on_to_the_very_same_head(
    cli: Cli, models: list[Any], tmp_path: Path
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "specbench", *TINY, "-o", "killed"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as process:
        begun = tmp_path / "killed/mini-headline" / CHECKPOINT
        deadline = time.monotonic() + 120
        while not begun.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert begun.exists()
    assert cli(*TINY, "-o", "killed", "--resume").code == 0
    assert cli(*TINY, "-o", "whole").code == 0
    killed, whole = (Path(name) / "mini-headline" for name in ("killed", "whole"))
    assert (killed / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    rows = [
        [line.rsplit(",", 2)[0] for line in (folder / LOG).read_text().splitlines()]
        for folder in (killed, whole)
    ]
    assert rows[0] == rows[1]
    assert sorted(p.name for p in killed.iterdir()) == sorted(p.name for p in whole.iterdir())


def test_tensorboard_gets_every_step_once_even_after_a_stop(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with monkeypatch.context() as patch:
        patch.setattr(verifier, "reward", rewards(0.5, 0.25, KeyboardInterrupt()))
        assert cli(*TINY, "--log-to", "logs").code == 130
        assert cli(*TINY, "--log-to", "logs", "--resume").code == 0
    events = EventAccumulator("logs/mini/mini-headline")
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(verifier.Progress._fields) - {"step"}
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 0.5), (2, 0.25), (3, 0.5)]


def test_a_log_that_cannot_be_written_is_one_line(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "flush", full)
    result = cli(*TINY, "--log-to", "logs", "--no-progress")
    assert result.code == 1
    (told,) = result.err.splitlines()
    assert "cannot write logs/mini/mini-headline (No space left on device)" in told
    assert (HEAD / CHECKPOINT).exists()
