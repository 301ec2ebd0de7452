"""Runs in parts: pairs one after the other, and shards of a run on several machines."""

import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.app import main
from specbench.decoding.heads.registry import is_head
from specbench.engine.loading import load_pair
from specbench.experiment.loader import Loader
from specbench.runs.frames import read_samples

FAST = ("-m", "sd", "-t", "mini-math", "-n", "2", "--no-progress")


def test_another_shard_is_another_run(cli, engine):
    cli("run", *FAST, "--shard", "1/2", "-o", "r", code=0)
    assert "settings.shard" in cli("run", *FAST, "--shard", "2/2", "-o", "r", code=2).err


def test_pairs_are_measured_in_folders_of_their_own(cli, engine, tmp_path):
    planned = cli("run", "--pair", "mini,python", *FAST, "-o", "r", "--dry-run")
    assert planned.code == 0 and not (tmp_path / "r").exists()
    assert "mini-math on mini" in planned.out and "mini-math on python" in planned.out
    assert cli("run", "--pair", "mini,python", *FAST, "-o", "r").code == 0
    assert sorted(path.name for path in Path("r").iterdir()) == ["r-mini", "r-python"]
    assert set(read_samples("r")["run_id"]) == {"r-mini", "r-python"}
    shown = cli("table", "r").out
    assert "Pair mini," in shown and "Pair python," in shown
    assert cli("run", "--pair", "mini,python", *FAST).code == 0
    folders = sorted(path.name.partition("-run-")[2] for path in Path("results").iterdir())
    assert folders == ["mini", "python"]
    assert cli("run", "--pair", "mini,mini", *FAST, "-o", "one").code == 0
    assert set(read_samples("one")["run_id"]) == {"one"}
    refused = cli("run", "--pair", "mini,python", *FAST, "--json")
    assert refused.code == 2 and "--json prints one run" in refused.err


def test_the_models_of_a_pair_are_freed_before_the_next_ones_are_loaded(cli, monkeypatch):
    loaded: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def load(spec, loading):
        alive.append(sum(model() is not None for model in loaded))
        pair = load_pair(spec, loading)
        loaded.extend(map(weakref.ref, (pair.target, pair.draft)))
        return pair

    initialise = Loader.__init__
    monkeypatch.setattr(Loader, "__init__", lambda loader: initialise(loader, load))
    short = ("--drafter", "model,eagle3", "--max-new-tokens", "4", "-o", "r")
    assert cli("run", "--pair", "mini,python", *FAST, *short).code == 0
    assert alive == [0, 0]


def test_a_failure_of_one_pair_leaves_the_others(cli, engine):
    engine.failing = {number: ValueError("broken") for number in range(5)}
    failed = cli(
        "sweep-weights", "--pair", "mini,python", *FAST, "--weights", "0.5", "-o", "r", code=1
    )
    assert "1 of 2 pairs failed, the first with: pair mini: " in failed.err.splitlines()[-1]
    assert len(read_samples("r/r-python")) == 6
    unknown = cli("run", "--pair", "python,mini", "-t", "mini-maths", "--dry-run")
    assert unknown.code == 2 and "2 of 2 pairs failed" in unknown.err


@pytest.fixture
def tiny(models) -> list[str]:
    """A training of two heads."""
    sizes = "--steps 2 --prompts-per-step 2 --rollouts 2"
    return f"train -t mini-headline,mini-code {sizes} --no-progress".split()


def test_a_shard_of_a_training_has_some_of_its_tasks(cli, tiny):
    shown = cli(*tiny, "--shard", "2/2", "--dry-run")
    plan, _ = shown.out.splitlines()  # and the memory
    assert plan.startswith("mini-code on mini: ") and plan.endswith(" results/heads/mini/mini-code")
    assert cli(*tiny, "--shard", "1/2").code == 0
    assert [path.name for path in Path("results/heads/mini").iterdir()] == ["mini-headline"]


def test_workers_train_a_task_by_a_command_each(cli, tiny, monkeypatch):
    lines: list[list[str]] = []

    class Workers:
        """Runs the first command, and fails with the others."""

        def run(self, commands):
            lines.extend(commands)
            with pytest.raises(SystemExit) as end:
                main(commands[0])
            yield 0, end.value.code, ""
            yield 1, 2, "error: no memory"

    monkeypatch.setattr("specbench.cli.train.ray_workers", lambda *_: nullcontext(Workers()))
    result = cli(*tiny, "--workers", "2", "--temperature", "0.7,1")
    assert result.code == 2 and result.err.splitlines()[-1] == "error: mini-code: no memory"
    (first, second) = lines
    assert first[:3] == ["train", "--task", "mini-headline"] and second[2] == "mini-code"
    assert first[3:] == second[3:] and "--workers" not in first
    given = dict(zip(first[3:-1:2], first[4::2], strict=False))
    assert (given["--steps"], given["--rollouts"]) == ("2", "2")
    assert first.count("--temperature") == 2
    assert is_head(Path("results/heads/mini/mini-headline"))
    assert "Heads of mini in results/heads/mini" in result.out
