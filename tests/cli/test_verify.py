"""``specbench verify``: a faithful run passes, and every planted fault is found and named."""

import bz2
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.written import write_tables
from specbench.validation.findings import REPORT, Finding
from specbench.validation.verification.decoding import AGAIN
from specbench.validation.verification.verify import Verification

from .conftest import Result
from .made import configure, edit_object, edit_records, edit_rows, lines

Record = dict[str, Any]
DATA = Path(__file__).parents[1] / "data"


def failures(shown: Result) -> list[str]:
    return [" ".join(line.split()) for line in shown.out.splitlines() if "FAILED" in line]


@pytest.mark.parametrize(
    ("dtype", "column", "value", "verdict"),
    [
        ("bfloat16", "expected_acceptance", 0.123, "report"),
        ("bfloat16", "prompt_tokens", 999, "FAILED"),
        ("float32", "expected_acceptance", 0.123, "FAILED"),
    ],
)
def test_other_texts_in_bfloat16_are_reported_only(cli, run, dtype, column, value, verdict):
    """Rounding depends on the batch there; the fault is planted in all records."""
    edit_records(run, lambda rows: [row.update({column: value}) for row in rows], "diversed")
    configure(run, lambda config: config["loading"].update(dtype=dtype))
    shown = cli("verify", "r", "-n", "1")
    again = [line for line in shown.out.splitlines() if "decoded again" in line]
    assert any(verdict in line for line in again)


def test_the_answer_says_that_texts_decoded_again_differ(cli, run, monkeypatch):
    reported = Finding("", "mini-math", AGAIN, REPORT, "token_ids[0] is 1, not 2")
    monkeypatch.setattr(Verification, "findings", lambda self, report: iter([reported]))
    shown = cli("verify", "r")
    assert (shown.code, "samples decoded again differ" in shown.out) == (0, True)


def test_a_faithful_run_passes(cli, finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "r"))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    shown = cli("verify", "r", "-n", "9", "--no-progress")
    assert (shown.code, shown.err) == (0, ""), shown.out
    names = [line.split("  ")[0] for line in shown.out.splitlines()[2:]]
    again = ("decoded again", "keys follow from heads and settings", "heads are those of the run")
    assert [names.count(name) for name in again] == [2, 2, 1]
    assert "mini-math, 14 samples of 7 cells" in shown.out
    *_, last, answer = (line for line in shown.out.splitlines() if line.strip())
    assert answer.startswith(
        "verified: no difference found in 17 comparisons; times were not checked"
    )
    assert "decoded again differ" not in shown.out
    assert shown.out.count("  not checked  ") == 1
    assert "not checked  times; the machine and its software" in last
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def swap(records: list[Record]) -> None:
    """Exchange the texts of two samples with everything that follows from them."""
    first, second = records
    for name in first.keys() - {"key", "place", "sample_id", "quality", "scores"}:
        first[name], second[name] = second[name], first[name]


def stop(records: list[Record]) -> None:
    """Pretend that a stop string, which this task has not, ended a text early."""
    record = next(record for record in records if record["stopped_by"] == "length")
    record.update(text=record["text"][:5], stopped_by="stop")


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (
            lambda records: records[0].update(text="4"),
            ["texts follow from tokens", "decoded again"],
        ),
        (swap, ["decoded again"]),
        (stop, ["texts follow from tokens", "decoded again"]),
    ],
)
def test_an_edited_text_is_found(cli, run, change, checks):
    edit_records(run, change, "diversed")
    shown = cli("verify", "r", "-n", "2", code=1)
    named = [line.partition(" mini")[0].partition(" 6 samples")[0] for line in failures(shown)]
    assert named == checks
    assert "rounding may change a token" in shown.err


def fail_one(run: Path) -> str:
    """Let a sample of all cells fail, as the run itself would record it."""
    failed = {"status": "error", "error": "too long"}
    lines(run / "samples.jsonl", lambda records: [records[0] | failed, *records[1:]])
    return '"failed": 1'


def drop_one(run: Path) -> str:
    lines(run / "samples.jsonl", lambda records: records[:-1])
    return '"state": "interrupted"'


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (fail_one, "1 samples failed"),
        (drop_one, "incomplete: 1 samples are missing"),
        (lambda run: '"state": "running"', "its state is running"),
    ],
)
def test_a_run_that_is_not_whole_ends_with_3(cli, run, change, reason):
    name, _, value = change(run).partition(": ")
    configure(run, lambda config: config["progress"].update({json.loads(name): json.loads(value)}))
    write_tables(run)
    shown = cli("verify", "r", "-n", "0", code=3)
    assert f"shows no difference, but is not whole: {reason}" in shown.err
    assert "verified" not in shown.out


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (None, 0, "engine of environment.json, which does not exist"),
        (Path.mkdir, 1, "it is not the configuration of a run"),
        (lambda facts: facts.pop("models"), 0, "target, dtype, device of environment.json"),
        (lambda facts: facts.update(engine=None), 0, "engine of environment.json, which lacks"),
        (lambda facts: facts.update(models=[]), 1, "environment.json can be read r FAILED"),
        (lambda facts: facts["torch"].update(gpus={}), 1, "environment.json can be read r FAILED"),
    ],
)
def test_an_environment_that_cannot_be_compared_is_told(cli, run, change, code, told):
    path = run / "environment.json"
    if change in (None, Path.mkdir):
        path.unlink()
    if change is Path.mkdir:
        path.mkdir()
    elif change is not None:
        edit_object(path, change)
    shown = cli("verify", "r", "-n", "0")
    assert shown.code == code
    assert told in " ".join(shown.out.split())


def test_what_is_absent_is_not_checked(cli, run):
    for name in ("samples.jsonl", "examples.jsonl", "environment.json"):
        (run / name).unlink()
    configure(run, lambda config: config["tasks"][0]["cells"][-1]["head"].update(name="gone"))
    edit_rows(run / "samples.csv", lambda rows: rows[0].update(rounds="99"))
    shown = cli("verify", "r", "-n", "2", code=1)
    said = " ".join(shown.out.split())
    assert "texts, counts and rounds, without samples.jsonl" in said
    assert "diversed (there is no head at gone: give --head" in said
    table, page, planned, decoded = failures(shown)
    assert table.startswith("summary.csv follows from samples.csv")
    assert page.startswith("summary.md follows from samples.csv")  # which has the rounds, too
    assert "not planned" in planned  # the samples of the head that was renamed
    assert decoded.startswith("decoded again")
    assert "rounds is 99" in " ".join(shown.out.split())


@pytest.mark.parametrize("name", ["/tmp/head", "../head", "results/../head", "other/head", "."])
def test_a_head_outside_of_the_results_is_not_read(cli, run, name):
    configure(run, lambda config: config["tasks"][0]["cells"][-1]["head"].update(name=name))
    said = " ".join(cli("verify", "r", "-n", "1", code=1).out.split())
    assert "its head is outside of results, the only folder that heads are read from" in said


def test_times_of_a_run_without_its_texts_are_no_unplanned_samples(cli, tmp_path):
    line = ("run", "-t", "mini-math", "-n", "2", "--max-new-tokens", "4", "-o", "r")
    cli(*line, "-m", "sd", code=0)
    cli(*line, "-m", "sd,lossy", code=0)  # times sd again
    assert cli("verify", "r", "-n", "0").code == 0
    (tmp_path / "r" / "samples.jsonl").unlink()
    assert not failures(cli("verify", "r", "-n", "0", code=0))
    records = tmp_path / "r" / "timings.jsonl"
    records.with_suffix(".jsonl.bz2").write_bytes(bz2.compress(records.read_bytes()))
    records.unlink()
    edit_rows(tmp_path / "r" / "timings.csv", lambda rows: rows[0].update(output_tokens="99"))
    (failure,) = failures(cli("verify", "r", "-n", "0", code=1))
    assert failure.startswith("timings.csv follows from timings.jsonl")


def test_models_that_are_not_here_are_named_once_for_all_methods(cli, run):
    configure(run, lambda config: config["pair"].update(target="folder/x", draft="folder/y"))
    write_tables(run)
    said = " ".join(cli("verify", "r", "-n", "0", code=0).out.split())
    assert (
        "autoregressive, sd, diversed (the models of r (folder/x, folder/y) are not bundled" in said
    )
    assert said.count("are not bundled") == 1


def test_the_data_of_a_bundled_task_is_read_from_a_folder(cli, tmp_path):
    data = tmp_path / "data" / "gsm8k" / "test.jsonl"
    shutil.copytree(DATA / "gsm8k", data.parent)
    options = ("-t", "gsm8k", "--data", "data", "-n", "2", "--max-new-tokens", "2")
    assert cli("run", "-m", "autoregressive", *options, "-o", "r").code == 0
    without, beside = cli("verify", "r", "-n", "0"), cli("verify", "r", "-n", "0", "--data", "data")
    assert "examples of gsm8k (the data of gsm8k is on the hub" in " ".join(without.out.split())
    assert without.code == beside.code == 0
    assert "examples are those of the task" in beside.out and "on the hub" not in beside.out
    data.write_text(data.read_text().replace("?", "!"))
    edited = cli("verify", "r", "-n", "0", "--data", "data", code=1)
    assert failures(edited)[0].startswith("examples are those of the task")


def test_shots_of_a_run_are_read_only_if_they_are_a_number(cli, run):
    for shots in ([1], "x", -1, True):
        configure(run, lambda config, shots=shots: config["tasks"][0]["data"].update(shots=shots))
        cli("verify", "r", "-n", "0", "-t", "mini-math", code=0)  # which has no shots
