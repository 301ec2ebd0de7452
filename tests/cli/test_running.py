"""What commands say while they run, and of runs that another process is decoding."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from specbench.errors import UsageError
from specbench.experiment.progress import LINES, Display
from specbench.runs.records import lacks
from specbench.runs.run import run_folders, unfinished
from specbench.runs.running import LOCK, still_running

from .test_train import TINY

PROGRESS = {"state": "running", "samples": 0, "failed": 0}


@pytest.fixture
def running(tmp_path) -> Iterator[Path]:
    """A run that is being written: 21 of 180 samples, and a half of the next one."""
    folder = tmp_path / "results" / "r"
    folder.mkdir(parents=True)
    config = {"samples_planned": 180, "progress": PROGRESS, "tasks": []}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "samples.jsonl").write_text('{"a": 1}\n' * 21 + '{"a"')
    with FileLock(folder / LOCK):
        yield folder


def test_a_run_that_is_being_written_says_how_far_it_is(running):
    state = "still running, 21 of 180 samples"
    assert still_running(running) == unfinished(running) == state
    assert lacks(running, "samples.csv") == f"{running} is {state}: wait until it ends"
    with pytest.raises(UsageError, match=state):
        run_folders([running], "samples.csv")


def test_a_run_that_nobody_writes_is_unfinished_and_a_scored_one_complete(running):
    (running / LOCK).unlink()
    (running / LOCK).touch()
    assert still_running(running) is None
    assert unfinished(running) == "running, 0 of 180 samples"
    assert "is unfinished: repeat its command" in lacks(running, "samples.csv")
    config = {"samples_planned": 180, "progress": PROGRESS | {"state": "complete"}}
    (running / "config.json").write_text(json.dumps(config))
    assert unfinished(running) is None


@pytest.mark.parametrize(
    "command",
    ["table", *(f"{c} results/r" for c in ("compare", "report", "plot pareto", "verify", "score"))],
)
def test_every_command_says_that_a_run_is_running(command, running, cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "still running, 21 of 180 samples" in cli(*command.split()).err


SMALL = "-t mini-math -n 1 --max-new-tokens 4 --device cpu"
COMMANDS = {
    f"run -m sd {SMALL} -o out": "2 of 2 samples, ",
    **{f"sweep-weights --weights 0.5 {SMALL} -o out": " samples, ", "verify r -n 1": " samples, "},
    **{"score r": " samples, ", "price r -t mini-math -n 1 --draft-length 1": " of 2 texts, "},
    "bench --batch-size 1 --new-tokens 4 --repeats 1 -m sd": " samples, ",
    "check -t mini-math -n 1 --samples 1 --drafter greedy -m sd -o out": "timing, ",
    " ".join(TINY): "3 of 3 steps, ",
}


@pytest.mark.parametrize(("line", "last"), COMMANDS.items())
def test_long_commands_tell_their_progress(cli, monkeypatch, models, run, line, last):
    ends = []

    @contextmanager
    def printed(progress):
        yield
        ends.append(progress())

    monkeypatch.setattr(LINES, "printed", printed)
    monkeypatch.setattr("specbench.cli.check.MAX_NEW_TOKENS", 8)
    monkeypatch.setattr("specbench.validation.check.TOKENS", 4)
    done = cli(*line.split())
    assert done.code in (0, 1, 2) and "rror: --" not in done.err, done.err
    assert any(last in end for end in ends), (ends, done.err)
    assert "progress:" not in done.err


def test_texts_that_are_decoded_are_not_called_loading(cli, monkeypatch):
    """A batch of llama.cpp, say, takes minutes until its first text is finished."""
    events = list[tuple[object, ...]]()
    monkeypatch.setattr(Display, "doing", lambda self, *texts: events.append(texts))
    monkeypatch.setattr(Display, "__call__", lambda self, *records: events.append(("done",)))
    assert cli(*f"run -m sd {SMALL} -o out".split()).code == 0
    assert events[:3] == [("loading the models",), ("autoregressive", "mini-math"), ("done",)]
