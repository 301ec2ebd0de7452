"""``specbench plot``: the figures of heads with the bundled pair, and those of made-up runs."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from specbench.analysis.frames import SAMPLES, typed
from specbench.analysis.summary import summarise
from specbench.config import Loading
from specbench.engine import loading
from specbench.pairs.registry import get_pair

Cli = Callable[..., Any]
TASK = "mini-headline"
HEAD = get_pair("mini").heads / TASK  # type: ignore[operator]
FILES = [f"weights-head.{kind}" for kind in ("png", "svg", "pdf", "csv")]
TABLE = "weights-head.csv"


@pytest.fixture(scope="module")
def mini() -> loading.LoadedPair:
    return loading.load_pair(get_pair("mini"), Loading(device="cpu"))


@pytest.fixture(autouse=True)
def loaded(mini: loading.LoadedPair, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Give out the same loaded pair; keep on which device and in which format it was asked for."""
    asked: list[tuple[str, str]] = []

    def load_pair(spec: Any, chosen: Loading) -> loading.LoadedPair:
        asked.append((chosen.device, chosen.dtype))
        return mini

    monkeypatch.setattr(loading, "load_pair", load_pair)
    return asked


def test_a_head_says_its_pair_and_task_and_gets_table_and_figure(cli: Cli) -> None:
    result = cli("plot", "weights", "--head", str(HEAD), "-n", "4")
    assert result.code == 0, result.err
    folder = Path("results/heads/mini") / TASK  # never the package
    assert result.out.splitlines() == [str(folder / name) for name in FILES]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert sorted(path.name for path in HEAD.iterdir()) == ["head.json", "head.safetensors"]
    table = pd.read_csv(folder / TABLE, keep_default_na=False)
    assert set(table["task"]) == set(table["trained_on"]) == {TASK}
    assert table.loc[table["level"] == "all", "texts"].tolist() == [4]
    assert table.loc[table["level"] == "token", "n"].sum() == table.iloc[0]["n"]

    again = cli("plot", "weights", "--head", str(HEAD / "head.json"), "-n", "4", "-o", "again")
    assert again.code == 0, again.err
    for name in FILES:
        assert (folder / name).read_bytes() == (Path("again") / name).read_bytes()


def test_a_head_below_results_keeps_its_figure_beside_it(
    cli: Cli, loaded: list[tuple[str, str]], tmp_path: Path
) -> None:
    folder = tmp_path / "results" / "mine" / "here"
    shutil.copytree(HEAD, folder)
    line = "plot weights --head results/mine/here --task mini-math -n 1 --device cpu"
    result = cli(*line.split(), "--dtype", "float32")
    assert result.code == 0, result.err
    assert loaded == [("cpu", "float32")]
    table = pd.read_csv(folder / TABLE)
    assert (set(table["task"]), set(table["trained_on"])) == ({"mini-math"}, {TASK})


def test_the_bundled_head_and_the_authors_file_need_a_task(
    cli: Cli, tmp_path: Path, mini: loading.LoadedPair
) -> None:
    sizes = mini.target.hidden_size + mini.draft.hidden_size
    weights = {"summary.weight": torch.zeros(2, sizes), "summary.bias": torch.zeros(2)}
    torch.save(weights, tmp_path / "ensemble_head.bin")
    for head in ("bundled", "ensemble_head.bin"):
        line = ("plot", "weights", "--head", head, "-n", "1", "-o", "out")
        refused = cli(*line)
        assert refused.code == 2
        assert "name one with --task" in refused.err
        done = cli(*line, "--task", TASK)
        assert done.code == 0, done.err
    table = pd.read_csv(f"out/{TABLE}", keep_default_na=False)
    assert set(table["trained_on"]) == {""}
    assert table["mean_weight"].tolist() == pytest.approx([0.5] * len(table))


def test_another_head_s_folder_is_not_written_to(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(HEAD, tmp_path / "results/heads/mini" / TASK)
    result = cli("plot", "weights", "--head", "bundled", "--task", TASK, "-n", "1")
    assert result.code == 2
    assert "holds another head: name a folder with --output" in result.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pareto --head bundled", "--head goes with weights only"),
        ("weights some-run --head bundled", "--head takes the place of runs"),
        ("training --task mini-math", "--task belongs to --head"),
        ("weights --limit 3", "--limit belongs to --head"),
        ("weights --device cpu", "--device belongs to --head"),
        ("weights --head nowhere", "there is no head at nowhere"),
        ("weights --head bundled --task mini-maths", "did you mean `mini-math`?"),
        ("weights --head bundled --task mini-math --limit 0", "--limit"),
        ("weights --head bundled --task mini-math --pair mimi", "did you mean `mini`?"),
        (
            "weights --head bundled --task mini-math --pair llama",
            "has no bundled head for mini-math",
        ),
        ("weights --head custom", "give its models with --target and --draft"),
        ("pareto --style paperr", "did you mean `paper`?"),
        ("pareto --against tme", "did you mean `time`?"),
        ("weights --against time", "--against goes with pareto only"),
        ("training", "there is no training under results/heads"),
        ("training custom", "custom holds no training.csv"),
        ("accepted-length custom", "holds no samples.jsonl"),
        ("timeline", "there is no run under results"),
    ],
)
def test_refusals(
    cli: Cli, loaded: list[tuple[str, str]], tmp_path: Path, line: str, message: str
) -> None:
    shutil.copytree(HEAD, tmp_path / "custom")
    description = tmp_path / "custom" / "head.json"
    description.write_text(description.read_text().replace('"pair": "mini"', '"pair": "a+b"'))
    result = cli("plot", *line.split())
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert loaded == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["custom"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of ten prompts on one task, with tables and a round per sample."""
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    cell = {"run_id": "mine", "pair": "mini", "task": "mini-math", "temperature": 1.0}
    cell |= {"engine": "eager", "batch_size": 1, "seed": 0, "repeat": 0, "draft_length": 3}
    cells = [("sd", {}, 1), ("static", {"weight": 0.5}, 2), ("static", {"weight": 0.0}, 3)]
    with (folder / "samples.jsonl").open("w") as records:
        rows = []
        for (method, own, accepted), i in product(cells, range(10)):
            row = dict.fromkeys(SAMPLES) | cell | own | {"method": method, "sample_id": f"test-{i}"}
            row |= {"quality_metric": "accuracy", "quality": float(i % 3 < 4 - accepted)}
            row |= {"prompt_tokens": 9, "output_tokens": accepted + 1, "stopped_by": "eos"}
            row |= {"rounds": 1, "proposed": 3, "accepted": accepted}
            row |= {"prefill_seconds": 0.01, "decode_seconds": 0.04 - 0.01 * accepted}
            rows.append(row)
            rounds = {"proposed": [3], "accepted": [accepted], "emitted": [accepted + 1]}
            rounds |= {"expected": [[0.5]], "weights": [[]]}
            ours = {"key": f"{method} {i}", "place": len(rows), "status": "ok"}
            json.dump(row | ours | {"token_ids": [], "per_round": rounds}, records)
            records.write("\n")
    samples = typed(pd.DataFrame(rows), SAMPLES, "the test")
    samples.to_csv(folder / "samples.csv", index=False)
    summarise(samples).to_csv(folder / "summary.csv", index=False)
    return folder


def test_figures_go_beside_the_run_with_their_data(cli: Cli, run: Path) -> None:
    result = cli("plot", "pareto")
    assert result.code == 0, result.err
    names = [f"pareto.{kind}" for kind in ("png", "svg", "pdf", "csv")]
    assert result.out.splitlines() == [f"results/mine/figures/{name}" for name in names]
    data = pd.read_csv(run / "figures" / "pareto.csv")
    assert set(data["against"]) == {"time", "acceptance"}
    assert data.loc[data["mark"] == "front", "quality_low"].notna().all()  # a band, from samples


def test_prices_are_chosen_and_named_in_the_file(cli: Cli, run: Path) -> None:
    result = cli("plot", "pareto", "--against", "acceptance,time", "--against", "time")
    assert result.code == 0, result.err
    data = pd.read_csv(run / "figures" / "pareto-acceptance-time.csv")
    assert data["against"].unique().tolist() == ["acceptance", "time"]
    refused = cli("plot", "pareto", "--against", "speedup")
    assert refused.code == 2
    assert "run autoregressive too" in refused.err


def test_tasks_of_a_run_are_chosen_and_named_in_the_file(cli: Cli, run: Path) -> None:
    for name in ("samples.csv", "summary.csv"):
        rows = (run / name).read_text().splitlines()
        more = [row.replace("mini-math", "mini-news") for row in rows[1:]]
        (run / name).write_text("\n".join([*rows, *more]) + "\n")
    for line, tasks, file in (
        ("--task mini-news", {"mini-news"}, "pareto-mini-news.csv"),
        (
            "-t mini-news --task mini-math",
            {"mini-news", "mini-math"},
            "pareto-mini-news-mini-math.csv",
        ),
        ("--task all", {"mini-news", "mini-math"}, "pareto.csv"),
    ):
        result = cli("plot", "pareto", *line.split())
        assert result.code == 0, result.err
        assert set(pd.read_csv(run / "figures" / file)["task"]) == tasks
    refused = cli("plot", "pareto", "--task", "mini-new")
    assert refused.code == 2
    assert "these runs have no task mini-new: did you mean `mini-news`?" in refused.err


def test_a_style_changes_the_page_and_not_the_data(cli: Cli, run: Path) -> None:
    for style in ("paper", "screen"):
        assert cli("plot", "weights", "--style", style, "-o", style).code == 0
    svgs, tables = (
        {(Path(style) / f"weights.{kind}").read_bytes() for style in ("paper", "screen")}
        for kind in ("svg", "csv")
    )
    assert (len(svgs), len(tables)) == (2, 1)


def test_accepted_length_comes_from_the_records_packed_or_not(cli: Cli, run: Path) -> None:
    assert cli("plot", "accepted-length", "-o", "plain").code == 0
    records = run / "samples.jsonl"
    (run / "samples.jsonl.gz").write_bytes(gzip.compress(records.read_bytes()))
    records.unlink()
    assert cli("plot", "accepted-length", "-o", "packed").code == 0
    tables = [Path(folder, "accepted-length.csv").read_bytes() for folder in ("plain", "packed")]
    assert tables[0] == tables[1]
    data = pd.read_csv("plain/accepted-length.csv")
    means = data[data["mark"] == "mean"]
    assert means["value"].tolist() == [1, 2, 3]


def test_the_training_that_went_on_last_is_drawn(cli: Cli, tmp_path: Path) -> None:
    columns = "step,reward,acceptance,weight,disagreement,loss\n"
    for number, name in enumerate(("new", "old")):
        folder = tmp_path / "results/heads/mini" / name
        folder.mkdir(parents=True)
        (folder / "training.csv").write_text(columns + f"1,0.{number},0.8,0.9,0.2,0.1\n")
    os.utime(folder / "training.csv", (1, 1))
    result = cli("plot", "training")
    assert result.code == 0, result.err
    drawn = Path("results/heads/mini/new/figures/training.csv")
    assert str(drawn) in result.out.splitlines()
    assert pd.read_csv(drawn)["head"].tolist() == ["mini/new"]
    assert cli("plot", "training", "results/heads/mini/old", "results/heads/mini/new").code == 0
    assert pd.read_csv(drawn)["head"].tolist() == ["old", "new"]


def test_the_data_behind_a_figure_never_replaces_a_training(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "training.csv").write_text("step\n")
    result = cli("plot", "training", ".", "-o", ".")
    assert result.code == 2
    assert "would overwrite" in result.err
    assert (tmp_path / "training.csv").read_text() == "step\n"
