"""Runs in parts: pairs one after the other, and shards that are read as one run."""

import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import specbench
from specbench.analysis.report.build import build
from specbench.cli.app import main
from specbench.engine.loading import load_pair
from specbench.experiment.loader import Loader
from specbench.runs.frames import read_samples

from .conftest import Result
from .made import configure

FAST = ("-m", "sd", "-t", "mini-math", "-n", "2", "--no-progress")


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
    sizes = "--steps 2 --prompts-per-step 2 --rollouts 2"
    return f"train -t mini-headline,mini-code {sizes} --no-progress".split()


def test_a_shard_of_a_training_has_some_of_its_tasks(cli, tiny):
    shown = cli(*tiny, "--shard", "2/2", "--dry-run")
    plan, _ = shown.out.splitlines()  # and the memory
    assert plan.startswith("mini-code on mini: ") and plan.endswith(" results/heads/mini/mini-code")
    assert cli(*tiny, "--shard", "1/2").code == 0
    assert [path.name for path in Path("results/heads/mini").iterdir()] == ["mini-headline"]


LINE = "run -m autoregressive,sd -t mini-math -n 3 --max-new-tokens 6 --temperature 0"


@pytest.fixture(scope="session")
def measured_shards(once) -> Path:
    def measure(folder: Path) -> None:
        for name, shard in (("whole", ""), ("a/1", "--shard 1/2"), ("a/2", "--shard 2/2")):
            line = f"{LINE} {shard} --device cpu --no-progress --output {folder / name}"
            with pytest.raises(SystemExit) as exit:
                main(line.split())
            assert exit.value.code == 0

    return once("shards", measure)


@pytest.fixture
def run_id(measured_shards, cli, tmp_path) -> str:
    """Copy the runs into the working directory; the name that the shards share."""
    shutil.copytree(measured_shards, tmp_path, dirs_exist_ok=True)
    (name,) = set(specbench.load("a").runs["run_id"])
    return str(name)


def edited(folder: str, **changes: Any) -> None:
    configure(Path(folder), lambda config: config.update(changes))


def test_the_report_pools_the_positions_of_shards(run_id, monkeypatch):
    drawn: list[pd.DataFrame] = []
    module = "specbench.analysis.report.build.figures"
    monkeypatch.setattr(module, lambda cells, positions, samples: drawn.append(positions) or [])
    for folder in ("a", "whole"):
        build([Path(folder).resolve()])
    shards, whole = (positions.drop(columns="run_id") for positions in drawn)
    pd.testing.assert_frame_equal(shards, whole)
    pd.testing.assert_frame_equal(drawn[0], specbench.load("a").positions)


@pytest.mark.usefixtures("run_id")
def test_shards_count_as_one_run_of_those_with_verdicts(cli, monkeypatch):
    monkeypatch.setattr("specbench.cli.tables.MOST_JUDGED", 1)
    assert "no verdicts" not in cli("table", "a", code=0).err


@pytest.mark.usefixtures("report_without_figures")
def test_the_report_names_folders_of_one_name_by_their_paths(cli, run_id):
    shutil.copytree("a/1", "b/1")
    for file in ("samples.csv", "summary.csv"):
        table = Path("b/1") / file
        table.write_text(table.read_text().replace(run_id, "other"))
    for folder in ("a/1", "b/1"):
        edited(folder, progress={"state": "interrupted", "samples": 1, "failed": 0})
    done = cli("report", "a", "b", "--output", "both.html", code=0)
    said = re.findall(r"note: (\S+) is incomplete: interrupted", done.err)
    assert (done.out, said) == ("both.html\n", ["a/1", "b/1"])
    heads = {
        name.strip() for name in re.findall(r"<th[^>]*>([^<]*)", Path("both.html").read_text())
    }
    assert {"a/1", "a/2", "b/1"} <= heads


def test_remarks_speak_of_all_shards(run_id):
    def greedy():
        return [text for text in specbench.load("a").remarks if "greedy texts" in text]

    assert greedy() == [
        "mini-math: greedy texts of sd equal those of autoregressive on all 3 prompts"
    ]
    failed = "mini-math: 2 of 5 prompts of autoregressive and sd failed"
    (task,) = json.loads(Path("a/1/config.json").read_text())["tasks"]
    ended = {"state": "complete", "samples": 4, "failed": 4}
    edited("a/1", tasks=[{**task, "examples": 4}], progress=ended)
    assert any(text.startswith(failed) for text in specbench.load("a").remarks)
    edited("a/2", progress={**ended, "state": "failed"})
    assert not any("failed" in text for text in specbench.load("a").remarks)


def missing_of(result: Result) -> list[str]:
    assert result.code == 0, result.err
    return [line for line in result.err.splitlines() if "missing or unfinished" in line]


@pytest.mark.usefixtures("report_without_figures")
def test_missing_and_unfinished_shards_are_named_once(cli, run_id):
    settings = json.loads(Path("a/1/config.json").read_text())["settings"]
    for command in ("table", "compare", "plot acceptance-time"):
        assert missing_of(cli(*command.split(), "a")) == []
        said = missing_of(cli(*command.split(), "a/1"))
        assert said == [f"note: shard 2/2 of {run_id} is missing or unfinished"]
    edited("a/2", progress={"state": "failed", "samples": 1, "failed": 0})
    assert missing_of(cli("plot", "acceptance-time", "a")) == said
    for number in (1, 3):
        progress = {"state": "complete", "samples": 4, "failed": 0}
        folder = f"a/{(number + 1) // 2}"
        edited(folder, settings={**settings, "shard": f"{number}/4"}, progress=progress)
    assert missing_of(cli("table", "a")) == [
        f"note: shards 2/4 and 4/4 of {run_id} are missing or unfinished"
    ]
    assert any("shards 2/4 and 4/4" in note for note in build([Path("a")]).notes)


def test_a_shard_without_its_summary_is_not_left_out(cli, run_id):
    whole = cli("table", "a", "--format", "csv").out
    Path("a/2/summary.csv").unlink()
    assert set(specbench.load("a").summary["n"]) >= {3}
    assert cli("table", "a", "--format", "csv").out == whole
    shutil.rmtree("a/2")
    part = cli("table", "a", "--format", "csv").out
    Path("a/1/summary.csv").unlink()
    assert cli("table", "a/1", "--format", "csv").out == part
    shutil.copytree("whole", "a/whole")  # a run that is no shard keeps its summary
    Path("a/whole/samples.csv").unlink()
    assert set(specbench.load("a").summary["run_id"]) == {run_id, "whole"}
    Path("whole/summary.csv").unlink()
    told = cli("table", "a/1", "whole").err
    assert "without its summary.csv: repeat its command with --output" in told


COUNTS = ["quality", "rounds", "proposed", "accepted", "output_tokens"]


def test_shards_are_one_run_and_no_two_to_compare(cli, run_id):
    def counts(*folders):
        return read_samples(*folders).set_index(["method", "sample_id"])[COUNTS].sort_index()

    assert [len(counts(folder)) for folder in ("a/1", "a/2", "whole")] == [4, 2, 6]
    pd.testing.assert_frame_equal(counts("a/1", "a/2"), counts("whole"))
    assert cli("table", "a").out.startswith("Pair mini, T = 0, N = 5: 3 prompts per task\n")
    whole, parts = (specbench.load(folder).summary for folder in ("whole", "a"))
    untimed = whole["metric"].isin(["quality", "draft_acceptance_rate", "acceptance_length"])
    pd.testing.assert_series_equal(parts[untimed]["value"], whole[untimed]["value"])
    assert "settings.shard" not in cli("compare", "a/1", "a/2", code=0).out
    cli("compare", "a/1", "whole", code=0)
    cli("verify", "a/2", "-n", "1", code=0)


def test_folders_that_hold_the_same_run_are_named(cli, run_id):
    shutil.copytree("a/1", "copy")
    assert "both hold run shards-" in cli("table", "a/1", "copy").err
    for table in Path("whole").glob("s*.csv"):  # a similar name, and no shards
        table.write_text(table.read_text().replace("whole", "shards-1"))
    table = Path(shutil.copytree("whole", "other")) / "samples.csv"
    head, *_, last = table.read_text().splitlines()
    table.write_text(f"{head}\n{last.replace('mini-math', 'mini-code')}\n")
    assert "both hold run shards-1" in cli("compare", "whole", "other").err


def test_a_shard_without_its_examples_is_priced(cli, run_id):
    asked = ("--draft-length", "2", "--no-progress", "--format", "csv", "-o")
    first = cli("price", "a/2", *asked, "first")
    Path("a/2/examples.jsonl").unlink()
    assert cli("price", "a/2", *asked, "again", code=0).out == first.out


def test_advice_and_folder_name_the_shard(cli):
    result = cli(*LINE.split(), "--shard", "2/2", "--no-progress", code=0)
    (folder,) = Path("results").iterdir()
    assert folder.name.endswith("-run-mini-2-of-2")
    assert f"--output {folder} --limit 20 --shard 2/2, to narrow" in result.err + result.out
