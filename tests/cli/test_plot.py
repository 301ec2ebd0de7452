"""``specbench plot weights --head``, with the bundled pair."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from specbench.engine import loading
from specbench.engine.settings import Loading
from specbench.pairs.registry import get_pair

Cli = Callable[..., Any]
TASK = "mini-headline"
HEAD = get_pair("mini").heads / TASK  # type: ignore[operator]
FILES = ["learned.csv", "weights-head.png", "weights-head.svg"]


@pytest.fixture(scope="module")
def mini() -> loading.LoadedPair:
    return loading.load_pair(get_pair("mini"), Loading("cpu"))


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
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert sorted(path.name for path in HEAD.iterdir()) == ["head.json", "head.safetensors"]
    table = pd.read_csv(folder / FILES[0], keep_default_na=False)
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
    table = pd.read_csv(folder / FILES[0])
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
    table = pd.read_csv("out/learned.csv", keep_default_na=False)
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
        ("weights --task mini-math", "--task belongs to --head"),
        ("weights --limit 3", "--limit belongs to --head"),
        ("weights --device cpu", "--device belongs to --head"),
        ("weights --head nowhere", "there is no head at nowhere"),
        ("weights --head bundled --task mini-maths", "did you mean `mini-math`?"),
        ("weights --head bundled --task mini-math --limit 0", "at least 1"),
        ("weights --head bundled --task mini-math --pair mimi", "did you mean `mini`?"),
        (
            "weights --head bundled --task mini-math --pair llama",
            "has no bundled head for mini-math",
        ),
        ("weights --head custom", "give its models with --target and --draft"),
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
