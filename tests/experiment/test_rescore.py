"""A finished run scored anew: what changes, what stays, and what is refused."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunError, UsageError
from specbench.experiment import rescore as module
from specbench.experiment.rescore import Outcome, open_run, score_run
from specbench.experiment.store import lock

from .runs import TASKS, Run, contents, records, rescored, rows


def test_the_same_metrics_give_the_same_folder(make_run: Run) -> None:
    folder = make_run()
    before = contents(folder)
    reported: list[dict[str, Any]] = []
    outcome = score_run(open_run(folder), True, lambda record: reported.append(dict(record)))
    assert outcome == Outcome(7, 1, 0, "broken")
    after = contents(folder)
    assert {n: c for n, c in after.items() if n != "samples.jsonl"} == {
        n: c for n, c in before.items() if n != "samples.jsonl"
    }
    assert reported == records(folder)
    lines = [json.loads(line) for line in before["samples.jsonl"].split(b"\n") if line]
    assert records(folder) == lines
    header = after["samples.csv"].decode().splitlines()[0]
    assert header.endswith(",stopped_by,accuracy-flexible,rouge1,bleu_terms")


def test_wrong_scores_are_put_right(make_run: Run) -> None:
    folder = make_run()
    before = contents(folder)
    spoilt = [
        record | {"quality": 0.25, "scores": {}, "status": "unscored", "error": "once"}
        if record["status"] == "ok"
        else record
        for record in records(folder)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in spoilt)
    (folder / "samples.jsonl").write_text(lines)
    for name in ("samples.csv", "summary.csv", "summary.md"):
        (folder / name).write_text("old")
    assert rescored(folder) == Outcome(7, 1, 0, "broken")
    assert contents(folder)["summary.csv"] == before["summary.csv"]
    assert not any("error" in record for record in records(folder) if record["status"] == "ok")
    config = json.loads((folder / "config.json").read_text())
    assert config["progress"] == {"state": "complete", "samples": 7, "failed": 1}
    assert config["notes"] == ["kept"]


def test_metrics_may_be_added_and_stay(make_run: Run) -> None:
    folder = make_run()
    quality = [row["quality"] for row in rows(folder / "samples.csv")]
    rescored(folder, "rougeL", "rouge1")
    rescored(folder)
    found = rows(folder / "samples.csv")
    assert [row["quality"] for row in found] == quality
    scores = [row["rougeL"] for row in found]
    assert scores[:3] + scores[4:] == ["1.0", "0.5", "", "", ""]
    assert float(scores[3]) == pytest.approx(5 / 6)
    summary = {(r["task"], r["metric"]): r["value"] for r in rows(folder / "summary.csv")}
    assert float(summary["sums", "rougeL"]) == 0.75
    assert ("code", "rougeL") not in summary


def test_a_metric_is_added_only_where_it_can_score(make_run: Run) -> None:
    folder = make_run()
    run = open_run(folder, ["accuracy", "pass@1", "accuracy"])
    assert run.metrics == {task: list(metrics) for task, metrics in TASKS.items()}
    said = [note.partition(":")[0].replace(" is left out on", "") for note in run.notes]
    assert said == [
        *("`pass@1` sums", "`accuracy` code", "`accuracy` words"),
        *("`pass@1` words", "`accuracy` free", "`pass@1` free"),
    ]
    before = contents(folder)
    assert rescored(folder, "accuracy", "pass@1") == Outcome(7, 1, 0, "broken")
    assert contents(folder)["summary.csv"] == before["summary.csv"]
    assert rescored(folder) == Outcome(7, 1, 0, "broken")  # nothing of it was kept


def test_looking_whether_a_metric_fits_runs_no_program(
    make_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run()
    config = json.loads((folder / "config.json").read_text())
    for task in config["tasks"]:
        task["metrics"] = []
    (folder / "config.json").write_text(json.dumps(config))

    def fail(*_: Any) -> Any:
        raise AssertionError("it was run")

    monkeypatch.setattr("specbench.metrics.code.judge", fail)
    assert open_run(folder, ["pass@1"]).metrics["code"] == ["pass@1"]


def test_programs_are_not_run_without_leave_and_their_scores_are_kept(
    make_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, waiting = make_run(), make_run(may_execute=False, name="s")
    assert rescored(waiting, may_execute=False).withheld == 1
    assert rescored(ran, may_execute=False).withheld == 0

    def scores(folder: Path) -> list[Any]:
        return [(r["quality"], r["scores"]) for r in records(folder) if r["task"] == "code"]

    assert scores(waiting) == [(None, {"pass@1": None})]
    assert scores(ran) == [(1.0, {"pass@1": 1.0})]
    assert rescored(waiting, may_execute=True).withheld == 0
    assert scores(waiting) == scores(ran)


@pytest.mark.parametrize("plain", [True, False])
def test_compressed_samples_are_scored_and_stay_compressed(make_run: Run, plain: bool) -> None:
    folder = make_run()
    lines = (folder / "samples.jsonl").read_bytes()
    (folder / "samples.jsonl.gz").write_bytes(gzip.compress(lines))
    if not plain:
        (folder / "samples.jsonl").unlink()
    assert rescored(folder, "rougeL").samples == 7
    assert (folder / "samples.jsonl").exists() == plain
    unpacked = gzip.decompress((folder / "samples.jsonl.gz").read_bytes())
    assert json.loads(unpacked.splitlines()[0])["scores"]["rougeL"] == 1.0
    if plain:
        assert (folder / "samples.jsonl").read_bytes() == unpacked


class Stop(Exception):
    """An accident of any kind."""


def test_an_accident_leaves_everything_as_it_was(make_run: Run, full_disk: Any) -> None:
    def stop(error: type[BaseException]) -> Any:
        def stopped(*_: Any, **__: Any) -> Any:
            raise error

        return stopped

    folder = make_run()
    before = contents(folder)
    for where, name, accident, error in (
        (module, "score_text", stop(Stop), Stop),
        (module, "write_tables", stop(KeyboardInterrupt), KeyboardInterrupt),
        (Path, "write_text", full_disk, RunError),
    ):
        run = open_run(folder, ["rougeL"])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(error):
            patch.setattr(where, name, accident)
            score_run(run, True)
        assert contents(folder) == before
    rescored(folder, "rougeL")
    assert contents(folder) != before


def test_what_a_killed_scoring_left_is_cleared_away(make_run: Run) -> None:
    folder = make_run()
    (folder / ".scoring").mkdir()
    (folder / ".scoring" / "samples.jsonl").write_text("half")
    rescored(folder)
    assert not (folder / ".scoring").exists()


def test_an_interruption_between_two_files_is_mended_by_scoring_again(
    make_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = make_run(), make_run(name="s")
    replace = os.replace
    calls: list[Any] = []

    def once(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) > 1 and Path(source).parent.name == ".scoring":
            raise KeyboardInterrupt
        replace(source, target)

    run = open_run(folder, ["rougeL"])
    monkeypatch.setattr(module, "write_tables", lambda staging: None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", once)
        score_run(run, True)
    monkeypatch.undo()
    for each in (folder, other):
        rescored(each, "rougeL")
    assert rows(folder / "summary.csv") == rows(other / "summary.csv")


def test_a_run_that_is_still_going_on_is_not_disturbed(make_run: Run) -> None:
    folder = make_run()
    held = lock(folder)
    before, run = contents(folder), open_run(folder)
    with pytest.raises(UsageError, match="another process is writing"):
        score_run(run, True, print)
    assert contents(folder) == before
    held.release()
    assert score_run(run, True).samples == 7


def test_a_sample_that_was_tried_again_counts_once(make_run: Run) -> None:
    folder = make_run()
    *_, failed = records(folder)
    with (folder / "samples.jsonl").open("a") as file:
        file.write(json.dumps({**failed, "error": "again"}) + "\n")
    outcome = score_run(open_run(folder), True)
    assert (outcome.samples, outcome.failed, outcome.first_error) == (7, 1, "again")


def _first(change: dict[str, Any], drop: str = "") -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        first, *rest = (folder / "samples.jsonl").read_text(encoding="utf-8").split("\n")
        record = {name: v for name, v in json.loads(first).items() if name != drop} | change
        (folder / "samples.jsonl").write_text("\n".join([json.dumps(record), *rest]))

    return edit


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def _config(**change: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | change))

    return edit


def _without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def _truncated(folder: Path) -> None:
    packed = gzip.compress((folder / "samples.jsonl").read_bytes())
    (folder / "samples.jsonl.gz").write_bytes(packed[:-20])
    (folder / "samples.jsonl").unlink()


def _not_gzip(folder: Path) -> None:
    (folder / "samples.jsonl").rename(folder / "samples.jsonl.gz")


def test_a_folder_that_cannot_be_scored_is_one_located_error(make_run: Run) -> None:
    wrong: list[tuple[Callable[[Path], None], str]] = [
        (_without("config.json"), r"r is no run, .*config\.json is not there"),
        (_without("examples.jsonl"), r"r holds no examples\.jsonl"),
        (_without("samples.jsonl"), r"r is a run without its samples\.jsonl"),
        (_write("config.json", b"\xff"), r"config\.json is no configuration"),
        (_write("config.json", b"[]"), r"config\.json is no configuration"),
        (_config(tasks=[{"name": "sums", "metric": "accuracy"}]), "is no configuration"),
        (_config(tasks=[{"name": "sums", "metrics": ["beauty"]}]), "is no configuration"),
        (_config(tasks=[{"name": "sums", "metrics": [["x"]]}]), "is no configuration"),
        (_config(progress=None), "is no configuration"),
        (_write("examples.jsonl", b"{}\n"), r"examples\.jsonl, line 1: "),
        (_write("samples.jsonl", b"{\n"), r"samples\.jsonl, line 1, .* not a line of JSON"),
        (_write("samples.jsonl", b"{}\n"), r"samples\.jsonl, line 1, .*it has no"),
        (_first({}, "text"), r"samples\.jsonl, line 1, .*it has no text"),
        (_first({"text": 1}), "example '1' of task 'sums' .* wrong type"),
        (_first({"sample_id": "8"}), r"example '8' of task 'sums' is not in"),
        (_first({"sample_id": []}), r"example \[\] of task 'sums' is not in"),
        (_first({"task": "other"}), r"example '1' of task 'other' is not in"),
        (_config(tasks=[{"name": "code", "metrics": []}]), "example '1' of task 'sums' is not in"),
        (_truncated, r"samples\.jsonl\.gz is no whole gzip file"),
        (_not_gzip, r"samples\.jsonl\.gz is no whole gzip file"),
    ]
    for number, (spoil, complaint) in enumerate(wrong):
        folder = make_run(name=f"{number}-r")
        spoil(folder)
        before = contents(folder)
        with pytest.raises(UsageError, match=complaint) as raised:
            rescored(folder)
        assert "\n" not in str(raised.value)
        assert contents(folder) == before


def test_an_unknown_metric_is_refused_at_once(make_run: Run) -> None:
    with pytest.raises(UsageError, match="unknown metric `beauty`; choose one of"):
        open_run(make_run(), ["beauty"])
