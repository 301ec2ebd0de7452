"""Real workers of Ray with the bundled pair; skipped where Ray is not installed."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.cluster.execute import execute
from specbench.cluster.together import together
from specbench.engine.loading import LoadedPair
from specbench.engine.settings import Loading
from specbench.errors import RunError, UsageError
from specbench.experiment import execute as alone
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.records import latest_records, read_records
from specbench.experiment.settings import Settings
from specbench.experiment.store import Store
from specbench.experiment.variants import method_variants
from specbench.heads.files import fingerprints
from specbench.heads.registry import WEIGHTS
from specbench.pairs.registry import get_pair
from specbench.tasks.task import load_task
from specbench.training.parts import RollOut, here
from specbench.training.recipe import HeadRecipe
from specbench.training.session import carry_out, prepare
from specbench.training.verifier import Progress

pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")

from specbench.cluster.ray_actor import Cores
from specbench.cluster.ray_pool import Pool, _uses_gpus

from ..benchmarks.cluster_kills import workers_of

CPU = Loading(device="cpu")


@pytest.fixture(scope="module")
def plan() -> Plan:
    variants = method_variants(["autoregressive", "diversed"], {})
    tasks = [load_task(name) for name in ("mini-math", "mini-code")]
    return build_plan(get_pair("mini"), tasks, variants, [5], Settings(), loading=CPU, limit=3)


@pytest.fixture(scope="module")
def workers() -> Any:
    with Pool(2, None, CPU) as pool:
        yield pool


def counted(folder: Path) -> list[tuple[Any, ...]]:
    names = ("key", "place", "text", "token_ids", "per_round", "scores", "status")
    return [tuple(map(record.get, names)) for record in latest_records(folder)]


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes below /proc")
def test_two_workers_of_which_one_is_killed_find_what_one_process_finds(
    plan: Plan, workers: Pool, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "one", "run", plan.describe()) as store:
        alone.execute(plan, store, lambda record: None)
    kills: list[int] = []
    devices: set[str] = set()

    def report(record: Any) -> None:
        devices.add(record["device"])
        if not kills:
            kills.extend(islice(workers_of(os.getpid()), 1))
            os.kill(kills[0], signal.SIGKILL)

    with Store.open(tmp_path / "two", "run", plan.describe()) as store:
        execute(plan, store, report, workers.for_plan(plan), 2)
    assert kills
    assert len(list(read_records(tmp_path / "two"))) == len(plan)
    assert counted(tmp_path / "two") == counted(tmp_path / "one")
    cores = {device.rpartition(":")[2] for device in devices}
    assert cores <= {str(core) for core in os.sched_getaffinity(0)}


def train(
    mini: LoadedPair, folder: Path, roll_out: RollOut, report: Callable[[Progress], object]
) -> bytes:
    """Train a head in a folder and return its weights."""
    recipe = HeadRecipe(steps=3, prompts_per_step=4, rollouts=2, rollout_parts=2)
    training = prepare(mini, load_task("mini-headline"), recipe, folder)
    few = training.materials.held_out.taken(0, 4)
    training = training._replace(materials=training.materials._replace(held_out=few))
    carry_out(training, lambda progress: report(progress), roll_out)
    return (folder / WEIGHTS).read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes below /proc")
def test_two_workers_train_the_head_of_one_process_even_where_one_is_killed(
    mini: LoadedPair, workers: Pool, tmp_path: Path
) -> None:
    kills: list[int] = []
    told: list[str] = []

    def kill_one_at_work() -> None:
        while not kills:
            kills.extend(islice(workers_of(os.getpid()), 1))
        os.kill(kills[0], signal.SIGKILL)

    killer = Thread(target=kill_one_at_work, daemon=True)

    def strike(progress: Progress) -> None:
        if progress.step == 1:
            killer.start()

    hire = workers.for_roll_outs(get_pair("mini"), CPU, (64, 64, 8))
    roll_out = together(hire, 2, fingerprints(mini), told.append)
    alone = train(mini, tmp_path / "alone", here(mini), id)
    assert train(mini, tmp_path / "two", roll_out, id) == alone
    assert told == []
    assert train(mini, tmp_path / "killed", roll_out, strike) == alone
    killer.join(5)
    assert "is lost, its part is decoded elsewhere" in told[0]


def test_commands_run_side_by_side_and_tell_how_they_ended(workers: Pool) -> None:
    for actor in workers._known.values():
        actor.dismiss()
    ended = sorted(workers.run([["--version"], ["run", "--workers", "0"]]))
    assert [(number, code) for number, code, _ in ended] == [(0, 0), (1, 2)]
    assert ended[1][2] == "error: --workers must be 1 or more, not 0"


def test_a_pair_that_cannot_be_had_ends_the_run_with_its_reason(
    plan: Plan, workers: Pool, tmp_path: Path
) -> None:
    lost = replace(plan, pair=replace(plan.pair, target=str(tmp_path / "nowhere")))
    with (
        pytest.raises((UsageError, RunError), match="nowhere"),
        Store.open(tmp_path / "run", "run", lost.describe()) as store,
    ):
        execute(lost, store, lambda record: None, workers.for_plan(lost), 1)


def test_more_workers_than_cores_are_refused(workers: Pool) -> None:
    assert _uses_gpus({"CPU": 4, "GPU": 2}, 2, Loading())
    assert not _uses_gpus({"CPU": 4, "GPU": 2}, 4, CPU)
    for resources, number, said in (
        ({"CPU": 4.0}, 5, "more than the 4 cores"),
        ({"CPU": 4.0, "GPU": 2.0}, 3, "more than the 2 GPUs"),
    ):
        with pytest.raises(UsageError, match=said):
            _uses_gpus(resources, number, Loading())


def test_no_two_workers_keep_to_one_core_until_one_is_gone() -> None:
    cores, actors = Cores(), [SimpleNamespace(gone=False) for _ in range(4)]
    claimed = [cores.claim("a", [4, 5], actor) for actor in actors[:3]]  # type: ignore[arg-type]
    assert claimed == [4, 5, None]
    assert cores.claim("b", [4, 5], actors[2]) == 4  # type: ignore[arg-type]
    actors[1].gone = True
    assert cores.claim("a", [4, 5], actors[3]) == 5  # type: ignore[arg-type]
