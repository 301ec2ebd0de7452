"""Stopped runs resume, and different runs are refused."""

import json
import lzma
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.experiment import store as module
from specbench.experiment.execute import execute
from specbench.experiment.folders import require_same_run
from specbench.experiment.progress import Display
from specbench.experiment.store import SYNC_SHARE, Store
from specbench.runs.records import RECORDS, latest_records, read_records
from specbench.runs.run import CONFIG, read_run
from specbench.runs.running import LOCK

from ..disk import Recorder
from ..told import refusals
from .runs import brief_summary, contents, executed, plan_of, progress, tables

COMPLETE_RUN = {"state": "complete", "samples": 6, "failed": 0}
METHODS = ["autoregressive", "sd"]


def run(folder: Path, *, methods: list[str] = METHODS, fresh: bool = False, **settings: Any) -> int:
    return executed(plan_of(methods, **settings), folder, fresh=fresh).resumed


def damage_config(folder: Path, content: bytes | None) -> None:
    if content is None:
        (folder / CONFIG).unlink()
    else:
        (folder / CONFIG).write_bytes(content)


def test_damaged_lines_are_set_aside_and_their_samples_decoded_again(engine, tmp_path, caplog):
    whole, folder = tmp_path / "whole" / "r", tmp_path / "damaged" / "r"
    run(whole)
    run(folder)
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    damage = [lines[0][:50] + lines[1], b"\0" * 300 + b"\n", lines[3].strip() + lines[4]]
    (folder / RECORDS).write_bytes(b"".join([*damage, lines[5]]))
    before = tables(folder)
    assert run(folder) == 1
    assert "lines 1, 2, 3 are damaged and moved to samples.damaged" in caplog.text
    assert (folder / "samples.damaged").read_bytes() == b"".join(damage)
    assert progress(folder) == {**COMPLETE_RUN, "damaged_lines": 3}
    assert tables(folder) == before == tables(whole)
    assert len(list(read_records(folder))) == 6
    assert run(folder) == 6  # and nothing is set aside twice
    assert progress(folder)["damaged_lines"] == 3


@pytest.mark.parametrize("half", [None, b"", b'{"pair": {"name": "p"', b"\0" * 100])
def test_a_lost_configuration_is_rebuilt(engine, tmp_path, caplog, half):
    folder = tmp_path / "r"
    run(folder)
    before = (tables(folder), (folder / CONFIG).read_bytes())
    damage_config(folder, half)
    with pytest.raises(UsageError, match=r"config\.json .* --output .*/r, which rebuilds it"):
        read_run(folder)
    calls = len(engine.calls)
    assert run(folder) == 6
    assert "was lost and is rebuilt from this command, which makes all 6" in caplog.text
    assert (tables(folder), (folder / CONFIG).read_bytes()) == before
    assert len(engine.calls) == calls


@pytest.mark.parametrize("half", [None, b"{"])
def test_samples_of_another_command_do_not_get_its_configuration(engine, tmp_path, half):
    folder = tmp_path / "r"
    run(folder)
    damage_config(folder, half)
    before = contents(folder)
    for other in ({"seed": 1}, {"temperature": 0.0}, {"methods": ["sd"]}):
        with pytest.raises(UsageError, match=r"config\.json is lost, and this command does not"):
            run(folder, **other)  # type: ignore[arg-type]
    after = contents(folder)
    for files in (before, after):
        files.pop("environment.json")  # of the last attempt
    assert after == before
    (folder / RECORDS).write_text('{"prompt": "of the user"}\n')
    with pytest.raises(UsageError, match="is not empty and contains no run"):
        run(folder)
    assert (folder / RECORDS).read_text() == '{"prompt": "of the user"}\n'


@pytest.mark.parametrize(
    "files", [[LOCK], [LOCK, ".config.json.partial"], [LOCK, CONFIG, "environment.json"]]
)
def test_a_run_killed_at_its_start_begins_again(engine, tmp_path, files):
    folder = tmp_path / "r"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"{")
    assert run(folder) == 0 and progress(folder) == COMPLETE_RUN


def test_a_sample_counts_only_once_it_is_synced(engine, tmp_path, monkeypatch):
    """Progress never shows a sample that a power loss could take."""
    folder, synced, shown = tmp_path / "r", 0, 0

    def fsync(handle):
        nonlocal synced
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced = len(path.read_bytes().splitlines()) if path.name == RECORDS else synced

    class Shown(Display):
        def __call__(self, *records):
            nonlocal shown
            shown += len(records)
            assert shown <= store.done <= synced

    monkeypatch.setattr(os, "fsync", fsync)
    plan = plan_of(METHODS)
    with Store.open(folder, "run", plan.describe(), summarise=brief_summary) as store:
        execute(plan, store, display=Shown(len(plan)))
        assert shown == synced == 6


def test_a_run_survives_a_power_loss_at_any_moment(engine, tmp_path, monkeypatch):
    """Nothing that was called done is lost, and the tables are those of an undisturbed run."""
    monkeypatch.setattr(module, "SYNC_SHARE", float("inf"))  # sync each sample
    recorder = Recorder(tmp_path)
    whole = tmp_path / "whole" / "r"
    plan = plan_of(METHODS)

    class Shown(Display):
        def __call__(self, *records):
            recorder.done += len(records)

    with recorder.recording():
        executed(plan, whole, display=Shown(len(plan)))
    random = Random(0)
    moments = recorder.moments
    for number, moment in enumerate(moments):
        left = tmp_path / f"left-{number}"
        moment.rebuild(left, random)
        folder = left / "whole" / "r"
        records = folder / RECORDS
        safe = list(read_records(folder)) if records.exists() else []
        assert len(safe) >= moment.done
        if number % (len(moments) // 5) == 0:
            assert run(folder) == len(safe) and tables(folder) == tables(whole)
            assert len(list(read_records(folder))) == 6


def test_samples_are_synced_together_if_syncing_is_slow(tmp_path, monkeypatch):
    """All syncs but the first take at most 1 % of the time since the start, at any moment."""
    now, spent = 0.0, 0.0
    plan = plan_of(METHODS)
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def fsync(handle):
        nonlocal now, spent
        now, spent = now + 0.25, spent + 0.25  # of a file, or of its folder

    with Store.open(tmp_path / "r", "run", plan.describe(), summarise=brief_summary) as store:
        monkeypatch.setattr(os, "fsync", fsync)
        store.expect(plan, {}, "eager")
        safe = []
        for step in plan.steps():
            result = plan.identify(step, "eager").filled(status="error", error="no")
            safe.append(len(store.record(step, result)))
            now += 40
            assert store.done == sum(safe)
            assert len(safe) == 1 or spent <= max(0.5, SYNC_SHARE * (now - 40))
        assert safe == [1, 0, 0, 3, 1, 1]
    assert progress(tmp_path / "r")["samples"] == 6


def test_a_torn_block_is_decoded_again_as_a_whole(engine, tmp_path):
    """Its texts share their time, so one of them cannot be timed alone."""
    folder = tmp_path / "r"
    run(folder, batch_size=2)
    content = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    (folder / RECORDS).write_bytes(b"".join(content[1:]))
    assert run(folder, batch_size=2) == 5
    first = json.loads(content[0])
    again = [json.loads(line) for line in (folder / RECORDS).read_bytes().splitlines()[5:]]
    assert [(r["method"], r["block"]) for r in again] == [(first["method"], 0)] * 2
    assert len(latest_records(folder)) == 6 and progress(folder) == COMPLETE_RUN


def test_failed_samples_are_retried_and_count_once(engine, tmp_path):
    engine.failing = {1: ValueError("no"), 5: ValueError("no")}
    folder = tmp_path / "r"
    run(folder)
    assert [r.status for r in latest_records(folder)].count("error") == 2
    engine.failing = {}
    run(folder)
    assert {r.status for r in latest_records(folder)} == {"ok"}
    undisturbed = tmp_path / "other" / "r"
    run(undisturbed)
    assert tables(folder) == tables(undisturbed)
    calls = len(engine.calls)
    assert run(folder) == 6  # and nothing is decoded again
    assert (tables(folder), len(engine.calls)) == (tables(undisturbed), calls)
    assert progress(folder) == COMPLETE_RUN


def test_tables_have_the_order_of_the_plan_and_a_renamed_run_stays_one(engine, tmp_path):
    folder = tmp_path / "r"
    run(folder)
    before = tables(folder)
    lines = (folder / RECORDS).read_text().splitlines(keepends=True)
    (folder / RECORDS).write_text("".join(reversed(lines[2:])))
    renamed = folder.rename(tmp_path / "renamed")
    run(renamed)
    assert tables(renamed) == before
    assert {record.run_id for record in read_records(renamed)} == {"r"}


def test_a_plan_may_grow_and_not_shrink(engine, tmp_path, stored):
    folder = tmp_path / "r"
    wider = ["autoregressive", "sd", "lossy"]
    run(folder, methods=["sd"])
    assert run(folder, methods=wider) == 3
    assert {r.method for r in read_records(folder)} == {*wider}
    assert len(list(read_records(folder))) == 9
    refused = refusals(lambda: run(folder, methods=["sd", "lossy"]))
    text = (folder / CONFIG).read_text()
    config = json.loads(text)
    config["tasks"][0]["stop"] = ["other"]
    replaced = (('"examples": 3', '"examples": 4'), ('"name": "t"', '"name": "u"'))
    for other in (*(text.replace(*values) for values in replaced), json.dumps(config)):
        (folder / CONFIG).write_text(other)
        refused += refusals(lambda: run(folder, methods=wider))
    stored(refused)


def test_another_run_is_refused_and_untouched(engine, tmp_path):
    folder = tmp_path / "r"
    run(folder)
    before = contents(folder)
    others = {"temperature": 0.0, "seed": 7, "batch_size": 2, "engine": "compile", "shard": "1/2"}
    for name, value in others.items():
        with pytest.raises(UsageError, match=rf"settings\.{name} is .*--output.*--fresh"):
            run(folder, **{name: value})
    engine.target.fingerprint = lambda: "t1"
    with pytest.raises(UsageError, match=r"made with other models, metrics.*--fresh"):
        run(folder)
    after = contents(folder)
    assert all(after[name] == before[name] for name in (RECORDS, *tables(folder)))

    (folder / f"{RECORDS}.xz").write_bytes(lzma.compress((folder / RECORDS).read_bytes()))
    for name in (RECORDS, *tables(folder)):  # the tables are left at first, and then only records
        (folder / name).unlink()
        before = contents(folder)
        with pytest.raises(UsageError, match=r"a run without its samples\.jsonl: unpack it"):
            run(folder)
        assert contents(folder) == before


def test_fresh_renames_an_existing_run(engine, tmp_path):
    folder = tmp_path / "r"
    run(folder)
    before = tables(folder)
    assert run(folder, temperature=0.0, fresh=True) == 0
    assert tables(tmp_path / "r-before") == before and tables(folder) != before
    run(folder, fresh=True)
    assert (tmp_path / "r-before-2").is_dir()


@pytest.mark.parametrize("content", ['{"model_type": "llama"}', "no JSON", '{"progress": 3}'])
def test_fresh_leaves_the_folder_of_a_model_where_it_is(engine, tmp_path, content):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    (folder / "model.safetensors").touch()
    with pytest.raises(UsageError, match="choose another folder with --output"):
        run(folder, fresh=True)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    assert (folder / "config.json").read_text() == content


def test_a_process_that_a_rule_forks_writes_nothing(engine, tmp_path):
    children: list[int] = []

    def fork(number):
        if number == 2:
            children.append(os.fork())

    engine.on_call = fork
    run(tmp_path / "r")
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 1
    assert len(list(read_records(tmp_path / "r" / RECORDS))) == COMPLETE_RUN["samples"]


def test_without_a_folder_the_newest_unfinished_run_resumes(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def begin(stop_after, **settings):
        return executed(plan_of(METHODS, **settings), None, stop_after=stop_after)

    stopped = begin(2)
    assert begin(3, seed=5).folder != stopped.folder
    gone_on = begin(None)
    assert (gone_on.folder, gone_on.resumed, gone_on.done) == (stopped.folder, 2, 6)
    assert begin(None).folder != stopped.folder  # a complete run is not resumed
    assert executed(plan_of(METHODS, seed=5), None, fresh=True).resumed == 0


# Opens a run and waits.
HOLD = """
import json, pathlib, sys
from specbench.experiment.store import Store
store = Store.open(pathlib.Path(sys.argv[1]), "run", json.loads(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(engine, tmp_path):
    folder = tmp_path / "r"
    config = json.dumps(plan_of(METHODS).describe())
    command = [sys.executable, "-c", HOLD, str(folder), config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"open\n"
        for fresh in (False, True):
            with pytest.raises(UsageError, match=r"another process is writing .*wait for it"):
                run(folder, fresh=fresh)
        other.kill()
    assert (folder / LOCK).exists()
    run(folder)
    assert len(list(read_records(folder))) == 6


@pytest.mark.parametrize(
    ("target", "difference"),
    [
        ("specbench/pairs/mini/target", nullcontext()),
        ("/opt/site/specbench/pairs/mini/target", nullcontext()),
        ("specbench/pairs/python/target", pytest.raises(UsageError, match=r"pair\.target is")),
        ("other/pairs/mini/target", pytest.raises(UsageError, match=r"pair\.target is")),
    ],
)
def test_a_run_of_a_bundled_pair_goes_on_from_another_folder(tmp_path, target, difference):
    config = plan_of(["sd"]).describe() | {"pair": {"target": "/x/specbench/pairs/mini/target"}}
    config["tasks"][0]["cells"][0]["head"] = {"name": "h", "path": "/x/heads/h"}
    recorded = config | {"pair": {"target": target}, "progress": {"state": "failed", "samples": 0}}
    (tmp_path / "config.json").write_text(json.dumps(recorded).replace("/x/heads", "heads"))
    with difference:
        require_same_run(tmp_path, config)


def test_repeating_a_finished_run_keeps_the_environment_of_its_samples(engine, tmp_path):
    run(tmp_path / "r")
    (tmp_path / "r" / "environment.json").write_text('{"copy_bandwidth": 1.0}')
    assert run(tmp_path / "r") == 6
    assert (tmp_path / "r" / "environment.json").read_text() == '{"copy_bandwidth": 1.0}'


def test_a_run_that_goes_on_on_another_machine_says_that_times_are_mixed(engine, tmp_path, caplog):
    run(tmp_path / "r", methods=METHODS[:1])
    run(tmp_path / "r")
    assert "another machine" not in caplog.text
    (tmp_path / "r" / "environment.json").write_text('{"cpu": {"model": "Z80"}}')
    run(tmp_path / "r", methods=[*METHODS, "block"])
    assert "were measured on another machine (Z80)" in caplog.text
