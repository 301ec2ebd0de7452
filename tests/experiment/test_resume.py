"""Stopped runs resume, and different runs are refused."""

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.experiment.folders import CONFIG, LOCK
from specbench.experiment.records import RECORDS, latest_records, read_records
from specbench.experiment.runner import execute
from specbench.experiment.store import Store

from .test_execute import plan_of

TABLES = ("samples.csv", "summary.csv", "summary.md")
METHODS = ["autoregressive", "sd"]


def run(folder: Path, *, methods: list[str] = METHODS, fresh: bool = False, **settings: Any) -> int:
    """Execute a plan; return the number of samples recorded before."""
    plan = plan_of(methods, **settings)
    with Store.open(folder, "run", plan.describe(), fresh) as store:
        execute(plan, store)
    return store.resumed


def tables(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in TABLES]


def test_a_run_cut_anywhere_resumes_to_the_same_result(engine: Any, tmp_path: Path) -> None:
    """However much of the file reached the disk, no complete sample is lost or duplicated."""
    whole = tmp_path / "whole" / "r"
    run(whole)
    content = (whole / RECORDS).read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for cut in (0, 1, ends[3] - 1, ends[3], ends[3] + 1, ends[5] - 1, ends[5]):
        folder = tmp_path / str(cut) / "r"
        folder.mkdir(parents=True)
        shutil.copy(whole / CONFIG, folder)
        (folder / RECORDS).write_bytes(content[:cut])
        assert run(folder) == sum(end <= cut for end in ends)
        assert tables(folder) == tables(whole)
        assert (folder / RECORDS).read_bytes() == content


def test_a_torn_line_that_stayed_would_break_the_next(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative control."""
    folder = tmp_path / "r"
    run(folder)
    content = (folder / RECORDS).read_bytes()
    (folder / RECORDS).write_bytes(content[:-9])
    monkeypatch.setattr("specbench.experiment.store.cut_torn_line", lambda folder: None)
    with pytest.raises(UsageError, match="it is not valid JSON"):
        run(folder)


def test_failed_samples_are_retried_and_count_once(engine: Any, tmp_path: Path) -> None:
    engine.failing = {1: ValueError("no"), 5: ValueError("no")}
    folder = tmp_path / "r"
    run(folder)
    assert [r["status"] for r in latest_records(folder)].count("error") == 2
    engine.failing = {}
    run(folder)
    assert {r["status"] for r in latest_records(folder)} == {"ok"}
    undisturbed = tmp_path / "other" / "r"
    run(undisturbed)
    assert tables(folder) == tables(undisturbed)
    calls = len(engine.calls)
    assert run(folder) == 6  # and nothing is decoded again
    assert (tables(folder), len(engine.calls)) == (tables(undisturbed), calls)
    progress = json.loads((folder / CONFIG).read_text())["progress"]
    assert progress == {"state": "complete", "samples": 6, "failed": 0}


def test_tables_have_the_order_of_the_plan_and_a_renamed_run_stays_one(
    engine: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    run(folder)
    before = tables(folder)
    lines = (folder / RECORDS).read_text().splitlines(keepends=True)
    (folder / RECORDS).write_text("".join(reversed(lines[2:])))
    renamed = folder.rename(tmp_path / "renamed")
    run(renamed)
    assert tables(renamed) == before
    assert {record["run_id"] for record in read_records(renamed)} == {"r"}


def test_a_plan_may_grow_and_not_shrink(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder, methods=["sd"])
    assert run(folder, methods=["autoregressive", "sd", "lossy"]) == 3
    assert {r["method"] for r in read_records(folder)} == {"autoregressive", "sd", "lossy"}
    assert len(list(read_records(folder))) == 9
    with pytest.raises(
        UsageError, match="autoregressive on t with settings that are not requested"
    ):
        run(folder, methods=["sd", "lossy"])
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text.replace('"examples": 3', '"examples": 4'))
    with pytest.raises(UsageError, match="it has 4 examples of t, more than requested"):
        run(folder, methods=["autoregressive", "sd", "lossy"])
    (folder / CONFIG).write_text(text.replace('"name": "t"', '"name": "u"'))
    with pytest.raises(UsageError, match="it includes the task u"):
        run(folder, methods=["autoregressive", "sd", "lossy"])
    config = json.loads(text)
    config["tasks"][0]["stop"] = ["other"]
    (folder / CONFIG).write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r't\.stop is \["other"\] there'):
        run(folder, methods=["autoregressive", "sd", "lossy"])


def test_another_run_is_refused_and_untouched(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"temperature": 0.0, "seed": 7, "batch_size": 2, "engine": "compile"}
    for name, value in others.items():
        with pytest.raises(UsageError, match=rf"settings\.{name} is .*--output.*--fresh"):
            run(folder, **{name: value})
    engine.target.fingerprint = lambda: "t1"
    with pytest.raises(UsageError, match=r"made with other models, another head.*--fresh"):
        run(folder)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after[RECORDS] == before[RECORDS]
    assert tables(folder) == [before[name].decode() for name in TABLES]

    (folder / RECORDS).rename(folder / "packed elsewhere")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        UsageError, match=r"contains the tables of a run without its samples\.jsonl"
    ):
        run(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_fresh_renames_an_existing_run(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder)
    before = tables(folder)
    assert run(folder, temperature=0.0, fresh=True) == 0
    assert tables(tmp_path / "r-before") == before
    assert tables(folder) != before
    run(folder, fresh=True)
    assert (tmp_path / "r-before-2").is_dir()


def test_without_a_folder_the_newest_unfinished_run_of_the_plan_resumes(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def begin(stop_after: int | None, **settings: Any) -> Store:
        plan = plan_of(METHODS, **settings)
        store = Store.open(None, "run-p", plan.describe())
        with pytest.raises(KeyboardInterrupt) if stop_after else nullcontext(), store:
            execute(plan, store, stop=lambda: store.done == stop_after)
        return store

    stopped = begin(2)
    assert begin(3, seed=5).folder != stopped.folder
    gone_on = begin(None)
    assert (gone_on.folder, gone_on.resumed, gone_on.done) == (stopped.folder, 2, 6)
    assert begin(None).folder != stopped.folder  # a complete run is not resumed
    plan = plan_of(METHODS, seed=5)
    with Store.open(None, "run-p", plan.describe(), fresh=True) as fresh:
        assert fresh.resumed == 0


# Opens a run and waits.
HOLD = """
import json, pathlib, sys
from specbench.experiment.store import Store
store = Store.open(pathlib.Path(sys.argv[1]), "run", json.loads(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(
    engine: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    config = json.dumps(plan_of(METHODS).describe())
    command = [sys.executable, "-c", HOLD, str(folder), config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"open\n"
        for fresh in (False, True):
            with pytest.raises(UsageError, match=r"another process is writing .*wait for it"):
                run(folder, fresh=fresh)
        other.kill()
    assert (folder / LOCK).exists()
    run(folder)
    assert len(list(read_records(folder))) == 6
