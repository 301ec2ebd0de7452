from pathlib import Path

import pandas as pd
import pytest

from specbench.analysis import frames
from specbench.analysis.frames import SAMPLES, SUMMARY, read_samples, read_summary
from specbench.errors import UsageError


def write(folder: Path, frame: pd.DataFrame, name: str = "samples.csv") -> Path:
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / name, index=False)
    return folder


def test_samples_survive_the_disk(tmp_path, samples):
    pd.testing.assert_frame_equal(read_samples(write(tmp_path / "run", samples)), samples)


def test_columns_have_their_types(tmp_path, make):
    frame = read_samples(write(tmp_path / "run", make({"rule": None, "weight": None})))
    assert list(frame) == list(SAMPLES)
    assert frame["weight"].dtype == "float64"
    assert frame["draft_length"].dtype == "int64"
    assert frame["weight"].isna().all()
    assert frame["rule"].isna().all()


@pytest.mark.parametrize("name", ["NA", "007", "null", "1e5", 'ü, "quoted"'])
def test_sample_ids_stay_text(tmp_path, make, name):
    frame = read_samples(write(tmp_path / "run", make({"sample_id": name})))
    assert list(frame["sample_id"]) == [name]


def test_strict_settings_may_be_infinite(tmp_path, make):
    frame = read_samples(write(tmp_path / "run", make({"alpha": float("-inf")})))
    assert frame["alpha"].iloc[0] == float("-inf")


def test_several_runs_are_stacked(tmp_path, make):
    first = write(tmp_path / "1", make({"run_id": "one"}, {"run_id": "one", "sample_id": "b"}))
    second = write(tmp_path / "2", make({"run_id": "two"}))
    assert list(read_samples(first, str(second))["run_id"]) == ["one", "one", "two"]


def test_a_folder_of_runs_stands_for_the_runs_in_it(tmp_path, make):
    for name in ("b", "a", "c"):
        write(tmp_path / name, make({"run_id": name}))
    (tmp_path / "figures").mkdir()
    (tmp_path / "heads.csv").touch()
    assert list(read_samples(tmp_path)["run_id"]) == ["a", "b", "c"]
    assert list(read_samples(tmp_path / "c", tmp_path)["run_id"]) == ["c", "a", "b"]


def test_many_runs_are_read_as_if_one_by_one(tmp_path, make, monkeypatch):
    """Tables alike are read as one long table; nothing may come of that but speed."""
    expected = []
    for number in range(7):
        run = make(
            {"run_id": f"{number}", "sample_id": "a, b", "weight": 0.1 * number, "accepted": None},
            {"run_id": f"{number}", "sample_id": "007", "engine": "compile", "batch_size": 8},
        )
        if number in (2, 3, 6):  # a metric more
            run = run.assign(rouge1=0.5)
        expected.append(run)
        write(tmp_path / f"{number}", run)
    monkeypatch.setattr(frames, "_BATCH", 2)
    monkeypatch.setattr(frames, "_read_one_by_one", None)
    found = read_samples(tmp_path)
    pd.testing.assert_frame_equal(found, pd.concat(expected, ignore_index=True), check_exact=True)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n"])
def test_what_stands_at_the_end_of_a_table_does_not_matter(tmp_path, make, ending):
    for name in "abc":
        text = make({"run_id": name}, {"run_id": name}).to_csv(index=False, lineterminator="\n")
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.csv").write_text(text.rstrip() + ending)
    assert list(read_samples(tmp_path)["run_id"]) == list("aabbcc")


def test_a_line_break_in_a_name_moves_no_row_to_another_run(tmp_path, make):
    for name in "ab":
        write(tmp_path / name, make({"run_id": name, "sample_id": f"two\nlines, {name}"}))
    found = read_samples(tmp_path)
    assert list(found["run_id"] + found["sample_id"]) == ["atwo\nlines, a", "btwo\nlines, b"]


def test_the_one_bad_table_of_many_is_named(tmp_path, make):
    for name in "abcd":
        write(tmp_path / name, make({"run_id": name}))
    path = tmp_path / "c" / "samples.csv"
    path.write_text(path.read_text().replace("0.75", "fast"))
    with pytest.raises(UsageError, match=r"c/samples.csv: decode_seconds \('fast'\) in data row 1"):
        read_samples(tmp_path)


def test_a_column_that_one_of_many_lacks_is_not_taken_for_blank(tmp_path, make):
    write(tmp_path / "a", make({"run_id": "a"}))
    write(tmp_path / "b", make({"run_id": "b"}).drop(columns="quality"))
    with pytest.raises(UsageError, match=r"b/samples.csv lacks the column quality;"):
        read_samples(tmp_path)


def test_a_folder_given_twice_is_read_once(tmp_path, make):
    folder = write(tmp_path / "run", make({}))
    assert len(read_samples(folder, folder / ".." / "run")) == 1


def test_a_copied_run_is_refused(tmp_path, make):
    folders = [write(tmp_path / name, make({"run_id": "same"})) for name in ("1", "2")]
    with pytest.raises(UsageError, match="both hold run same"):
        read_samples(*folders)


def test_extra_columns_are_ignored(tmp_path, make):
    frame = read_samples(write(tmp_path / "run", make({}).assign(note="x")))
    assert list(frame) == list(SAMPLES)


def test_no_folder_at_all():
    with pytest.raises(UsageError, match="No run was given"):
        read_samples()


def _nothing(folder: Path, good: str) -> None:
    folder.rmdir()


def _a_file(folder: Path, good: str) -> None:
    folder.rmdir()
    folder.write_text(good)


def _no_csv(folder: Path, good: str) -> None:
    pass


def _text(content: str | bytes):
    def put(folder: Path, good: str) -> None:
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / "samples.csv").write_bytes(raw)

    return put


def _edited(old: str, new: str):
    def put(folder: Path, good: str) -> None:
        assert old in good
        (folder / "samples.csv").write_text(good.replace(old, new, 1))

    return put


def _header_only(folder: Path, good: str) -> None:
    (folder / "samples.csv").write_text(good.splitlines()[0] + "\n")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_nothing, "There is no folder"),
        (_a_file, "There is no folder"),
        (_no_csv, "holds no samples.csv"),
        (_text(""), "is empty"),
        (_text("\n\n"), "is empty"),
        (_header_only, "has no rows"),
        (_text("a,b\n1,2\n"), "lacks the columns run_id, pair"),
        (_edited("quality_metric", "metric"), "lacks the column quality_metric;"),
        (_edited(",head,", ",verifier,"), "lacks the column head; .* run again"),
        (_text('a,b\n1,2,3\n"'), "not a readable CSV file"),
        (_text(b"run_id\n\xff\xfe\n"), "not a readable CSV file"),
        (_edited("0.75", "fast"), r"decode_seconds \('fast'\) in data row 1 is not a number"),
        (_edited("mini-math", ""), "task in data row 1 is blank"),
        (_edited(",5,", ",5.5,"), r"draft_length \('5.5'\) in data row 1 is not a whole number"),
    ],
)
def test_bad_input_is_one_line_that_says_what_and_what_to_do(tmp_path, make, spoil, complaint):
    folder = tmp_path / "run"
    folder.mkdir()
    spoil(folder, make({}).to_csv(index=False))
    with pytest.raises(UsageError, match=complaint) as raised:
        read_samples(folder)
    message = str(raised.value)
    assert "\n" not in message
    assert str(folder) in message


def test_an_unreadable_table_is_a_usage_error(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "samples.csv").touch()
    monkeypatch.setattr(pd, "read_csv", refuse)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        read_samples(tmp_path)


def test_summary_needs_its_own_columns(tmp_path, make):
    folder = write(tmp_path / "run", make({}), "summary.csv")
    with pytest.raises(UsageError, match="lacks the columns metric, value, ci_low, ci_high, n"):
        read_summary(folder)
    assert set(SUMMARY) - set(SAMPLES) == {"metric", "value", "ci_low", "ci_high", "n", "unit"}
