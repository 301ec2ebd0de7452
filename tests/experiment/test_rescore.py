"""Scoring a finished run again: changes, kept scores, and errors."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from specbench.analysis.written import write_summary
from specbench.errors import RunError, UsageError
from specbench.experiment import rescore as module
from specbench.experiment.rescore import Outcome, open_run, score_run
from specbench.experiment.store import Summarise, lock
from specbench.files import PACKINGS
from specbench.runs.records import read_records

from ..cli.made import configure
from ..synthetic import records, rows
from .runs import TASKS, brief_summary, contents

WHOLE = Outcome(7, 1, 0, "broken")


def rescored(
    folder: Path, *further: str, may_execute: bool = True, summarise: Summarise = brief_summary
) -> Outcome:
    return score_run(open_run(folder, further), may_execute, summarise=summarise)


def first_record(folder: Path, drop: str = "", **changes: Any) -> None:
    first, *rest = records(folder)
    changed = {name: value for name, value in (first | changes).items() if name != drop}
    lines = "".join(json.dumps(record) + "\n" for record in [changed, *rest])
    (folder / "samples.jsonl").write_text(lines)


def test_wrong_scores_are_corrected(make_run):
    folder = make_run()
    before = contents(folder)
    first_record(folder, quality=0.25, scores={}, status="unscored", error="once")
    for name in ("samples.csv", "samples.csv.gz", "summary.csv", "summary.md"):
        (folder / name).write_text("old")
    (folder / ".scoring").mkdir()  # left by a killed process
    (folder / ".scoring" / "samples.jsonl").write_text("half")
    assert rescored(folder) == WHOLE and not (folder / ".scoring").exists()
    assert contents(folder)["summary.csv"] == before["summary.csv"]
    assert not any("error" in record for record in records(folder) if record["status"] == "ok")
    config = json.loads((folder / "config.json").read_text())
    assert config["progress"] == {"state": "complete", "samples": 7, "failed": 1}
    assert config["notes"] == ["kept"]


def test_added_metrics_persist(make_run):
    folder = make_run()
    quality = [row["quality"] for row in rows(folder / "samples.csv")]
    rescored(folder, "rougeL", "rouge1")
    rescored(folder, summarise=write_summary)
    samples = rows(folder / "samples.csv")
    assert [row["quality"] for row in samples] == quality
    scores = [row["rougeL"] for row in samples]
    assert scores[:3] + scores[4:] == ["1.0", "0.5", "", "", ""]
    assert float(scores[3]) == pytest.approx(5 / 6)
    summary = {(r["task"], r["metric"]): r["value"] for r in rows(folder / "summary.csv")}
    assert float(summary["sums", "rougeL"]) == 0.75 and ("code", "rougeL") not in summary


def test_a_metric_is_added_only_where_it_can_score(make_run):
    folder = make_run()
    run = open_run(folder, ["accuracy", "pass@1", "accuracy"])
    assert run.metrics == {task: list(metrics) for task, metrics in TASKS.items()}
    left_out = [note.partition(":")[0].replace(" is skipped on", "") for note in run.notes]
    assert left_out == [
        *("`pass@1` sums", "`accuracy` code", "`accuracy` words"),
        *("`pass@1` words", "`accuracy` free", "`pass@1` free"),
    ]
    before = contents(folder)
    assert rescored(folder, "accuracy", "pass@1") == rescored(folder) == WHOLE
    assert contents(folder)["summary.csv"] == before["summary.csv"]


def test_checking_whether_a_metric_applies_executes_no_code(make_run, monkeypatch):
    folder = make_run()
    configure(folder, lambda config: config.update(tasks=[{"name": "code", "metrics": []}]))
    monkeypatch.setattr("specbench.tasks.metrics.code.judge", lambda *_: pytest.fail("it was run"))
    assert open_run(folder, ["pass@1"]).metrics["code"] == ["pass@1"]


@pytest.mark.parametrize("suffix", PACKINGS)
@pytest.mark.parametrize("plain", [True, False])
def test_packed_samples_are_scored_and_stay_packed(make_run, plain, suffix):
    folder = make_run()
    (folder / "environment.json").write_text('{"python": "3"}')
    with PACKINGS[suffix](folder / f"samples.jsonl{suffix}", "wb") as packed:
        packed.write((folder / "samples.jsonl").read_bytes())
    if not plain:
        (folder / "samples.jsonl").unlink()
    assert rescored(folder, "rougeL").samples == 7
    assert (folder / "samples.jsonl").exists() == plain
    with PACKINGS[suffix](folder / f"samples.jsonl{suffix}") as packed:
        unpacked = packed.read()
    assert json.loads(unpacked.splitlines()[0])["scores"]["rougeL"] == 1.0
    if plain:
        assert (folder / "samples.jsonl").read_bytes() == unpacked
    environment = json.loads((folder / "environment.json").read_text())
    assert (environment["python"], environment["sandbox"] != []) == ("3", True)


def test_a_crash_leaves_all_files_unchanged(make_run, full_disk):
    folder, stop = make_run(), Mock(side_effect=KeyboardInterrupt)
    before = contents(folder)
    for where, name, accident, error in (
        (module, "score_text", stop, KeyboardInterrupt),
        (module.records, "write_samples", stop, KeyboardInterrupt),
        (Path, "write_text", full_disk, RunError),
    ):
        run = open_run(folder, ["rougeL"])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(error):
            patch.setattr(where, name, accident)
            score_run(run, True, summarise=brief_summary)
        assert contents(folder) == before


def test_scoring_again_repairs_an_interruption_between_two_files(make_run, monkeypatch):
    folder, other = make_run(), make_run(name="s")
    replace = os.replace
    moved: list[Any] = []

    def once(source, target):
        if moved and Path(source).parent.name == ".scoring":
            raise KeyboardInterrupt
        moved.append(target)
        replace(source, target)

    run = open_run(folder, ["rougeL"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.records, "write_samples", lambda staging: None)
        patch.setattr(os, "replace", once)
        score_run(run, True, summarise=brief_summary)
    for each in (folder, other):
        rescored(each, "rougeL")
    assert rows(folder / "summary.csv") == rows(other / "summary.csv")


def test_a_running_run_cannot_be_scored_and_a_retried_sample_counts_once(make_run):
    folder = make_run()
    held = lock(folder)
    before, run = contents(folder), open_run(folder)
    with pytest.raises(UsageError, match="another process is writing"):
        score_run(run, True, summarise=brief_summary)
    assert contents(folder) == before
    held.release()
    assert score_run(run, True, summarise=brief_summary).samples == 7
    *_, failed = records(folder)
    with (folder / "samples.jsonl").open("a") as file:
        file.write(json.dumps({**failed, "error": "again"}) + "\n")
    assert rescored(folder) == Outcome(7, 1, 0, "again")


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_lines_are_kept_beside_the_scored_samples(make_run, packed):
    folder = make_run()
    path, damage = folder / "samples.jsonl", b'{"key": \0\n[]\n'
    content = damage + path.read_bytes()
    path.write_bytes(content)
    if packed:
        path.unlink()
        (folder / "samples.jsonl.gz").write_bytes(gzip.compress(content))
    assert rescored(folder).samples == 7
    assert (folder / "samples.damaged").read_bytes() == damage
    assert [record.task for record in read_records(folder)].count("sums") == 3
    assert path.exists() != packed


def test_a_folder_that_cannot_be_scored_is_one_located_error(make_run):
    def named(metrics):
        tasks = [{"name": "sums", "metrics": metrics}]
        return lambda folder: configure(folder, lambda config: config.update(tasks=tasks))

    def without(name):
        return lambda folder: (folder / name).unlink()

    def packed(folder):
        content = gzip.compress((folder / "samples.jsonl").read_bytes())
        (folder / "samples.jsonl.gz").write_bytes(content[:-20])
        (folder / "samples.jsonl").unlink()

    wrong: list[tuple[Callable[[Path], Any], str]] = [
        (without("config.json"), r"config\.json"),
        (without("examples.jsonl"), r"examples\.jsonl"),
        (without("samples.jsonl"), r"samples\.jsonl"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff"), r"config\.json"),
        (lambda folder: configure(folder, lambda c: c.update(progress=None)), r"config\.json"),
        (named(None), r"config\.json"),
        (named(["beauty"]), r"config\.json"),
        (named([["x"]]), r"config\.json"),
        (lambda folder: first_record(folder, drop="text"), "line 1, .*it lacks text"),
        (lambda folder: first_record(folder, text=None), "example '1' of task 'sums' without text"),
        (lambda folder: first_record(folder, sample_id="8"), "example '8' of task 'sums'"),
        (lambda folder: first_record(folder, task="other"), "example '1' of task 'other'"),
        (packed, r"samples\.jsonl\.gz is damaged"),
    ]
    for number, (spoil, place) in enumerate(wrong):
        folder = make_run(name=f"{number}-r")
        spoil(folder)
        before = contents(folder)
        with pytest.raises(UsageError, match=place) as raised:
            rescored(folder)
        assert "\n" not in str(raised.value) and contents(folder) == before
