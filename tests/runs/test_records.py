"""JSON Lines files: recovery after a crash, and errors."""

import bz2
import gzip
import json
import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specbench import __version__
from specbench.errors import RunError, UsageError
from specbench.files import PACKINGS
from specbench.runs import records
from specbench.runs.configuration import RunConfig
from specbench.runs.model import RecordedRounds, SampleRecord
from specbench.runs.run import Run, read_run
from specbench.runs.shards import run_name
from specbench.tasks.example import Example

from .. import synthetic

FULL = Example("1", 'a "prompt"\n\u2028ü', None, ("assert f()", "x"), "a passage", "def f():", "f")
RECORD = {**synthetic.RECORD, "sample_id": "1"}


def to_line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


ODD: list[tuple[str, Any]] = [
    *(("place", {}), ("place", ["x"]), ("task", []), ("repeat", "x")),
    *(("draft_length", 10**9), ("draft_length", -1)),
    *(("token_ids", 5), ("token_ids", [-1]), ("token_ids", [2**70]), ("text", {})),
    *(("per_round", {"accepted": 1}), ("per_round", {"expected": [["x"]]})),
    *(("scores", []), ("scores", {"accuracy": "=cmd()"}), ("scores", {"accuracy": 1.1})),
    *(("sample_id", ["1"]), ("quality", -3.0)),
    *(("method", None), ("status", "fine"), ("output_tokens", 10**400)),
]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.text(), min_size=1, max_size=4), cut=st.floats(0, 1))
def test_a_file_cut_anywhere_keeps_its_complete_lines_and_can_grow(tmp_path, texts, cut):
    path = tmp_path / "samples.jsonl"
    content = b"".join(to_line({**RECORD, "text": text}) for text in texts)
    content = content[: round(cut * len(content))]
    path.write_bytes(content)
    whole = texts[: content.count(b"\n")]
    assert [r.text for r in records.read_records(tmp_path)] == whole
    damaged: list[int] = []
    assert [r.text for r in records.read_records(tmp_path, damaged=damaged)] == whole
    records.set_aside(path, damaged)
    with path.open("ab") as file:
        file.write(to_line({**RECORD, "text": "next"}))
    assert [r.text for r in records.read_records(tmp_path)] == [*whole, "next"]


def test_many_damaged_lines_are_refused(tmp_path):
    path = tmp_path / records.RECORDS
    path.write_bytes(b"\n" * 20_000)  # a small gzip file may contain millions
    with pytest.raises(UsageError, match="more than 10000 damaged lines"):
        list(records.read_records(path, damaged=[]))


@pytest.mark.parametrize("suffix", ["", *PACKINGS])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=st.binary().filter(lambda line: b"\n" not in line))
def test_foreign_bytes_are_left_out_named_and_set_aside(tmp_path, caplog, suffix, line):
    path = tmp_path / f"samples.jsonl{suffix}"
    other = to_line({**RECORD, "sample_id": "2"})
    with PACKINGS.get(suffix, open)(path, "wb") as file:
        file.write(to_line(RECORD) + line + b"\n" + other)
    aside = records.damaged_file(path)
    aside.unlink(missing_ok=True)
    caplog.clear()
    assert [record.sample_id for record in records.read_records(tmp_path)] == ["1", "2"]
    assert f"{path}: line 2 is damaged and left out" in caplog.text
    assert records.set_aside(path, [2]) == aside == tmp_path / "samples.damaged"
    assert aside.read_bytes() == line + b"\n"
    with PACKINGS.get(suffix, open)(path, "rb") as file:
        assert file.read() == to_line(RECORD) + other


@pytest.mark.parametrize(
    "damage",
    [
        b'{"key": "k", "pla' + to_line(RECORD),  # the start of one sample, then another
        to_line(RECORD).strip() + to_line(RECORD),  # joined
        b"\0" * 900 + b"\n",
        b"[" * 100_000 + b"\n",
        *(to_line({**RECORD, name: value}) for name, value in ODD),
        *(to_line({k: v for k, v in RECORD.items() if k != name}) for name in ("key", "method")),
        to_line({**RECORD, "text": "~"}).replace(b"~", rb"\uD800"),  # half of a character
        to_line({**RECORD, "sample_id": "~"}).replace(b"~", rb"\ud800"),
        *(to_line({**RECORD, "repetition": 5}).replace(b"5", n) for n in (b"NaN", b"1e999")),
        to_line({**RECORD, "per_round": {"expected": [[5]]}}).replace(b"[[5]]", b"[[NaN]]"),
        to_line(RECORD)[:-1],  # its line end was not written
    ],
)
def test_a_damaged_line_costs_no_other_line(tmp_path, damage):
    path = tmp_path / records.RECORDS
    path.write_bytes(to_line(RECORD) + damage)
    damaged: list[int] = []
    (whole,) = records.read_records(path, damaged=damaged)
    assert (whole.line(), damaged) == (SampleRecord(**RECORD).line(), [2])


def test_a_flipped_byte_is_no_damaged_line_and_damaged_lines_are_named_briefly(tmp_path, caplog):
    path = tmp_path / f"{records.RECORDS}.gz"
    content = gzip.compress(b"".join(map(to_line, [RECORD] * 9)), compresslevel=0, mtime=0)
    at = content.index(b"{")
    path.write_bytes(content[:at] + b"[" + content[at + 1 :])
    with pytest.raises(UsageError, match=r"samples\.jsonl\.gz is damaged .*CRC"):
        list(records.read_records(tmp_path))
    assert not caplog.records
    assert records.lines_named([3]) == "line 3 is"
    assert records.lines_named([3, 4]) == "lines 3, 4 are"
    assert records.lines_named(range(1, 10)) == "lines 1, 2, 3, 4, 5 and 4 more are"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=st.binary().filter(lambda line: b"\n" not in line))
def test_foreign_bytes_among_examples_are_one_located_error(tmp_path, line):
    (tmp_path / "examples.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UsageError, match=r"examples\.jsonl, line 1: "):
        records.read_examples(tmp_path)


def test_every_field_of_an_example_survives_the_disk(tmp_path, full_disk):
    tasks = {"one": [FULL, Example("2", "p", "r")], "two": [Example("1", "q")]}
    records.write_examples(tmp_path, {"half": [Example("1", "p", columns={"note": "\ud83d"})]})
    assert records.read_examples(tmp_path)["half"]["1"].columns == {"note": "?"}
    (tmp_path / "examples.jsonl").unlink()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="No space left"):
        patch.setattr(os, "replace", full_disk)
        records.write_examples(tmp_path, tasks)
    assert list(tmp_path.iterdir()) == []
    records.write_examples(tmp_path, tasks)
    assert len((tmp_path / "examples.jsonl").read_bytes().splitlines()) == 3
    expected = {task: {each.id: each for each in examples} for task, examples in tasks.items()}
    assert records.read_examples(tmp_path) == expected
    path = tmp_path / "examples.jsonl"
    (tmp_path / "examples.jsonl.bz2").write_bytes(bz2.compress(path.read_bytes()))
    path.unlink()
    assert records.read_examples(tmp_path) == expected


def test_an_example_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 2**20)
    with pytest.raises(UsageError, match="more than 1 MiB"):
        records.write_examples(tmp_path, {"t": [Example("1", "p" * 2**20)]})
    assert not [*tmp_path.iterdir()]


def test_an_invalid_example_is_located(tmp_path):
    path = tmp_path / "examples.jsonl"
    with pytest.raises(UsageError, match=path.name):
        records.read_examples(tmp_path)
    good: dict[str, Any] = {"task": "t", "id": "1", "prompt": "p"}
    wrong: list[tuple[Any, str]] = [
        *(([1], "must be a table"), ({"id": "1", "prompt": "p"}, "`task`")),
        *((good | {"answer": "x"}, "`answer`"), (good | {"id": 1}, "`id`")),
        *((good | {"tests": "assert x"}, "`tests`"), (good | {"tests": [1]}, "`tests.0.`")),
    ]
    lines = [(json.dumps(line), problem) for line, problem in wrong]
    for line, problem in [*lines, ("[" * 100_000, "Invalid JSON")]:
        path.write_text(f"{json.dumps(good)}\n{line}\n")
        with pytest.raises(UsageError, match=rf"examples\.jsonl, line 2: .*{problem}"):
            records.read_examples(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        records.read_examples(tmp_path)


@pytest.mark.parametrize(
    ("recorded", "used", "dtype"),
    [
        *(("auto", "bfloat16", "bfloat16"), ("float32", "bfloat16", "float32")),
        *(("auto", used, "auto") for used in ("int3", {"a": 1}, None)),
    ],
)
def test_models_are_loaded_again_in_the_dtype_that_auto_meant(tmp_path, recorded, used, dtype):
    config = {"loading": {"dtype": recorded}}
    (tmp_path / "environment.json").write_text(json.dumps({"models": {"dtype": used}}))
    assert Run(tmp_path, RunConfig(**config)).loading.dtype == dtype


@pytest.mark.parametrize(
    "table",
    [f"task,run_id\n{'x' * 131_073},r\n", "task,run_id\nx\n", "task\nx\n", "task,run_id\n", "\0"],
)
def test_a_run_that_its_table_does_not_name_is_named_as_its_folder(tmp_path, table):
    (tmp_path / "samples.csv").write_text(table)
    assert run_name(tmp_path) == tmp_path.name


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        *(("99.0.0", True), ("0.1.1", True), ("0.10", True), (__version__, False)),
        *(("0.0.9", False), ("9" * 5000, True), ("x" * 5000, False)),
    ],
)
def test_a_run_of_a_later_version_is_refused_by_its_name(tmp_path, version, refused):
    config = {"specbench": version, "tasks": [], "samples_planned": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if refused:
        with pytest.raises(UsageError, match=f"written by specbench {re.escape(version)}, and"):
            read_run(tmp_path, required=False)
    else:
        assert read_run(tmp_path).config.specbench == version


def test_every_field_of_a_record_is_explained_and_survives_its_line():
    fields = SampleRecord.model_fields.items()
    assert not [name for name, field in fields if not field.description]
    rounds = RecordedRounds(emitted=[2], laws=1)
    record = SampleRecord(**RECORD, scores={"mine": 0.5}, per_round=rounds)
    odd = SampleRecord(**RECORD, line=1, filled="x")  # of somebody's own
    scored = SampleRecord.parse(odd.without("error").filled(quality=1.0).line())
    assert scored.present()["line"] == 1
    again = SampleRecord.parse(record.line())
    assert again == record and again.line() == record.line()
    assert b"quality" not in record.line()  # only what was set is written
    assert SampleRecord.parse(record.line().replace(b"[2]", b"[%d]" % 10**12)) is None
    with pytest.raises(RunError, match="cannot store quality: a number is not finite"):
        record.filled(quality=float("nan"))


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_a_configuration_that_json_cannot_hold_is_no_configuration(tmp_path, value):
    text = f'{{"tasks": [], "samples_planned": 0, "settings": {{"top_p": {value}}}}}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json is not the configuration of a run"):
        read_run(tmp_path)


def test_a_row_that_is_no_sample_is_refused():
    for change, told in (
        *(({"rounds": 1.5}, "rounds: "), ({"bleu_terms": "1 x"}, "bleu_terms: ")),
        *(({"draft_length": length}, "draft_length: ") for length in (-1, 10**6)),
        ({"proposed": -1.0, "accepted": 0.5}, "proposed, accepted: "),
    ):
        row = {**synthetic.SAMPLE, "rounds": 5.0, "category": float("nan")}
        assert SampleRecord.of_row(row).rounds == 5
        with pytest.raises(UsageError, match=f"samples.csv has a wrong {told}"):
            SampleRecord.of_row(row | change)
