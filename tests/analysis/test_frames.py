from pathlib import Path

import pandas as pd
import pytest

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
