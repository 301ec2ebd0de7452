"""A plan by several workers that decode with the fake engine, in this process."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.cluster.bench import Bench
from specbench.cluster.crew import Facts, WorkerLost
from specbench.cluster.execute import execute
from specbench.cluster.schedule import Row
from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.experiment import execute as alone
from specbench.experiment.plan import Place, Plan, build_plan
from specbench.experiment.records import latest_records, read_records
from specbench.experiment.settings import Settings
from specbench.experiment.store import Store
from specbench.experiment.variants import method_variants
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import Listed, Task

ROWS = tuple(Example(f"e-{number}", "p" * (number + 1), "#### 7") for number in range(8))
TASKS = [Task(n, "1", "", ("accuracy",), (), 16, Listed(ROWS), Path("t.toml")) for n in "tu"]


def make_plan(**settings: Any) -> Plan:
    variants = method_variants(["autoregressive", "sd"], {})
    return build_plan(PairSpec("p", "t", "d"), TASKS, variants, [5], Settings(**settings))


class Local:
    """A worker in this process; dies where it is told to."""

    def __init__(self, number: int, plan: Plan, dies: Callable[[Place], bool]) -> None:
        self.plan, self.dies, self.bench = plan, dies, Bench(Path.cwd())
        self.bench._device = f"here cpu:{number}"

    def start(self) -> Facts:
        return self.bench.start(self.plan)

    def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
        for place, found in self.bench.measure([batch.places for batch in row.batches]):
            if place is not None and self.dies(place):
                raise WorkerLost("killed")
            yield place, found

    def end(self) -> Facts:
        return self.bench.end()

    def dismiss(self) -> None:
        pass


def carry_out(
    plan: Plan,
    folder: Path,
    dies: Callable[[Place], bool] = lambda place: False,
    **arguments: Any,
) -> Store:
    with Store.open(folder, "run", plan.describe()) as store:
        execute(
            plan,
            store,
            arguments.pop("report", lambda record: None),
            arguments.pop("hire", lambda number: Local(number, plan, dies)),
            2,
            **arguments,
        )
    return store


def alike(folder: Path) -> list[dict[str, Any]]:
    """Return the records in their order, without the run and the device."""
    records = latest_records(folder)
    return [{k: v for k, v in r.items() if k not in ("run_id", "device")} for r in records]


@pytest.fixture
def one(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Carry out a plan in one process."""
    monkeypatch.chdir(tmp_path)

    def run(plan: Plan) -> Path:
        with Store.open(tmp_path / "one", "run", plan.describe()) as store:
            alone.execute(plan, store, lambda record: None)
        return store.folder

    return run


@pytest.mark.parametrize("settings", [{}, {"repeats": 2}, {"batch_size": 2}])
def test_two_workers_find_what_one_process_finds(
    one: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    plan = make_plan(**settings)
    two = carry_out(plan, tmp_path / "two").folder
    assert alike(two) == alike(one(plan))
    assert len(alike(two)) == len(plan)
    columns = [(two / n).read_text().splitlines()[0] for n in ("samples.csv", "summary.csv")]
    assert columns[0].count("device") == 1


def test_all_methods_of_an_example_are_on_one_device_which_is_named(
    one: Any, tmp_path: Path
) -> None:
    records = latest_records(carry_out(make_plan(), tmp_path / "two").folder)
    devices: dict[Any, set[str]] = {}
    for record in records:
        devices.setdefault((record["task"], record["sample_id"]), set()).add(record["device"])
    assert all(len(names) == 1 for names in devices.values())
    assert {name for names in devices.values() for name in names} <= {"here cpu:0", "here cpu:1"}
    environment = json.loads((tmp_path / "two" / "environment.json").read_text())
    assert {worker["device"] for worker in environment["workers"]} >= {
        name for names in devices.values() for name in names
    }
    assert environment["warm_ups"] and environment["command"][0] == "specbench"


def test_workers_that_die_lose_and_double_nothing(one: Any, tmp_path: Path) -> None:
    plan = make_plan()
    deaths = iter([True, False, False, True, False] + [False] * 1000)
    two = carry_out(plan, tmp_path / "two", lambda place: next(deaths)).folder
    assert alike(two) == alike(one(plan))
    assert len(list(read_records(two))) == len(plan)


def test_a_sample_that_kills_is_recorded_as_failed_and_tried_again_by_the_next_run(
    one: Any, tmp_path: Path
) -> None:
    plan = make_plan()
    poison = (1, 0, 3, 1)
    store = carry_out(plan, tmp_path / "two", lambda place: place == poison)
    (failed,) = (r for r in latest_records(store.folder) if r["status"] != "ok")
    assert tuple(failed["place"]) == poison
    assert failed["error"] == "given up after 3 workers died of it: killed"
    assert (failed["task"], failed["sample_id"], failed["method"]) == ("u", "e-3", "sd")
    again = carry_out(plan, tmp_path / "two")
    assert (again.resumed, again.failed) == (len(plan), 0)
    assert alike(again.folder) == alike(one(plan))


def test_a_run_that_was_stopped_goes_on_where_it_was(one: Any, tmp_path: Path) -> None:
    plan, seen = make_plan(), []
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, tmp_path / "two", report=seen.append, stop=lambda: len(seen) >= 5)
    assert len(list(read_records(tmp_path / "two"))) == 5
    again: list[Any] = []
    carry_out(plan, tmp_path / "two", report=again.append)
    assert len(list(read_records(tmp_path / "two"))) == len(plan) == len(again)
    assert sum("status" in record for record in again) == len(plan) - 5
    assert alike(tmp_path / "two") == alike(one(plan))


def test_one_process_goes_on_with_what_workers_began(one: Any, tmp_path: Path) -> None:
    plan, seen = make_plan(), []
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, tmp_path / "one", report=seen.append, stop=lambda: len(seen) >= 5)
    records = list(read_records(one(plan)))
    assert len(records) == len({record["key"] for record in records}) == len(plan)


def test_a_worker_with_other_models_is_refused(one: Any, tmp_path: Path) -> None:
    plan = make_plan()

    class Other(Local):
        def start(self) -> Facts:
            facts = dict(super().start())
            return facts | {"models": {**facts["models"], "draft": id(self)}}

        def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
            time.sleep(0.2)
            yield from super().measure(row)

    with pytest.raises(RunError, match="has another models than the first: draft"):
        carry_out(plan, tmp_path / "two", hire=lambda n: Other(n, plan, lambda place: False))


def test_the_user_is_told_of_states_and_losses(one: Any, tmp_path: Path) -> None:
    deaths = iter([True] + [False] * 1000)
    said: list[str] = []
    states: list[tuple[int, str]] = []
    carry_out(
        make_plan(),
        tmp_path / "two",
        lambda place: next(deaths),
        note=said.append,
        watch=lambda worker, state, device="": states.append((worker, state)),
    )
    assert len(said) == 1 and "is lost, its work goes to others: killed" in said[0]
    assert states[:2] == [(0, "loading"), (1, "loading")]
    assert {"decoding", "lost, starting again", "done"} <= {state for _, state in states}


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not there on .*folder that all machines share"):
        Bench(tmp_path / "nowhere").start(make_plan())


def test_a_pair_is_loaded_once_for_all_plans(
    one: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load_pair = alone.load_pair
    monkeypatch.setattr(
        alone, "load_pair", lambda spec, how: (loaded.append(spec.name), load_pair(spec, how))[1]
    )
    forgotten: list[bool] = []
    engine.forget = lambda: forgotten.append(True)
    bench = Bench(Path.cwd())
    for seed in range(3):
        bench.start(make_plan(seed=seed))
    assert loaded == ["p"]
    assert len(forgotten) == 2  # caches of a plan before are not those of a new pair
    bench.start(replace(make_plan(), pair=PairSpec("o", "t", "d")))
    assert loaded == ["p", "o"]


def test_the_driver_needs_no_models() -> None:
    """What only workers need is theirs to load: PyTorch takes seconds and memory."""
    code = (
        "import sys, specbench.cluster.execute, specbench.cluster.ray_pool\n"
        "sys.exit(' '.join({'torch', 'transformers'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
