"""A finished run scored anew: what changes, what stays, and what survives an accident."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from specbench.experiment.rescore import Outcome, open_run, score_run

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
    assert list(run.notes) == [
        "`pass@1` is left out on sums: its examples have no tests",
        "`accuracy` is left out on code: its examples have no reference",
        "`accuracy` is left out on words: the reference of example `1` has no number; "
        "end it with `#### number`",
        "`pass@1` is left out on words: its examples have no tests",
        "`accuracy` is left out on free: its examples have no reference",
        "`pass@1` is left out on free: its examples have no tests",
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


def test_a_last_line_torn_by_a_crash_is_passed_over(make_run: Run) -> None:
    folder = make_run()
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"task": "su')
    assert rescored(folder).samples == 7
