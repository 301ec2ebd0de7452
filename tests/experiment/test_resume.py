"""A run that was stopped goes on where it was, and nothing else is taken for it."""

import gzip
import json
import multiprocessing
import shutil
from contextlib import nullcontext
from multiprocessing.connection import Connection
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
    """Carry out a plan into a folder; return how many samples were there before."""
    plan = plan_of(methods, **settings)
    with Store.open(folder, "run", plan.describe(), fresh) as store:
        execute(plan, store)
    return store.resumed


def tables(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in TABLES]


def names(folder: Path) -> list[tuple[str, str]]:
    return [(r["sample_id"], r["method"]) for r in read_records(folder)]


def test_cut_anywhere_it_ends_as_if_undisturbed(engine: Any, tmp_path: Path) -> None:
    """Whatever of the file had reached the disk: nothing whole is lost, nothing doubled."""
    whole = tmp_path / "whole" / "r"
    run(whole)
    content = (whole / RECORDS).read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    cuts = {at for end in ends[1:6:2] for at in (end - 1, end, end + 1)}
    for cut in sorted({0, 1, *cuts} - {len(content) + 1}):
        folder = tmp_path / str(cut) / "r"
        folder.mkdir(parents=True)
        shutil.copy(whole / CONFIG, folder)
        (folder / RECORDS).write_bytes(content[:cut])
        assert run(folder) == sum(end <= cut for end in ends)
        assert tables(folder) == tables(whole)
        assert names(folder) == names(whole)


def test_a_torn_line_that_stayed_would_break_the_next(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative control."""
    folder = tmp_path / "r"
    run(folder)
    content = (folder / RECORDS).read_bytes()
    (folder / RECORDS).write_bytes(content[:-9])
    monkeypatch.setattr("specbench.experiment.store.cut_torn_line", lambda folder: None)
    with pytest.raises(UsageError, match="it is not a line of JSON"):
        run(folder)


def test_failed_samples_are_tried_again_and_count_once(engine: Any, tmp_path: Path) -> None:
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
    assert json.loads((folder / CONFIG).read_text())["progress"] == {
        "state": "complete",
        "samples": 6,
        "failed": 0,
    }


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
    with pytest.raises(UsageError, match="with autoregressive on t in a setting that is not here"):
        run(folder, methods=["sd", "lossy"])
    config = json.loads((folder / CONFIG).read_text())
    config["tasks"][0]["examples"] = 4
    (folder / CONFIG).write_text(json.dumps(config))
    with pytest.raises(UsageError, match="with 4 examples of t, and here are fewer"):
        run(folder, methods=["autoregressive", "sd", "lossy"])


def test_another_run_is_refused_and_untouched(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    others: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 7},
        {"batch_size": 2},
        {"engine": "compile"},
        {"max_new_tokens": 9},
    ]
    for changes in others:
        (name,) = changes
        said = rf"holds another run .settings\.{name} is .*--output.*--fresh"
        with pytest.raises(UsageError, match=said):
            run(folder, **changes)
    engine.target.fingerprint = lambda: "t1"
    with pytest.raises(UsageError, match=r"that other models, another head.*--fresh"):
        run(folder)
    assert tables(folder) == [before[name].decode() for name in TABLES]
    assert len(list(read_records(folder))) == 6


def test_fresh_moves_a_run_aside(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder)
    before = tables(folder)
    assert run(folder, temperature=0.0, fresh=True) == 0
    assert tables(tmp_path / "r-before") == before
    assert tables(folder) != before
    run(folder, fresh=True)
    assert (tmp_path / "r-before-2").is_dir()


def test_without_a_folder_the_newest_unfinished_run_of_the_same_plan_goes_on(
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
    assert begin(None).folder != stopped.folder  # a complete one is measured anew
    plan = plan_of(METHODS, seed=5)
    with Store.open(None, "run-p", plan.describe(), fresh=True) as fresh:
        assert fresh.resumed == 0


def hold(folder: str, ready: Connection) -> None:
    """Open a run in another process and stay there."""
    store = Store.open(Path(folder), "run", plan_of(METHODS).describe())
    ready.send(store.done)
    ready.recv()


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(
    engine: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(str(folder), there))
    process.start()
    here.recv()
    with pytest.raises(UsageError, match=r"another process is writing .*wait for it"):
        run(folder)
    with pytest.raises(UsageError, match=r"another process is writing"):
        run(folder, fresh=True)
    process.kill()
    process.join()
    assert (folder / LOCK).exists()
    run(folder)
    assert len(list(read_records(folder))) == 6


def test_a_run_without_its_records_is_refused_and_untouched(engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder)
    (folder / RECORDS).rename(tmp_path / "away")
    (folder / f"{RECORDS}.gz").write_bytes(gzip.compress((tmp_path / "away").read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"holds the tables of a run without its samples\.jsonl"):
        run(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
