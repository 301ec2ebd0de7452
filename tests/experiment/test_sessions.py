"""Cells added to a run are timed in a new session, together with ``autoregressive`` and ``sd``."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.written import write_summary
from specbench.errors import UsageError
from specbench.experiment.plan import Plan
from specbench.experiment.planning import Systems, build_plan
from specbench.experiment.rescore import open_run, score_run
from specbench.experiment.store import Summarise
from specbench.runs.columns import TIMED
from specbench.runs.configuration import TaskConfig
from specbench.runs.frames import read_samples
from specbench.runs.records import RECORDS, TIMED_RECORDS, TIMINGS, read_records, timed_records
from specbench.runs.run import CONFIG, read_run

from .runs import brief_summary, executed, plan_of, progress, tables

FIRST = ["autoregressive", "sd"]
GROWN = [*FIRST, "lossy"]


def a_a(plan: Plan) -> Plan:
    (task,) = plan.tasks
    variants = [(cell.method, dict(cell.parameters)) for cell in task.cells]
    systems = Systems(variants, [5], a_a=True)
    return build_plan(plan.pair, [task.task], systems, plan.settings, loading=plan.loading)


def run(folder: Path, plan: Plan, summarise: Summarise = brief_summary) -> int:
    plan = plan.added_to(read_run(folder, required=False).tasks)
    return executed(plan, folder, summarise=summarise).resumed


def sessions(folder: Path) -> list[tuple[str, int, str]]:
    samples = [*read_records(folder), *timed_records(folder)]
    return sorted({(r.method, r.session, r.timing or "") for r in samples})


def test_an_added_method_is_timed_with_the_baselines(engine, tmp_path):
    folder = tmp_path / "r"
    run(folder, plan_of(FIRST))
    before = (folder / RECORDS).read_bytes()
    assert not (folder / TIMINGS).exists()
    calls = len(engine.calls)
    assert run(folder, plan_of(GROWN)) == 6
    again = [("autoregressive", 1, "baseline"), ("sd", 1, "baseline")]
    first = [("autoregressive", 0, ""), ("sd", 0, "")]
    assert sessions(folder) == sorted([*first, *again, ("lossy", 1, "")])
    assert (folder / RECORDS).read_bytes().startswith(before)
    assert len(engine.calls) == calls + 3 * (3 + 1)  # three examples and a warm-up per cell
    calls = len(engine.calls)
    assert run(folder, plan_of(GROWN)) == 15 and len(engine.calls) == calls
    run(folder, plan_of([*GROWN, "block"]))
    assert {("sd", 2, "baseline"), ("block", 2, "")} < set(sessions(folder))
    assert ("lossy", 2, "baseline") not in sessions(folder)
    with pytest.raises(UsageError, match="it has lossy on t"):
        run(folder, plan_of(FIRST))


def test_nothing_is_timed_again_for_texts_whose_times_are_not_compared(engine, tmp_path):
    folder = tmp_path / "r"
    batches: dict[str, Any] = {"batch_size": 2, "refill": 2}
    run(folder, plan_of(FIRST, **batches))
    run(folder, plan_of(GROWN, **batches), write_summary)
    assert sessions(folder) == [("autoregressive", 0, ""), ("lossy", 1, ""), ("sd", 0, "")]
    assert not (folder / TIMINGS).exists()
    summary = pd.read_csv(folder / "summary.csv").query("metric == 'speedup'")
    has_speedup = summary.set_index("method")["value"].notna().to_dict()
    assert has_speedup == {"autoregressive": True, "sd": True, "lossy": False}


def test_a_sample_that_is_timed_again_has_the_same_draws_and_no_other_use(engine, tmp_path):
    folder, alone = tmp_path / "grown" / "r", tmp_path / "alone" / "r"
    run(folder, plan_of(FIRST))
    run(folder, plan_of(GROWN))
    run(alone, plan_of(GROWN))
    recorded = TaskConfig.model_validate(plan_of(["sd"]).tasks[0].describe())
    plan = plan_of(FIRST).added_to({"t": recorded})
    keys = {(step.cell.method, step.example.id): step.sample_key for step in plan.steps()}
    assert all(keys[s.cell.method, s.example.id] == s.sample_key for s in plan.steps())
    grown, whole = read_samples(folder), read_samples(alone)
    columns = [name for name in whole if name != "session"]
    order = ["method", "sample_id"]
    assert grown.sort_values(order)[columns].equals(whole.sort_values(order)[columns])
    every = read_samples(folder, timings=TIMED)
    again = every[every["timing"].notna()]
    assert len(again) == 6
    first = grown[grown["method"] == "sd"].set_index("sample_id")
    sd = again[again["method"] == "sd"].set_index("sample_id")
    assert first.quality.dropna().to_dict() == sd["quality"].dropna().to_dict()


def test_an_addition_stopped_anywhere_resumes_to_the_same_result(engine, tmp_path):
    whole = tmp_path / "whole" / "r"
    run(whole, plan_of(FIRST))
    started = (whole / RECORDS).read_bytes()
    run(whole, a_a(plan_of(GROWN)))
    records, timed = ((whole / name).read_bytes() for name in (RECORDS, TIMED_RECORDS))
    for cut, cut_timed in ((len(started), 0), (len(started) + 9, 99), (-1, len(timed) // 2)):
        folder = tmp_path / f"{cut}" / "r"
        folder.mkdir(parents=True)
        shutil.copy(whole / CONFIG, folder)  # it is written before the first sample
        (folder / RECORDS).write_bytes(records[:cut])
        (folder / TIMED_RECORDS).write_bytes(timed[:cut_timed])
        run(folder, a_a(plan_of(GROWN)))
        assert tables(folder) == tables(whole)
        damaged = {"damaged_lines": 2} if cut_timed else {}
        assert progress(folder) == {"state": "complete", "samples": 9 + 9, "failed": 0, **damaged}


def test_a_failed_timing_is_retried(engine, tmp_path):
    engine.failing = {number: ValueError("no") for number in range(2, 20)}
    folder = tmp_path / "r"
    run(folder, a_a(plan_of(["sd"])))
    assert {r.status for r in timed_records(folder)} == {"error"}
    engine.failing = {}
    run(folder, a_a(plan_of(["sd"])))
    assert {r.status for r in timed_records(folder)} == {"ok"}


def test_a_a_times_sd_twice_and_leaves_all_else_alone(engine, tmp_path):
    folder, plain = tmp_path / "a" / "r", tmp_path / "b" / "r"
    run(folder, a_a(plan_of(FIRST)), write_summary)
    run(plain, plan_of(FIRST), write_summary)
    assert sessions(folder) == [("autoregressive", 0, ""), ("sd", 0, ""), ("sd", 0, "a-a")]
    for name in ("samples.csv", "summary.csv", "summary.md", RECORDS):
        rows = [(path / name).read_text().splitlines() for path in (folder, plain)]
        assert sorted(rows[0]) == sorted(rows[1])
    run(folder, a_a(plan_of(GROWN)))  # the noise of each session is measured
    assert ("sd", 1, "a-a") in sessions(folder)


def test_a_grown_run_can_be_scored_again(engine, tmp_path):
    folder = tmp_path / "r"
    run(folder, plan_of(FIRST))
    run(folder, plan_of(GROWN), write_summary)
    before = tables(folder)
    score_run(open_run(folder), may_execute=False, summarise=write_summary)
    assert tables(folder) == before and run(folder, plan_of(GROWN)) == 15


def test_a_new_task_starts_with_the_first_session(engine, tmp_path):
    plan = plan_of(FIRST)
    (task,) = plan.tasks
    other = replace(task, task=replace(task.task, name="u"))
    recorded = {"t": TaskConfig.model_validate(task.describe())}
    grown = replace(plan, tasks=(task, other)).added_to(recorded)
    assert {cell.session for each in grown.tasks for cell in each.cells} == {0}
    assert grown.added_to(recorded) == grown
