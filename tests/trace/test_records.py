"""Finding one sample among the records of a run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.experiment.records import TRACED, read_records
from specbench.trace.records import find_sample

from .made import made

TEXT = ("ab", "x", "c")
STATICS = [made(TEXT, method="static", weight=w) | {"weight": w} for w in (0.4, 0.8)]


def written(folder: Path, *records: Any, torn: str = "") -> Path:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "samples.jsonl").write_text(lines + torn)
    return folder


def test_records_are_read_plain_or_packed(tmp_path: Path) -> None:
    records = [made(TEXT), made(TEXT, sample_id="b")]
    written(tmp_path, *records, torn='{"task": "su')
    assert list(read_records(tmp_path)) == records
    packed = gzip.compress((tmp_path / "samples.jsonl").read_bytes())
    (tmp_path / "samples.jsonl").unlink()
    (tmp_path / "samples.jsonl.gz").write_bytes(packed)
    assert list(read_records(tmp_path)) == records
    (tmp_path / "samples.jsonl.gz").write_bytes(packed[:-9])
    with pytest.raises(UsageError, match="no whole gzip file"):
        list(read_records(tmp_path))


def test_a_line_that_is_no_sample_is_named(tmp_path: Path) -> None:
    broken = made(TEXT)
    del broken["per_round"]
    with pytest.raises(UsageError, match=r"line 2, is no sample \(it has no per_round\)"):
        list(read_records(written(tmp_path, made(TEXT), broken), TRACED))
    with pytest.raises(UsageError, match="holds no samples"):
        list(read_records(tmp_path / "nowhere"))


def test_a_sample_that_is_alone_needs_no_more_than_its_id() -> None:
    record, name = find_sample([made(TEXT), made(TEXT, sample_id="b")], "b")
    assert (record["sample_id"], name) == ("b", "sd")


def test_choices_are_named() -> None:
    records = [made(TEXT), *STATICS, made(TEXT, task="code")]
    with pytest.raises(UsageError, match="choose with --task from `sums`, `code`"):
        find_sample(records, "a")
    with pytest.raises(UsageError, match=r"from `sd`, `static w=0\.4`, `static w=0\.8`"):
        find_sample(records, "a", task="sums")
    with pytest.raises(UsageError, match=r"--method from `static w=0\.4`, `static w=0\.8`"):
        find_sample(records, "a", task="sums", method="static")
    record, name = find_sample(records, "a", task="sums", method="static w=0.8")
    assert (record["weight"], name) == (0.8, "static w=0.8")
    assert find_sample(records, "a", task="code")[0]["task"] == "code"


def test_draft_lengths_are_told_apart_where_they_differ() -> None:
    records = [made(TEXT, draft_length=n) for n in (3, 7)]
    with pytest.raises(UsageError, match="from `sd N=3`, `sd N=7`"):
        find_sample(records, "a", method="sd")
    assert find_sample(records, "a", method="sd N=7")[0]["draft_length"] == 7


def test_of_a_sample_that_was_tried_again_the_last_counts() -> None:
    failed = made(TEXT, status="error", error="no memory")
    assert find_sample([failed, made(TEXT)], "a")[0]["status"] == "ok"
    with pytest.raises(UsageError, match=r"could not be decoded \(no memory\)"):
        find_sample([made(TEXT), failed], "a")


def test_repeats_are_counted_from_0() -> None:
    records = [made(TEXT, repeat=r) for r in (0, 1)]
    assert find_sample(records, "a")[0]["repeat"] == 0
    assert find_sample(records, "a", repeat=1)[0]["repeat"] == 1
    with pytest.raises(UsageError, match="no repeat 2: choose from `0`, `1`"):
        find_sample(records, "a", repeat=2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"sample": "c"}, "no sample `c` in this run"),
        ({"sample": "a", "task": "sum"}, "--task sum; did you mean `sums`?"),
        ({"sample": "a", "method": "ds"}, "--method ds; "),
    ],
)
def test_what_is_not_there_is_said(asked: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        find_sample([made(TEXT)], **asked)
    assert said in str(error.value)
