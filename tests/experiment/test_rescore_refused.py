"""What cannot be scored again, what stops half-way, and that nothing is lost by it."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunError, UsageError
from specbench.experiment import rescore as module
from specbench.experiment.rescore import open_run, score_run
from specbench.experiment.store import lock

from .runs import Run, contents, records, rescored, rows


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
    held = lock(folder)
    before, run = contents(folder), open_run(folder)
    with pytest.raises(UsageError, match="another process is writing"):
        score_run(run, True, print)
    assert contents(folder) == before
    held.release()
    assert score_run(run, True, lambda record: None).samples == 7


def test_a_sample_that_was_tried_again_counts_once(make_run: Run) -> None:
    folder = make_run()
    *_, failed = records(folder)
    with (folder / "samples.jsonl").open("a") as file:
        file.write(json.dumps({**failed, "error": "again"}) + "\n")
    outcome = score_run(open_run(folder), True, lambda record: None)
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
        (_without("samples.jsonl"), r"r is a run without its samples\.jsonl"),
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
