from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.published import published
from specbench.config import DataOptions, Loading
from specbench.decoding.heads.registry import HeadFile
from specbench.errors import RunError, UsageError
from specbench.experiment.suites.suite import Suite, find_suite, is_done, read_suite, shard
from specbench.experiment.suites.training import train_all, training_command
from specbench.methods.registry import AUTOREGRESSIVE

ENTRY = """
[[entry]]
name = "a"
pairs = ["mini"]
tasks = ["mini-math", "mini-code"]
methods = ["autoregressive", "static", "diversed"]
parameters = { weight = [0.25, 0.5] }
draft_lengths = [3, 5]
temperatures = [0.0, 1]
seeds = [0, 1]
limit = 4
settings = { repeats = 2 }
"""
TRAIN = """
[[train]]
pairs = ["mini"]
tasks = ["mini-math", "mini-code"]
options = { steps = 2 }
"""
TUNED = """
[[train]]
what = "drafts"
pairs = ["mini"]
tasks = ["mini-math"]
[[entry]]
name = "t"
pairs = ["mini"]
tasks = ["mini-math"]
methods = ["sd"]
drafts = "fine-tuned"
"""


@pytest.fixture
def suite_of(tmp_path: Path) -> Any:
    def read(text: str) -> Suite:
        path = tmp_path / "my.toml"
        path.write_text(text)
        return read_suite(path)

    return read


def test_an_entry_is_a_run_for_each_pair_task_temperature_and_seed(suite_of: Any) -> None:
    suite = suite_of(ENTRY)
    units = suite.units()
    assert len(units) == 2 * 2 * 2
    assert len({unit.name for unit in units}) == 8
    assert units[0].name == "a-mini-mini-math-T0-seed0"
    pairs = [u.pair for u in suite_of(ENTRY.replace('["mini"]', '["mini", "llama"]')).units()]
    assert pairs == ["mini"] * 8 + ["llama"] * 8  # so that a pair is loaded once
    # One cell for autoregressive, and two weights and a head at two draft lengths each.
    assert units[0].cells == 1 + (2 + 1) * 2
    assert units[0].cost(None).samples == 7 * 4 * 2


def test_the_plan_of_a_run_is_what_the_suite_counts(suite_of: Any, tmp_path: Path) -> None:
    suite = suite_of(ENTRY)
    for unit in suite.units():
        plan = unit.plan(suite, tmp_path, DataOptions(), False)
        (task,) = plan.tasks
        assert (len(task.cells), len(plan)) == (unit.cells, unit.cost(None).samples)
        assert (plan.settings.temperature, plan.settings.seed) == (unit.temperature, unit.seed)
        assert {cell.draft_length for cell in task.cells} == {0, 3, 5}
        assert plan.may_execute  # the pair is bundled


def test_shards_partition_the_runs(suite_of: Any) -> None:
    units = suite_of(ENTRY).units()
    parts = [shard(units, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(unit.name for part in parts for unit in part) == sorted(u.name for u in units)
    assert shard(units, None) == units
    assert parts[0][1] == units[3]
    for text in ("0/2", "3/2", "1", "a/b", "1/0"):
        with pytest.raises(UsageError, match="--shard"):
            shard(units, text)


def test_runs_of_a_suite_use_the_heads_it_trains(suite_of: Any, tmp_path: Path) -> None:
    suite = suite_of(TRAIN + ENTRY)
    unit = suite.units()[0]
    (job,) = unit.jobs
    assert (job.task, job.folder(tmp_path)) == ("mini-math", tmp_path / "heads/mini/mini-math")
    with pytest.raises(UsageError, match="heads/mini"):
        unit.plan(suite, tmp_path, DataOptions(), False)
    _make_head(job.folder(tmp_path))
    plan = unit.plan(suite, tmp_path, DataOptions(), False)
    heads = {
        dict(cell.parameters)["head"] for cell in plan.tasks[0].cells if cell.method == "diversed"
    }
    assert heads == {HeadFile(str(tmp_path / "heads/mini"), tmp_path / "heads/mini/mini-math")}


def test_every_head_of_a_pair_is_measured_on_request(suite_of: Any, tmp_path: Path) -> None:
    suite = suite_of(TRAIN + ENTRY + 'heads = "every"')
    unit = suite.units()[0]
    jobs = unit.jobs
    assert {job.task for job in jobs} == {"mini-math", "mini-code"}
    for job in jobs:
        _make_head(job.folder(tmp_path))
    plan = unit.plan(suite, tmp_path, DataOptions(), False)
    assert len(plan.tasks[0].cells) == unit.cells == 1 + (2 + 2) * 2
    heads = [dict(c.parameters)["head"].name for c in plan.tasks[0].cells if c.method == "diversed"]
    assert heads[::2] == ["mini-math", "mini-code"]


def test_a_fine_tuned_draft_replaces_the_pairs_draft(suite_of: Any, tmp_path: Path) -> None:
    suite = suite_of(TUNED)
    (unit,) = suite.units()
    (job,) = unit.jobs
    plan = unit.plan(suite, tmp_path, DataOptions(), False)
    assert (plan.pair.name, plan.pair.draft) == ("mini+mini-math", str(job.folder(tmp_path)))


def test_hours_are_samples_times_tokens_over_pace(suite_of: Any) -> None:
    suite = suite_of(ENTRY.replace("repeats = 2", "repeats = 2, max_new_tokens = 100"))
    unit = suite.units()[0]
    assert unit.cost(50.0).most_seconds == pytest.approx(56 * 100 / 50)
    assert unit.cost(None).most_seconds is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "`entry`"),
        ("nothing", "not valid TOML"),
        ("x = 1" + ENTRY, "`x` is unknown"),
        ("about = 1" + ENTRY, "`about`"),
        (ENTRY + ENTRY, "two entries are named a"),
        (ENTRY.replace('"static"', '"statik"'), r"\(a\): .*static"),
        (ENTRY.replace("0.25, 0.5", "0.25, 1.5"), r"\(a\): weight"),
        (ENTRY.replace("weight =", "wait ="), r"\(a\): .*`wait`"),
        (ENTRY.replace("[0, 1]", "[]"), "seeds"),
        (ENTRY.replace("limit = 4", 'limit = "4"'), "limit"),
        (ENTRY.replace("limit = 4", "limits = 4"), "did you mean `entry.*limit`"),
        (ENTRY.replace("repeats = 2", "repeat = 2"), r"\(a\): .*`repeats`"),
        (ENTRY.replace("repeats = 2", "repeats = 0"), r"\(a\): --repeats"),
        (ENTRY.replace("repeats = 2", "seed = 2"), r"\(a\): .*`seeds`"),
        (ENTRY + 'heads = "every"', "a needs heads of mini"),
        (ENTRY + 'drafts = "fine-tuned"', "a needs the draft of mini"),
        (TRAIN + TRAIN + ENTRY, "heads/mini/mini-math would be trained twice"),
        ('[loading]\ndtyp = "x"' + ENTRY, "did you mean `dtype`"),
    ],
)
def test_mistakes_in_a_file_are_located(suite_of: Any, text: str, place: str) -> None:
    with pytest.raises(UsageError, match=rf"my\.toml: .*{place}"):
        suite_of(text)


def test_the_papers_suite_has_every_number_that_the_paper_published() -> None:
    suite = read_suite(find_suite("paper"))
    measured = set()
    for unit in suite.units():
        tuned = unit.entry.drafts == "fine-tuned"
        heads = [job.task for job in unit.jobs if job.table.what == "heads"]
        for method, _ in unit.entry.variants():
            trained = heads if method == "diversed" else [unit.task]
            name = "sd-finetuned-draft" if tuned else method
            lengths = [5] if method == AUTOREGRESSIVE else unit.entry.draft_lengths
            measured |= {
                (unit.pair, on, unit.task, name, unit.temperature, length)
                for on in trained
                for length in lengths
            }
    names = ["pair", "trained_on", "task", "method", "temperature", "draft_length"]
    wanted = set(published()[names].itertuples(index=False, name=None))
    assert wanted <= measured
    assert suite.assumed_tokens_per_second.keys() == {unit.pair for unit in suite.units()}


def test_training_is_a_command_with_the_options_of_the_file(suite_of: Any, tmp_path: Path) -> None:
    job = suite_of(TRAIN + ENTRY).jobs()[0]
    loading, data = Loading(dtype="float32"), DataOptions(offline=True)
    assert training_command(job, tmp_path, loading, data, True) == [
        *("train", "--pair", "mini", "--task", "mini-math", "--no-progress"),
        *("--output", str(tmp_path / "heads/mini"), "--offline", "--steps", "2"),
        *("--dtype", "float32", "--resume", "--allow-code-execution"),
    ]
    draft = suite_of(TUNED).jobs()[0]
    found = training_command(draft, tmp_path, Loading(), DataOptions(), True)
    assert found[0] == "finetune-draft" and "--allow-code-execution" not in found


def test_each_head_is_trained_once_and_a_failure_is_reported(suite_of: Any, tmp_path: Path) -> None:
    jobs = suite_of(TRAIN + ENTRY).jobs()
    _make_head(jobs[0].folder(tmp_path))
    asked: list[list[str]] = []

    def run(commands: Any) -> Any:
        for number, command in enumerate(commands):
            asked.append(command)
            yield number, 0, ""

    done = train_all([*jobs, *jobs], tmp_path, lambda job: [job.task], run)
    assert list(map(str, done)) == ["the head of mini on mini-code"]
    assert asked == [["mini-code"]]
    with pytest.raises(RunError, match="the head of mini on mini-code failed: error: no"):
        list(train_all(jobs, tmp_path, lambda job: [], lambda _: iter([(0, 2, "error: no")])))


def test_only_a_complete_run_of_the_plan_is_done(suite_of: Any, tmp_path: Path) -> None:
    suite = suite_of(ENTRY)
    plan = suite.units()[0].plan(suite, tmp_path, DataOptions(), False)
    assert not is_done(tmp_path / "r", plan)
    for state, samples, failed, done in (
        ("complete", len(plan), 0, True),
        ("complete", len(plan), 1, False),
        ("complete", len(plan) - 1, 0, False),
        ("interrupted", len(plan), 0, False),
    ):
        _write_config(tmp_path / "r", plan.describe(), state, samples, failed)
        assert is_done(tmp_path / "r", plan) == done
    another = {**plan.describe(), "settings": {**plan.describe()["settings"], "max_new_tokens": 7}}
    _write_config(tmp_path / "r", another, "complete", len(plan), 0)
    assert not is_done(tmp_path / "r", plan)


def _make_head(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("head.safetensors", "head.json"):
        (folder / name).write_text("{}")


def _write_config(folder: Path, config: dict[str, Any], state: str, done: int, bad: int) -> None:
    import json

    folder.mkdir(exist_ok=True)
    progress = {"state": state, "samples": done, "failed": bad}
    (folder / "config.json").write_text(json.dumps({**config, "progress": progress}))
