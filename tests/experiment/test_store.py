import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.frames import PARAMETERS, read_summary
from specbench.errors import RunError, UsageError
from specbench.experiment.folders import LOCK, newest_run, unfinished
from specbench.experiment.records import failures, read_records
from specbench.experiment.store import Store
from specbench.files import digits, write_atomically

SAMPLE_COLUMNS = (
    "run_id,pair,task,method,weight,lenience,rule,alpha,budget,epsilon,delta,divergence,"
    "target_temperature,target_min_p,gate,cost,head,"
    "temperature,draft_length,engine,"
    "batch_size,seed,repeat,sample_id,quality_metric,quality,device,prompt_tokens,output_tokens,"
    "rounds,"
    "proposed,accepted,judged,draft_acceptance_rate,acceptance_length,expected_acceptance,mean_weight,"
    "prefill_seconds,decode_seconds,draft_seconds,verify_seconds,accept_seconds,latency_seconds,"
    "tokens_per_second,stopped_by"
)
SUMMARY_COLUMNS = (
    "run_id,pair,task,method,weight,lenience,rule,alpha,budget,epsilon,delta,divergence,"
    "target_temperature,target_min_p,gate,cost,head,"
    "temperature,draft_length,engine,"
    "batch_size,metric,value,ci_low,ci_high,n,unit"
)


def record(sample: str = "t-0", **changes: Any) -> dict[str, Any]:
    values = {
        "key": sample,
        "place": 0,
        "run_id": "r",
        "pair": "p",
        "task": "t",
        "method": "sd",
        **dict.fromkeys(PARAMETERS),
        "temperature": 1.0,
        "draft_length": 5,
        "engine": "eager",
        "batch_size": 1,
        "seed": 0,
        "repeat": 0,
        "sample_id": sample,
        "quality_metric": "accuracy",
        "quality": 1.0,
        "device": "cpu",
        "prompt_tokens": 4,
        "output_tokens": 8,
        "rounds": 2,
        "proposed": 10,
        "accepted": 6,
        "judged": 8,
        "draft_acceptance_rate": 0.6,
        "acceptance_length": 4.0,
        "expected_acceptance": 0.6,
        "mean_weight": None,
        "prefill_seconds": 0.5,
        "decode_seconds": 1.5,
        "draft_seconds": 0.5,
        "verify_seconds": 0.75,
        "accept_seconds": 0.125,
        "latency_seconds": 2.0,
        "tokens_per_second": 4.0,
        "stopped_by": "eos",
        "text": 'a, "quoted"\ntext',
        "scores": {"accuracy": 1.0},
        "status": "ok",
    }
    return values | changes


def names(folder: Path) -> list[str]:
    """The files of a run, its lock apart."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def progress(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "config.json").read_text())["progress"]
    return state


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_finished_run_has_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "r"
    with Store.open(folder, "run", {"a": 1, "samples_planned": 2, "tasks": []}) as store:
        store.write_environment({"python": "3"})
        store.append(record("t-0"))
        store.append(record("t-1", accepted=2))
    assert names(folder) == [
        "config.json",
        "environment.json",
        "samples.csv",
        "samples.jsonl",
        "summary.csv",
        "summary.md",
    ]
    header, *_ = (folder / "samples.csv").read_text().splitlines()
    assert header == SAMPLE_COLUMNS
    header, *_ = (folder / "summary.csv").read_text().splitlines()
    assert header == SUMMARY_COLUMNS
    assert [row["sample_id"] for row in table(folder / "samples.csv")] == ["t-0", "t-1"]
    rates = [r for r in table(folder / "summary.csv") if r["metric"] == "draft_acceptance_rate"]
    assert [float(row["value"]) for row in rates] == [0.4]
    assert json.loads((folder / "config.json").read_text())["a"] == 1
    assert progress(folder) == {"state": "complete", "samples": 2, "failed": 0}
    assert unfinished(folder) is None


def test_blank_is_blank_and_numbers_keep_their_digits(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", {}) as store:
        store.append(record(accepted=None, quality=1 / 3))
    (row,) = table(store.folder / "samples.csv")
    assert (row["accepted"], row["weight"]) == ("", "")
    assert float(row["quality"]) == 1 / 3


def test_every_sample_is_on_disk_as_soon_as_it_is_recorded(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", {}) as store:
        for number in range(3):
            store.append(record(f"t-{number}"))
            lines = (store.folder / "samples.jsonl").read_text().splitlines()
            assert [json.loads(line)["sample_id"] for line in lines][-1] == f"t-{number}"
            assert len(lines) == number + 1
        assert progress(store.folder)["state"] == "running"


@pytest.mark.parametrize(
    ("problem", "state"), [(KeyboardInterrupt(), "interrupted"), (RunError("x"), "failed")]
)
def test_what_was_measured_before_the_end_is_kept(
    tmp_path: Path, problem: BaseException, state: str
) -> None:
    store = Store.open(tmp_path / "r", "run", {"samples_planned": 9, "tasks": []})
    with pytest.raises(type(problem)), store:
        store.append(record())
        raise problem
    assert unfinished(store.folder) == f"{state}, 1 of 9 samples"
    assert len(table(store.folder / "samples.csv")) == 1
    assert table(store.folder / "summary.csv")
    assert progress(store.folder) == {"state": state, "samples": 1, "failed": 0}


def test_failed_samples_are_counted_and_in_no_table(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", {}) as store:
        store.append(record("t-0", status="unscored", quality=None, error="no"))
        store.append(record("t-1", status="error", error="no"))
    assert [row["sample_id"] for row in table(store.folder / "samples.csv")] == ["t-0"]
    assert progress(store.folder)["failed"] == 2
    assert list(failures(store.folder)) == ["no", "no"]


def test_where_every_sample_failed_there_is_no_table(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", {}) as store:
        store.append(record("t-0", status="error", error="no"))
    assert not list(store.folder.glob("*.csv"))


def test_a_run_without_a_sample_leaves_nothing_behind(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r", "run", {})
    with pytest.raises(UsageError), store:
        store.write_environment({})
        raise UsageError("no models")
    assert not (tmp_path / "r").exists()


def test_folders_are_named_by_time_and_label_and_never_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [Store.open(None, "run-mini", {}).folder for _ in range(3)]
    assert len(set(folders)) == 3
    for folder in folders:
        assert folder.parent == Path("results")
        assert "-run-mini" in folder.name


def test_a_folder_s_name_has_no_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"samples_planned": 2, "tasks": []}
    store = Store.open(None, "run-pairs.toml:mine", config)
    with pytest.raises(KeyboardInterrupt), store:
        store.append(record())
        raise KeyboardInterrupt
    assert store.folder.name.endswith("-run-pairs.toml-mine")
    with Store.open(None, "run-pairs.toml:mine", config) as again:
        assert (again.folder, again.resumed) == (store.folder, 1)


def test_the_summary_is_the_same_once_read_and_written_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", {}) as store:
        for number in range(7):
            store.append(record(f"t-{number}", quality=1 / (number + 3), decode_seconds=0.1 / 3))
    before = (store.folder / "summary.csv").read_text()
    again = read_summary(store.folder).to_csv(index=False, float_format=digits)
    assert again == before
    values = [row["value"] for row in table(store.folder / "summary.csv") if row["value"]]
    assert max(len(v.partition("e")[0].replace(".", "").lstrip("0")) for v in values) == 12


def test_a_folder_with_something_in_it_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "samples.csv").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and holds no run: name another folder"):
        Store.open(tmp_path, "run", {})
    assert (tmp_path / "samples.csv").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*Not a directory.*--output"):
        Store.open(tmp_path / "file" / "r", "run", {})


def test_a_disk_full_at_the_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(UsageError, match="No space left on device"):
        Store.open(tmp_path / "r", "run", {})
    assert not (tmp_path / "r").exists()


def test_a_disk_that_fills_up_stops_the_run_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "r", "run", {})
    with pytest.raises(RunError, match=r"cannot write .*samples\.jsonl \(No space left"), store:
        store.append(record("t-0"))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full_disk)
            store.append(record("t-1"))
    assert [row["sample_id"] for row in table(store.folder / "samples.csv")] == ["t-0"]
    assert progress(store.folder)["state"] == "failed"


def test_a_disk_full_at_the_end_is_one_clear_error_and_no_half_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "r", "run", {})
    with pytest.raises(RunError, match=r"cannot write .*samples\.csv"), store:
        store.append(record())
        monkeypatch.setattr(os, "replace", full_disk)
    assert names(store.folder) == ["config.json", "samples.jsonl"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(RunError):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_torn_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    line = json.dumps(record("a")) + "\n"
    (tmp_path / "samples.jsonl").write_text(line + line[:25])
    assert [r["sample_id"] for r in read_records(tmp_path)] == ["a"]


CONFIG: dict[str, Any] = {"samples_planned": 1, "tasks": []}


@pytest.mark.parametrize(
    ("line", "said"),
    [("{}", "it has no "), ("[]", "not an object"), ("{", "line of JSON")],
)
def test_a_line_that_is_no_sample_is_located(line: str, said: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", CONFIG) as store:
        store.append(record())
    with (store.folder / "samples.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=rf"samples\.jsonl, line 2, is no sample .*{said}"):
        Store.open(tmp_path / "r", "run", CONFIG)


def test_a_failed_sample_that_another_version_decodes_is_one_sample(tmp_path: Path) -> None:
    with Store.open(tmp_path / "r", "run", CONFIG) as store:
        store.append(record("t-0", key="old", status="unscored", quality=None, error="no"))
    with Store.open(tmp_path / "r", "run", CONFIG) as store:
        store.require_alike("new", record("t-0"))
        store.append(record("t-0", key="new"))
        assert (store.done, store.failed, store.has("new")) == (1, 0, True)
        with pytest.raises(UsageError, match="other models"):
            store.require_alike("newer", record("t-0"))
    assert [row["quality"] for row in table(store.folder / "samples.csv")] == ["1.0"]


def test_the_newest_run_is_the_one_finished_last(tmp_path: Path) -> None:
    for age, name in enumerate(["b", "c", "a"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.csv").touch()
        os.utime(tmp_path / name / "samples.csv", (1000 - age, 1000 - age))
    (tmp_path / "unfinished").mkdir()
    assert newest_run(tmp_path) == tmp_path / "b"
    with pytest.raises(UsageError, match="there is no run under"):
        newest_run(tmp_path / "a")


def test_a_run_without_samples_removes_only_a_folder_it_made(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for folder in (own, tmp_path / "new"):
        with Store.open(folder, "run", {}):
            pass
    assert list(tmp_path.iterdir()) == [own]
    assert list(own.iterdir()) == []
