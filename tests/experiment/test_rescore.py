"""A finished run scored anew: what changes, what stays, and what survives an accident."""

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunError, UsageError
from specbench.experiment import rescore as module
from specbench.experiment.examples import write_examples
from specbench.experiment.rescore import Outcome, open_run, score_run
from specbench.experiment.scoring import score_text
from specbench.experiment.store import Store
from specbench.tasks.example import Example

TASKS = {
    "sums": ("accuracy", "accuracy-flexible"),
    "code": ("pass@1",),
    "words": ("bleu", "rouge1"),
    "free": (),
}
EXAMPLES = {
    "sums": [Example("1", "p", "#### 1"), Example("2", "p", "#### 2")],
    "code": [Example("1", "p", tests=("assert f() == 1",))],
    "words": [Example("1", "p", "a b c d e f"), Example("2", "p")],
    "free": [Example("1", "p")],
}
TEXTS = {
    "sums": ["#### 1", "in all 2"],
    "code": ["def f():\n    return 1"],
    "words": ["a b c d e g", "b"],
    "free": ["hello\u2028ü"],
}
FILES = ("samples.jsonl", "samples.csv", "summary.csv", "summary.md", "config.json")
Run = Callable[..., Path]


def measured(task: str, sample: str, text: str) -> dict[str, Any]:
    return {
        **{"run_id": "r", "pair": "p", "task": task, "method": "sd", "weight": None},
        **{"lenience": None, "rule": None, "alpha": None, "head": None, "temperature": 1.0},
        **{"draft_length": 5, "seed": 0, "repeat": 0, "sample_id": sample, "prompt_tokens": 4},
        **{"output_tokens": 8, "rounds": 2, "proposed": 10, "accepted": 6},
        **{"draft_acceptance_rate": 0.6, "acceptance_length": 4.0, "expected_acceptance": 0.6},
        **{"mean_weight": None, "prefill_seconds": 0.5, "decode_seconds": 1.5},
        **{"tokens_per_second": 4.0, "stopped_by": "eos", "text": text, "token_ids": [1, 2]},
    }


@pytest.fixture
def make_run(tmp_path: Path) -> Run:
    """Write a run's folder as a run does, its programs run or not."""

    def make(may_execute: bool = True, name: str = "r") -> Path:
        tasks = [{"name": task, "metrics": list(metrics)} for task, metrics in TASKS.items()]
        config = {"samples_planned": 7, "tasks": tasks, "notes": ["kept"]}
        with Store.create(tmp_path / name, "run", config) as store:
            write_examples(store.folder, EXAMPLES)
            for task, metrics in TASKS.items():
                for example, text in zip(EXAMPLES[task], TEXTS[task], strict=True):
                    record = measured(task, example.id, text)
                    record["quality_metric"] = metrics[0] if metrics else None
                    record |= score_text(metrics, text, example, may_execute=may_execute)
                    store.append(record)
            store.append({"task": "sums", "sample_id": "9", "status": "error", "error": "broken"})
        return store.folder

    return make


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "samples.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rescored(folder: Path, *further: str, may_execute: bool = True) -> Outcome:
    return score_run(open_run(folder, further), may_execute, lambda record: None)


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


class Stop(Exception):
    """An accident of any kind."""


def _metric(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise Stop

    monkeypatch.setattr(module, "score_text", stop)


def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_tables", stop)


def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)


@pytest.mark.parametrize(
    ("accident", "error"), [(_metric, Stop), (_tables, KeyboardInterrupt), (_disk, RunError)]
)
def test_an_accident_leaves_everything_as_it_was(
    make_run: Run,
    monkeypatch: pytest.MonkeyPatch,
    accident: Callable[[pytest.MonkeyPatch], None],
    error: type[BaseException],
) -> None:
    folder = make_run()
    before = contents(folder)
    run = open_run(folder, ["rougeL"])
    with monkeypatch.context() as patch, pytest.raises(error):
        accident(patch)
        score_run(run, True, lambda record: None)
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
        score_run(run, True, lambda record: None)
    monkeypatch.undo()
    for each in (folder, other):
        rescored(each, "rougeL")
    assert rows(folder / "summary.csv") == rows(other / "summary.csv")


def test_a_run_that_is_still_going_on_is_not_disturbed(make_run: Run) -> None:
    folder = make_run()
    added: list[Any] = []

    def append(record: Any) -> None:
        if not added:
            with (folder / "samples.jsonl").open("a") as file:
                added.append(file.write(json.dumps(record) + "\n"))

    run = open_run(folder)
    with pytest.raises(RunError, match="still being written"):
        score_run(run, True, append)
    assert len(records(folder)) == 8


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


@pytest.fixture
def nothing_changes(make_run: Run) -> Iterator[Callable[[Callable[[Path], None]], Path]]:
    """Spoil a run; in the end all its files must be as they were when it was spoilt."""
    kept: dict[Path, dict[str, bytes]] = {}

    def spoil(edit: Callable[[Path], None]) -> Path:
        folder = make_run()
        edit(folder)
        kept[folder] = contents(folder)
        return folder

    yield spoil
    assert kept
    assert all(contents(folder) == before for folder, before in kept.items())


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_without("config.json"), r"r is no run, config\.json cannot be read"),
        (_without("examples.jsonl"), r"r holds no examples\.jsonl"),
        (_without("samples.jsonl"), r"r holds no samples\.jsonl"),
        (_write("config.json", b"{"), r"config\.json is no configuration"),
        (_write("config.json", b"\xff"), r"config\.json is no configuration"),
        (_write("config.json", b"[]"), r"config\.json is no configuration"),
        (_config(tasks=[{"name": "sums", "metric": "accuracy"}]), "is no configuration"),
        (_config(tasks=[{"name": "sums", "metrics": ["beauty"]}]), "is no configuration"),
        (_config(tasks=[{"name": "sums", "metrics": [["x"]]}]), "is no configuration"),
        (_config(progress=None), "is no configuration"),
        (_write("examples.jsonl", b"{}\n"), r"examples\.jsonl, line 1 "),
        (_write("samples.jsonl", b"{\n"), r"samples\.jsonl, line 1, .* not a line of JSON"),
        (_write("samples.jsonl", b"\xff\n"), r"samples\.jsonl, line 1, .* not a line of JSON"),
        (_write("samples.jsonl", b"[]\n"), r"samples\.jsonl, line 1, .* it is not an object"),
        (_write("samples.jsonl", b"{}\n"), r"samples\.jsonl, line 1, .* it has no status"),
        (_first({}, "text"), r"samples\.jsonl, line 1, .* it has no text"),
        (_first({"text": 1}), r"samples\.jsonl, line 1, .* wrong type"),
        (_first({"sample_id": "8"}), r"line 1, .* example '8' of task 'sums' is not in"),
        (_first({"sample_id": []}), r"line 1, .* example \[\] of task 'sums' is not in"),
        (_first({"task": "other"}), r"line 1, .* example '1' of task 'other' is not in"),
        (_config(tasks=[{"name": "code", "metrics": []}]), "example '1' of task 'sums' is not in"),
        (_truncated, r"samples\.jsonl\.gz is no whole gzip file"),
        (_not_gzip, r"samples\.jsonl\.gz is no whole gzip file"),
    ],
)
def test_a_folder_that_cannot_be_scored_is_one_located_error(
    nothing_changes: Callable[..., Path], spoil: Callable[[Path], None], complaint: str
) -> None:
    folder = nothing_changes(spoil)
    with pytest.raises(UsageError, match=complaint) as raised:
        rescored(folder)
    assert "\n" not in str(raised.value)


def test_an_unknown_metric_is_refused_at_once(make_run: Run) -> None:
    with pytest.raises(UsageError, match="unknown metric `beauty`; choose one of"):
        open_run(make_run(), ["beauty"])
