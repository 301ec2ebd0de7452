"""Runs that another process is decoding."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from specbench.errors import UsageError
from specbench.runs.records import lacks
from specbench.runs.run import run_folders, unfinished
from specbench.runs.running import LOCK, still_running

PROGRESS = {"state": "running", "samples": 0, "failed": 0}


@pytest.fixture
def run(tmp_path) -> Iterator[Path]:
    """A run that is being written: 21 of 180 samples, and a half of the next one."""
    folder = tmp_path / "results" / "r"
    folder.mkdir(parents=True)
    config = {"samples_planned": 180, "progress": PROGRESS, "tasks": []}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "samples.jsonl").write_text('{"a": 1}\n' * 21 + '{"a"')
    with FileLock(folder / LOCK):
        yield folder


def test_a_run_that_is_being_written_says_how_far_it_is(run):
    state = "still running, 21 of 180 samples"
    assert still_running(run) == unfinished(run) == state
    assert lacks(run, "samples.csv") == f"{run} is {state}: wait until it ends"
    with pytest.raises(UsageError, match=state):
        run_folders([run], "samples.csv")


def test_a_run_that_nobody_writes_is_unfinished(run):
    (run / LOCK).unlink()
    (run / LOCK).touch()
    assert still_running(run) is None
    assert unfinished(run) == "running, 0 of 180 samples"
    assert "is unfinished: repeat its command" in lacks(run, "samples.csv")


def test_a_finished_run_that_is_scored_again_is_complete(run):
    config = {"samples_planned": 180, "progress": PROGRESS | {"state": "complete"}}
    (run / "config.json").write_text(json.dumps(config))
    assert unfinished(run) is None


@pytest.mark.parametrize(
    "command", ["table", "compare", "report", "plot pareto", "verify", "score"]
)
def test_every_command_says_that_a_run_is_still_running(command, run, cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "still running, 21 of 180 samples" in cli(*command.split(), "results/r").err
    assert "still running, 21 of 180 samples" in cli("table").err  # the newest run
