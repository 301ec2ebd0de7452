"""Plans executed by Ray workers; skipped if Ray is not installed."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.written import write_summary
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.errors import RunError, UsageError
from specbench.experiment import loader, store
from specbench.experiment.cells import method_variants
from specbench.experiment.plan import Plan
from specbench.experiment.planning import Systems, build_plan
from specbench.experiment.progress import Display
from specbench.experiment.ray_pool import RayPool, uses_gpus
from specbench.experiment.workers import Pool
from specbench.experiment.workers import Worker as LocalWorker
from specbench.runs.configuration import Settings
from specbench.runs.records import latest_records, read_records
from specbench.tasks.example import Example
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Task, load_task
from tasks.measure.kill_and_resume import workers_of

from .ray_workers import ABSENT, DEADLY, ONCE, POISON, SLOW, UNLIKE, Worker
from .runs import executed, progress

pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills and pins processes")

CPU = Loading(device="cpu")


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    with RayPool(2, None, CPU, Worker) as workers:
        yield workers


@pytest.fixture(autouse=True)
def no_tables(monkeypatch, request) -> None:
    """Write no tables, because workers without models record no times."""
    if "mini" not in request.node.name:
        monkeypatch.setattr(store.records, "write_samples", lambda folder: None)


def plan_of(
    *prompts: str, pair: str = "p", names: str = "tu", only: str = "autoregressive,sd", **more: Any
) -> Plan:
    source = PromptList(tuple(Example(f"e-{n}", prompt) for n, prompt in enumerate(prompts)))
    tasks = [Task(name, "1", "", (), (), 16, source, Path("t.toml")) for name in names]
    variants = method_variants(only.split(","), {})
    return build_plan(PairSpec(pair, "t", "d"), tasks, Systems(variants, [5]), Settings(**more))


def run(plan: Plan, pool: RayPool, folder: Path, **arguments: Any) -> list[dict[str, Any]]:
    executed(plan, folder, pool=pool, summarise=write_summary, **arguments)
    return latest_records(folder)


@pytest.mark.parametrize("settings", [{"repeats": 2}, {"batch_size": 2}])
def test_every_sample_is_found_once_and_a_row_on_one_device(pool, tmp_path, settings):
    plan = plan_of(*"abcdefghij", **settings)
    records = run(plan, pool, tmp_path / "r")
    assert [tuple(record["place"]) for record in records] == sorted(s.place for s in plan.steps())
    assert len(list(read_records(tmp_path / "r"))) == len(plan)
    devices: dict[Any, set[str]] = {}
    for record in records:
        row = (record["task"], record["repeat"], record["sample_id"])
        devices.setdefault(row, set()).add(record["device"])
    assert all(len(names) == 1 for names in devices.values())
    environment = json.loads((tmp_path / "r" / "environment.json").read_text())
    workers = [worker["device"] for worker in environment["workers"]]
    assert 1 <= len(workers) == len(set(workers)) <= 2  # each on its own core
    assert environment["warm_ups"][0]["seconds"] == 1.0


def test_killed_workers_of_the_mini_pair_match_one_process(pool, tmp_path, mini):
    systems = Systems(method_variants(["autoregressive", "diversed"], {}), [5])
    settings, tasks = Settings(max_new_tokens=32), [load_task("mini-math")]
    plan = build_plan(get_pair("mini"), tasks, systems, settings, loading=CPU, limit=3)
    local = Pool(LocalWorker(loader.Loader(lambda *_: mini)))
    executed(plan, tmp_path / "one", pool=local, summarise=write_summary)
    kills: list[int] = []

    def kill_one():
        for worker in islice(workers_of(os.getpid()), 1 - len(kills)):
            kills.append(worker)
            os.kill(worker, signal.SIGKILL)
        return False

    run(plan, pool, tmp_path / "two", stop=kill_one)
    assert kills and len(list(read_records(tmp_path / "two"))) == len(plan)
    names = ("key", "place", "text", "token_ids", "per_round", "scores", "status")
    one, two = (
        [[record.get(name) for name in names] for record in latest_records(tmp_path / folder)]
        for folder in ("one", "two")
    )
    assert one == two


def test_a_sample_that_kills_three_workers_fails_and_the_others_finish(pool, tmp_path, caplog):
    plan = plan_of("a", POISON, f"{ONCE}{tmp_path / 'mark'}", "b", names="t", only="sd")
    records = run(plan, pool, tmp_path / "r")
    (failed,) = [record for record in records if record["status"] == "error"]
    assert failed["sample_id"] == "e-1"
    assert "gave up after 3 workers died while decoding it: its process died" in failed["error"]
    assert len(records) == len(plan) and "is lost, other workers take over" in caplog.text


def test_a_stopped_run_resumes(pool, tmp_path):
    plan = plan_of(*[SLOW] * 8, names="t")
    seen: list[Any] = []

    class Counting(Display):
        def __call__(self, *records):
            seen.extend(records)

    with pytest.raises(KeyboardInterrupt):
        run(plan, pool, tmp_path, display=Counting(16), stop=lambda: len(seen) > 3)
    assert progress(tmp_path)["state"] == "interrupted"
    assert 3 < len(seen) < 16
    run(plan, pool, tmp_path, display=Counting(16))
    assert len(seen) == len(list(read_records(tmp_path))) == 16


@pytest.mark.parametrize(
    ("pair", "error", "said"),
    [
        (ABSENT, UsageError, "no such model"),
        (UNLIKE, RunError, "differs in its models from the first"),
        (DEADLY, RunError, "died 3 times before it was ready"),
    ],
)
def test_workers_that_cannot_start_end_the_run(pool, tmp_path, pair, error, said):
    with pytest.raises(error, match=said):
        run(plan_of(*[SLOW] * 40, pair=pair), pool, tmp_path / "r")


def test_more_workers_than_devices_are_refused():
    assert uses_gpus({"CPU": 4, "GPU": 2}, 2, Loading())
    assert not uses_gpus({"CPU": 4, "GPU": 2}, 4, CPU)
    for resources, number, said in (
        ({"CPU": 4.0}, 5, "exceeds the 4 cores"),
        ({"CPU": 4.0, "GPU": 2.0}, 3, "exceeds the 2 GPUs"),
    ):
        with pytest.raises(UsageError, match=said):
            uses_gpus(resources, number, Loading())
