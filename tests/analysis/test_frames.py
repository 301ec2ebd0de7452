from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specbench.analysis import frames
from specbench.analysis.frames import SAMPLES, read_samples
from specbench.errors import UsageError


def write(folder: Path, frame: pd.DataFrame, name: str = "samples.csv") -> Path:
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / name, index=False)
    return folder


def test_columns_have_their_types(tmp_path, make):
    frame = read_samples(
        write(
            tmp_path / "run",
            make({"rule": None, "weight": None, "alpha": -np.inf}).assign(note="x"),
        )
    )
    assert list(frame) == list(SAMPLES)
    assert frame["alpha"].iloc[0] == -np.inf
    assert frame["weight"].dtype == "float64"
    assert frame["draft_length"].dtype == "int64"
    assert frame[["weight", "rule"]].isna().all(axis=None)


def test_samples_survive_the_disk(tmp_path, samples):
    names = ["NA", "007", "null", "1e5", 'ü, "quoted"']
    samples = samples.assign(sample_id=np.resize(names, len(samples)))
    pd.testing.assert_frame_equal(read_samples(write(tmp_path / "run", samples)), samples)


def test_what_stands_at_the_end_of_a_table_does_not_matter(tmp_path, make):
    for name, ending in zip("abcd", ("", "\n", "\r\n", "\n\n"), strict=True):
        text = make({"run_id": name}, {"run_id": name}).to_csv(index=False, lineterminator="\n")
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.csv").write_text(text.rstrip() + ending)
    assert list(read_samples(tmp_path)["run_id"]) == list("aabbccdd")


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
    monkeypatch.setattr(frames, "_read_text", None)
    found = read_samples(tmp_path)
    pd.testing.assert_frame_equal(found, pd.concat(expected, ignore_index=True), check_exact=True)


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


def test_a_copied_run_is_refused(tmp_path, make):
    folders = [write(tmp_path / name, make({"run_id": "same"})) for name in ("1", "2")]
    with pytest.raises(UsageError, match="both hold run same"):
        read_samples(*folders)


def test_bad_input_is_one_line_that_says_what_and_what_to_do(tmp_path, make):
    good = make({}).to_csv(index=False)
    for number, (text, complaint) in enumerate(
        (
            ("", "is empty"),
            (good.splitlines()[0], "has no rows"),
            ("a,b\n1,2\n", "lacks the columns run_id, pair"),
            (good.replace(",head,", ",verifier,"), "lacks the column head; .* run again"),
            ('a,b\n1,2,3\n"', "not a readable CSV file"),
            ("run_id\n\xff\n", "not a readable CSV file"),
            (good.replace("0.75", "fast"), r"decode_seconds \('fast'\) in data row 1 is not a num"),
            (good.replace("mini-math", ""), "task in data row 1 is blank"),
            (
                good.replace(",5,", ",5.5,", 1),
                r"draft_length \('5.5'\) in data row 1 is not a wh",
            ),
        )
    ):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "samples.csv").write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError, match=complaint) as raised:
            read_samples(folder)
        assert "\n" not in str(raised.value)
        assert str(folder) in str(raised.value)
    with pytest.raises(UsageError, match="There is no folder"):
        read_samples(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UsageError, match="holds no samples"):
        read_samples(tmp_path / "bare")


def test_a_table_that_cannot_be_opened_is_named(tmp_path, make, monkeypatch):
    folder = write(tmp_path / "run", make({}))
    (folder / "samples.csv").write_text("")  # which Arrow leaves to the reader that explains

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pd, "read_csv", refuse)
    with pytest.raises(UsageError, match=r"run.samples\.csv.*Permission denied"):
        read_samples(folder)
