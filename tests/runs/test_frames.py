import numpy as np
import pandas as pd
import pyarrow.csv as arrow_csv
import pytest

from specbench.errors import UsageError
from specbench.runs.frames import SAMPLES, Selection, read_samples, rows_of

from ..synthetic import write_samples


def test_samples_keep_their_types_on_disk(tmp_path, samples):
    names = ["NA", "007", "null", "1e5", 'ü, "quoted"', "two\nlines"]
    samples = samples.assign(sample_id=np.resize(names, len(samples)), repeat=range(len(samples)))
    measured = {"rouge1": 0.5, "accuracy-flexible": np.nan, "bleu_terms": "1 2"}
    stored = read_samples(write_samples(tmp_path / "run", samples.assign(note="x", **measured)))
    assert list(stored) == [*SAMPLES, "accuracy-flexible", "rouge1", "bleu_terms"]
    pd.testing.assert_frame_equal(stored, samples.assign(**measured)[list(stored)])
    assert (stored["weight"].dtype, stored["draft_length"].dtype) == ("float64", "int64")


def test_a_byte_order_mark_and_trailing_content_of_a_table_do_not_matter(tmp_path, make):
    for name, ending in zip("abcd", ("", "\n", "\r\n", "\n\n"), strict=True):
        text = make({}, {"repeat": 1}, run_id=name).to_csv(index=False, lineterminator="\n")
        (tmp_path / name).mkdir()
        encoding = "utf-8-sig" if name == "a" else "utf-8"
        (tmp_path / name / "samples.csv").write_text(text.rstrip() + ending, encoding)
    assert list(read_samples(tmp_path)["run_id"]) == list("aabbccdd")


def test_a_folder_of_runs_means_all_runs_in_it(tmp_path, make):
    """Some files may lack a metric that others have."""
    expected = []
    for name in ("b", "a", "c"):
        run = make({"run_id": name, "weight": 0.1}, {"run_id": name, "accepted": None})
        expected.append(run.assign(rouge1=0.5) if name == "c" else run)
        write_samples(tmp_path / name, expected[-1])
    (tmp_path / "figures").mkdir()
    b, a, c = expected
    for paths, order in (([tmp_path], [a, b, c]), ([tmp_path / "c", tmp_path], [c, a, b])):
        whole = pd.concat(order, ignore_index=True)
        pd.testing.assert_frame_equal(read_samples(*paths), whole, check_exact=True)


def test_the_one_bad_table_of_many_is_named(tmp_path, make):
    for name in "abcd":
        write_samples(tmp_path / name, make({"run_id": name}))
    good = (tmp_path / "c" / "samples.csv").read_text()
    without = make({"run_id": "c"}).drop(columns="quality").to_csv(index=False)
    for text, complaint in (
        (good.replace("0.75", "fast"), r"c/samples.csv: decode_seconds \('fast'\) in data row 1"),
        (without, r"c/samples.csv lacks the column quality;"),
        (good.replace("c,mini", "a,mini"), "both hold run a"),
    ):
        (tmp_path / "c" / "samples.csv").write_text(text)
        with pytest.raises(UsageError, match=complaint):
            read_samples(tmp_path)


def test_bad_input_is_one_line_with_its_location(tmp_path, make, monkeypatch):
    good = make({}).to_csv(index=False)
    scored = make({}).assign(rouge1=-3).to_csv(index=False)
    path = tmp_path / "samples.csv"
    for text, place in (
        ("", "is empty"),
        (good.splitlines()[0], "no rows"),
        ("a,b\n1,2\n", "run_id, pair"),
        ('a,b\n1,2,3\n"', "not a readable CSV file"),
        ("run_id\n\xff\n", "not a readable CSV file in UTF-8"),
        ("\xff\xfer\0u\0n\0", "not a readable CSV file in UTF-8"),
        (good + good.splitlines()[1], "data row 2 repeats an earlier one"),
        (good.replace(",1.0,cpu", ",1e308,cpu"), r"quality \('1e308'\) .* is not from 0 to 1"),
        (good.replace("0.75", "1e308"), r"decode_seconds \('1e308'\) .* is not from -9"),
        (good.replace("0.75", "inf"), r"decode_seconds \('inf'\) .* is not a finite number"),
        (good.replace(",5,", ",1e300,", 1), r"draft_length \('1e300'\) .* is not from 0 to 65536"),
        (scored, r"rouge1 \('-3'\) in data row 1 is not from 0 to 1"),
        (good.replace("mini-math", ""), "task in data row 1"),
        (good.replace(",5,", ",5.5,", 1), r"draft_length \('5.5'\) in data row 1"),
    ):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError, match=place) as raised:
            read_samples(tmp_path)
        assert "\n" not in str(raised.value)
        assert str(tmp_path) in str(raised.value)
    monkeypatch.setattr(arrow_csv, "read_csv", lambda *_, **__: path.open(mode="x"))
    with pytest.raises(UsageError, match="cannot be read: File exists"):
        read_samples(tmp_path)
    path.unlink()
    (tmp_path / "stopped").mkdir()
    for name in ("config.json", "samples.jsonl"):
        (tmp_path / "stopped" / name).touch()
    refusals = {"nowhere": "no folder", ".": "holds no samples", "stopped": "to resume it"}
    for folder, place in refusals.items():
        with pytest.raises(UsageError, match=place):
            read_samples(tmp_path / folder)


def test_a_selection_splits_tasks_by_category_and_turn(make):
    rows = [{"category": name, "turn": turn} for name, turn in (("a", 1), ("a", 2), (None, None))]
    table = make(*rows, {"task": "mini-code", "category": "b"})
    whole = ["mini-math"] * 3 + ["mini-code"]
    assert list(Selection().of(table)["task"]) == whole
    split = Selection(by=("category", "turn")).of(table)
    names = "mini-math/a/turn 1", "mini-math/a/turn 2", "mini-math", "mini-code/b"
    assert tuple(split["task"]) == names
    assert split.drop(columns="task").equals(table.drop(columns="task"))
    counts = {("mini-math",): 3, ("mini-math/a",): 2, ("mini-math/a", "mini-code"): 3}
    for tasks, count in counts.items():
        assert len(Selection([*tasks], by=("category",)).of(table)) == count
    with pytest.raises(UsageError, match="no task mini-math/c"):
        Selection(["mini-math/c"], by=("category",)).of(table)
    with pytest.raises(UsageError, match="no category: omit --by category"):
        Selection(by=("category",)).of(table[2:3])


def test_rows_have_the_values_and_types_of_pandas():
    frame = pd.DataFrame(
        {"text": ["a", None], "whole": [1, 2], "part": [0.5, np.nan], "flag": [True, False]},
        index=[3, 7],
    )
    for some in (frame, frame.head(0), frame[["part"]]):
        rows, expected = rows_of(some), some.to_dict("records")
        assert [[*row] for row in rows] == [[*row] for row in expected]
        for row, other in zip(rows, expected, strict=True):
            assert all(type(row[k]) is type(other[k]) for k in row)
            assert all(row[k] == other[k] or other[k] != other[k] for k in row)
