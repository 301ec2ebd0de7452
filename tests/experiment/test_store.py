"""The folder of a run: its files at any moment, and the keys of samples."""

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.results import Results
from specbench.analysis.written import write_summary
from specbench.decoding.drafters.registry import parse_drafter, recorded_drafter
from specbench.decoding.heads.registry import HeadFile
from specbench.errors import RunError, UsageError
from specbench.experiment import identity as module
from specbench.experiment.folders import require_same_run, run_id
from specbench.experiment.identity import sample_keys
from specbench.experiment.plan import own_sources
from specbench.experiment.store import Store
from specbench.files import digits, write_atomically
from specbench.runs.frames import SAMPLES, read_samples, read_summary
from specbench.runs.model import SampleRecord
from specbench.runs.records import latest_records
from specbench.runs.run import ENVIRONMENT, newest_run, unfinished
from specbench.runs.running import LOCK
from specbench.tasks.prompts import PromptList

from ..synthetic import rows
from .runs import ROWS, TASK, brief_summary, measured, plan_of, progress

CONFIG: dict[str, Any] = {"samples_planned": 9, "tasks": []}


def record(sample: str = "t-0", **changes: Any) -> SampleRecord:
    scored = {"quality_metric": "accuracy", "quality": 1.0, "scores": {"accuracy": 1.0}}
    fields = {**scored, "status": "ok", **changes}
    return measured("t", sample, 'a, "quoted"\ntext').filled(**fields)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


def test_a_finished_run_has_all_its_files(tmp_path):
    folder = tmp_path / "out" / "r"
    with Store.open(folder, "run", {"a": 1, **CONFIG}, summarise=write_summary) as store:
        write_atomically(folder / ENVIRONMENT, '{"python": "3"}')
        for number, accepted in enumerate((6, 2)):
            store.append(record(f"t-{number}", accepted=accepted, quality=1 / (number + 3)))
            # Every sample is on disk as soon as it is recorded.
            lines = (folder / "samples.jsonl").read_text().splitlines()
            assert [json.loads(line)["sample_id"] for line in lines][-1] == f"t-{number}"
            assert len(lines) == number + 1
        assert progress(folder)["state"] == "running"
    assert names(folder) == [
        *("config.json", "environment.json", "samples.csv", "samples.jsonl"),
        *("summary.csv", "summary.md"),
    ]
    first, second = rows(folder / "samples.csv")
    assert list(first) == list(SAMPLES)
    assert (first["sample_id"], second["sample_id"]) == ("t-0", "t-1")
    assert (first["weight"], float(first["quality"])) == ("", 1 / 3)
    summary = {row["metric"]: row["value"] for row in rows(folder / "summary.csv")}
    assert float(summary["draft_acceptance_rate"]) == 0.4
    again = read_summary(folder).to_csv(index=False, float_format=digits)
    assert again == (folder / "summary.csv").read_text()
    assert isinstance(store.results, Results)  # from the records in memory, as if they were read
    pd.testing.assert_frame_equal(store.results.decodes, read_samples(folder))
    assert json.loads((folder / "config.json").read_text())["a"] == 1
    assert progress(folder) == {"state": "complete", "samples": 2, "failed": 0}
    assert unfinished(folder) is None


def test_a_run_of_an_earlier_version_may_grow(tmp_path):
    folder = tmp_path / "r"
    old = {**CONFIG, "settings": {"seed": 1, "engine_fallback": False}}
    with Store.open(folder, "run", old, summarise=write_summary) as store:
        store.append(record("t-0"))
    for seed, is_same in ((1, True), (2, False)):
        now = {**CONFIG, "settings": {"seed": seed, "shard": None}}
        with nullcontext() if is_same else pytest.raises(UsageError, match=r"settings\.seed"):
            require_same_run(folder, now)


@pytest.mark.parametrize(
    ("problem", "state"), [(KeyboardInterrupt(), "interrupted"), (RunError("x"), "failed")]
)
def test_samples_before_an_error_are_kept(tmp_path, problem, state):
    store = Store.open(tmp_path / "r", "run", CONFIG, summarise=brief_summary)
    with pytest.raises(type(problem)), store:
        store.append(record())
        raise problem
    assert unfinished(store.folder) == f"{state}, 1 of 9 samples"
    assert len(rows(store.folder / "samples.csv")) == 1
    assert rows(store.folder / "summary.csv")
    assert progress(store.folder) == {"state": state, "samples": 1, "failed": 0}


def test_a_run_without_samples_removes_its_folder_and_failed_ones_are_in_no_table(tmp_path):
    store = Store.open(tmp_path / "r", "run", {}, summarise=brief_summary)
    with pytest.raises(UsageError), store:
        write_atomically(store.folder / ENVIRONMENT, "{}")
        raise UsageError("no models")
    (tmp_path / "own").mkdir()
    with Store.open(tmp_path / "own", "run", {}, summarise=brief_summary):
        pass
    assert list(tmp_path.rglob("*")) == [tmp_path / "own"]
    with Store.open(tmp_path / "r", "run", {}, summarise=brief_summary) as store:
        store.append(record("t-1", status="error", error="no"))
    assert not list(store.folder.glob("*.csv"))
    with Store.open(tmp_path / "s", "run", {}, summarise=brief_summary) as store:
        store.append(record("t-0", status="unscored", quality=None, error="no"))
        store.append(record("t-1", status="error", error="no"))
    assert [row["sample_id"] for row in rows(store.folder / "samples.csv")] == ["t-0"]
    assert progress(store.folder)["failed"] == 2


def test_the_same_command_retries_what_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_id(Path(), {}) == tmp_path.name
    for text in ("no", "nor now"):
        with Store.open(None, "run", CONFIG, summarise=brief_summary) as store:
            store.append(record("t-1", status="error", error=text))
    assert len([*Path("results").iterdir()]) == 1 and store.failed == 1


def test_a_failure_takes_no_sample_away(tmp_path):
    failed = {"status": "error", "error": "no"}
    with Store.open(tmp_path / "r", "run", CONFIG, summarise=brief_summary) as store:
        for name, fields in (("t-0", {}), ("t-0", {"quality": 0.5}), ("t-1", failed), ("t-1", {})):
            store.append(record(name, **fields))
        store.append(record("t-0", **failed))
        for error in ("no", "nor now"):
            store.append(record("t-1", key="of other models", status="error", error=error))
    assert store.failed == 1
    attempts = [(r.sample_id, r.error, r.quality) for r in latest_records(store.folder)]
    assert attempts == [("t-0", None, 0.5), ("t-1", "nor now", 1.0)]


def test_folders_are_named_by_time_and_label_and_never_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    label = "run-pairs.toml:mine"
    stores = [Store.open(None, label, CONFIG, summarise=brief_summary) for _ in range(3)]
    assert len({store.folder for store in stores}) == 3
    for store in stores:
        assert store.folder.parent == Path("results")
        assert "-run-pairs.toml-mine" in store.folder.name  # valid on any file system


def test_a_new_run_neither_reads_others_that_are_odd_nor_goes_on_without_a_configuration(tmp_path):
    """The one has a link out of its folder; the other has lost its configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        odd = Store.open(None, "run", CONFIG, summarise=brief_summary).folder
        (odd / "samples.jsonl").symlink_to(tmp_path)
        assert Store.open(None, "run", CONFIG, summarise=brief_summary).folder != odd
    with Store.open(tmp_path / "r", "run", CONFIG, summarise=brief_summary) as store:
        store.append(record())
    (store.folder / "config.json").unlink()
    again = Store.open(store.folder, "run", CONFIG, fresh=True, summarise=brief_summary)
    assert again.resumed == 0 and (tmp_path / "r-before" / "samples.jsonl").is_file()


def test_shards_share_a_name_wherever_their_files_lie():
    def name(root, number, sha="1", **changes):
        head = {"name": "t", "path": f"{root}/heads/t", "kind": "linear"}
        data = {"splits": {"test": {"file": f"{root}/t.jsonl", "sha256": sha}}}
        cells = [{"method": "diversed", "head": head, "draft_length": 5}]
        config = {
            "pair": {"name": "p", "target": f"{root}/target", "draft": None},
            "loading": {"device": f"cuda:{number}", "device_map": None, "dtype": "auto"},
            "settings": {"seed": 0, "shard": f"{number}/2", **changes},
            "servers": [{"name": "s", "url": f"http://{number}", "model": f"{root}/target"}],
            "tasks": [{"name": "t", "data": data, "examples": number, "cells": cells}],
            "sources": {f"{root}/own.py:rule": "digest"},
        }
        return run_id(Path("r"), config)

    assert name("/a", 1) == name("/b/c", 2)
    assert len({name("/a", 1), name("/a", 1, sha="2"), name("/a", 1, seed=1)}) == 3


def test_a_folder_without_a_run_is_refused_and_untouched(tmp_path):
    (tmp_path / "samples.csv").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and contains no run"):
        Store.open(tmp_path, "run", {}, summarise=brief_summary)
    assert (tmp_path / "samples.csv").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UsageError, match=r"cannot write .*Not a directory.*--output"):
        Store.open(tmp_path / "samples.csv" / "r", "run", {}, summarise=brief_summary)


def test_a_full_disk_is_one_clear_error_and_no_half_file(tmp_path, monkeypatch, full_disk):
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="No space left"):
        patch.setattr(os, "replace", full_disk)
        Store.open(tmp_path / "start", "run", {}, summarise=brief_summary)
    assert not (tmp_path / "start").exists()

    store = Store.open(tmp_path / "middle", "run", {}, summarise=brief_summary)
    with pytest.raises(RunError, match=r"cannot write .*samples\.jsonl \(No space left"), store:
        store.append(record("t-0"))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full_disk)
            store.append(record("t-1"))
    assert [row["sample_id"] for row in rows(store.folder / "samples.csv")] == ["t-0"]
    assert progress(store.folder)["state"] == "failed"

    write_atomically(tmp_path / "a.csv", "old")
    store = Store.open(tmp_path / "end", "run", {}, summarise=brief_summary)
    with pytest.raises(RunError, match=r"cannot write .*samples\.csv"), store:
        store.append(record())
        monkeypatch.setattr(os, "replace", full_disk)
    assert names(store.folder) == ["config.json", "samples.jsonl"]
    with pytest.raises(RunError):
        write_atomically(tmp_path / "a.csv", "new")
    assert (tmp_path / "a.csv").read_text() == "old"
    assert not list(tmp_path.rglob(".*.partial"))


def test_the_newest_run_is_the_one_finished_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no run under results"):
        newest_run()
    for age, name in enumerate(["b", "c", "a"]):
        table = Path("results", name, "samples.csv")
        table.parent.mkdir(parents=True)
        table.touch()
        os.utime(table, (1000 - age, 1000 - age))
    Path("results/unfinished").mkdir()
    assert newest_run() == Path("results/b")


MODELS = {"target": "t0", "draft": "d0", "dtype": "float32"}


def key(
    task: Any = TASK, models: Any = MODELS, engine: str = "eager", asked: str = "", **settings: Any
) -> str:
    plan = plan_of(["sd"], task, engine=asked or engine, **settings)
    return sample_keys(plan, models, engine)(next(plan.steps()))


def test_a_samples_key_covers_all_that_determines_it(monkeypatch):
    # Neither repeats nor shards nor an engine that auto chose and kept affects a sample.
    assert key() == key(repeats=3) == key(shard="1/2") == key(asked="auto")
    other_prompt = PromptList((replace(ROWS[0], prompt="two"),))
    other_reference = PromptList((replace(ROWS[0], reference="#### 9"),))
    settings: dict[str, list[Any]] = {
        **{"seed": [1], "temperature": [0.5], "top_k": [3], "min_p": [0.1], "max_new_tokens": [5]},
        **{"batch_size": [2], "engine": ["compile", "graph"]},
        "models": [MODELS | {"target": "t1"}, MODELS | {"dtype": "bfloat16"}],
        "task": [
            *(replace(TASK, version="2"), replace(TASK, metrics=("rouge1",))),
            *(replace(TASK, stop=()), replace(TASK, source=other_prompt)),
            replace(TASK, source=other_reference),
        ],
    }
    keys = [key(**{name: value}) for name, values in settings.items() for value in values]
    keys += [key(), key(engine="graph", asked="auto")]
    plan = plan_of(["autoregressive", "sd", "lossy"], repeats=2)
    steps = list(map(sample_keys(plan, MODELS, "eager"), plan.steps()))
    step = next(plan_of(["sd"]).steps())
    looked_up = replace(step, cell=replace(step.cell, drafter=parse_drafter("prompt-lookup")))
    keys.append(sample_keys(plan_of(["sd"]), MODELS, "eager")(looked_up))
    assert len(set(keys)) == len(keys)
    assert len(set(steps)) == len(steps) == 18
    monkeypatch.setattr(module, "__version__", "99")
    assert key() not in keys


def test_a_policy_and_a_rule_of_a_file_count_by_their_content(tmp_path):
    (file := tmp_path / "mine.py").write_text("def short(rounds): ...\n")
    (task,), (name, digests) = plan_of(["sd"]).tasks, (f"{file}:short", set())
    cell = replace(task.cells[-1], drafter=parse_drafter(f"model+{name}"))
    for edited in ("", "# edited\n"):
        file.write_text(file.read_text() + edited)
        tasks = (replace(task, cells=(cell,)),)
        plan = replace(plan_of(["sd"]), tasks=tasks, sources=own_sources(tasks))
        digests.add(plan.sources_of(next(plan.steps()))[name])
    assert len(digests) == 2
    file.write_text("def own(at, x): ...\n")
    plan = plan_of(["sd", rule := f"{file}:own"])
    used = {step.cell.method: [*plan.sources_of(step)] for step in plan.steps()}
    assert used == {"sd": [], rule: [rule]}  # other methods are not decoded again


def test_a_head_counts_by_its_content(tmp_path):
    plan = plan_of(["sd"])
    step = next(plan.steps())
    keys = []
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "head.json").write_bytes(content)
        cell = replace(step.cell, parameters=(("head", HeadFile("h", tmp_path / name)),))
        keys.append(sample_keys(plan, MODELS, "eager")(replace(step, cell=cell)))
    assert keys[0] == keys[1] != keys[2]


def test_a_folder_that_drafts_counts_by_weights_and_configuration(tmp_path, monkeypatch):
    plan = plan_of(["sd"])
    step = next(plan.steps())
    drafting = replace(step, cell=replace(step.cell, drafter=recorded_drafter("head")))
    keys = []
    for weights, layers in ((b"1", "0"), (b"2", "0"), (b"1", "1")):
        module._content.cache_clear()  # a process reads a head once
        folder = tmp_path / "head"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(layers)
        monkeypatch.chdir(tmp_path)
        keys.append(sample_keys(plan, MODELS, "eager")(drafting))
    assert len({*keys}) == 3
