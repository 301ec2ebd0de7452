import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
FAST = ("--limit", "2", "--output", "r")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "samples.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def cells(folder: Path) -> set[tuple[str, str, str, str]]:
    return {(r["task"], r["method"], r["weight"], r["draft_length"]) for r in rows(folder)}


def test_a_run_prints_its_table_and_says_where_the_files_are(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    result = cli("run", "-m", "autoregressive,sd", "-t", "mini-math", *FAST)
    assert result.code == 0
    for text in ("mini-math on mini", "accuracy [95 %]", "60.0%", "4.00", "1.00", "results: r"):
        assert text in result.out
    assert result.err == (
        "note: --limit 2 is for testing: intervals over so few examples say little\n"
    )
    assert len(rows(tmp_path / "r")) == 4


def test_without_a_flag_everything_bundled_runs(cli: Cli, engine: Any, tmp_path: Path) -> None:
    result = cli("run")
    assert result.code == 0
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("-run-mini")
    found = rows(folder)
    assert {row["task"] for row in found} == {
        "mini-math",
        "mini-news",
        "mini-headline",
        "mini-code",
    }
    assert {"autoregressive", "sd", "lossy", "speccascade", "static"} <= {
        row["method"] for row in found
    }
    assert "is for testing" not in result.err


@pytest.mark.parametrize(
    "methods", [("-m", "sd,lossy"), ("-m", "sd", "-m", "lossy"), ("-m", " sd , lossy,sd ")]
)
def test_names_repeat_and_take_comma_lists(
    cli: Cli, engine: Any, tmp_path: Path, methods: tuple[str, ...]
) -> None:
    assert cli("run", *methods, "-t", "mini-math", *FAST).code == 0
    assert [row["method"] for row in rows(tmp_path / "r")] == ["sd", "lossy"] * 2


def test_a_missing_head_leaves_diversed_out_unless_it_was_asked_for(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    models = ("--target", "a/big", "--draft", "a/small")
    result = cli("run", *models, "-t", "mini-math", *FAST)
    assert result.code == 0
    assert "note: diversed is left out on mini-math: pair big+small has no head" in result.err
    assert "diversed" not in {row["method"] for row in rows(tmp_path / "r")}
    assert cli("run", *models, "-m", "diversed", "-t", "mini-math").code == 2


def test_a_sweep_has_its_anchors_and_every_weight(cli: Cli, engine: Any, tmp_path: Path) -> None:
    models = ("--target", "a/big", "--draft", "a/small")
    line = ("sweep-weights", "--weights", "0,0.5,1", "--draft-length", "3,5", "-t", "mini-math")
    assert cli(*line, *models, *FAST).code == 0
    assert cells(tmp_path / "r") == {("mini-math", "autoregressive", "", "0")} | {
        ("mini-math", method, weight, length)
        for method, weight in (("sd", ""), ("static", "0.0"), ("static", "0.5"), ("static", "1.0"))
        for length in "35"
    }


def test_a_sweep_may_measure_all_methods_beside_the_weights(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    models = ("--target", "a/big", "--draft", "a/small")
    line = ("sweep-weights", "--weights", "0.25", "--method", "all", "-t", "mini-math")
    assert cli(*line, *models, *FAST).code == 0
    methods = [(method, weight) for _, method, weight, _ in cells(tmp_path / "r")]
    assert sorted(methods) == [
        ("autoregressive", ""),
        ("lossy", ""),
        ("sd", ""),
        ("speccascade", ""),
        ("static", "0.25"),
    ]


@pytest.mark.parametrize(
    ("content", "options", "metric", "quality"),
    [
        ('{"prompt": "a"}\n', (), "", [""]),
        ('{"prompt": "a", "reference": "so #### 7"}\n', (), "rouge2", ["1.0"]),
        ('{"prompt": "a", "reference": "#### 7"}\n', ("--metric", "accuracy"), "accuracy", ["1.0"]),
        (
            '{"prompt": "a", "reference": "#### 8"}\n{"prompt": "b"}\n',
            ("--metric", "accuracy"),
            "accuracy",
            ["0.0", ""],
        ),
    ],
)
def test_prompts_of_the_user_take_the_place_of_tasks(
    cli: Cli,
    engine: Any,
    tmp_path: Path,
    content: str,
    options: tuple[str, ...],
    metric: str,
    quality: list[str],
) -> None:
    (tmp_path / "questions.jsonl").write_text(content)
    result = cli("run", "--prompts", "questions.jsonl", *options, "-m", "sd", "--output", "r")
    assert result.code == 0
    found = rows(tmp_path / "r")
    assert [row["quality"] for row in found] == quality
    assert {row["quality_metric"] for row in found} == {metric}
    assert {row["task"] for row in found} == {"questions"}


def test_samples_that_fail_make_the_run_fail_after_its_table(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    engine.failing = {2: ValueError("broken")}
    result = cli("run", "-m", "sd", "-t", "mini-math", *FAST)
    assert result.code == 1
    assert "mini-math on mini" in result.out
    assert result.err.splitlines()[-1] == (
        "error: 1 of 2 samples failed, the first with: ValueError: broken; "
        "each is in r/samples.jsonl with its status"
    )


def test_where_every_sample_fails_there_is_no_table(cli: Cli, engine: Any, tmp_path: Path) -> None:
    engine.failing = dict.fromkeys(range(9), ValueError("broken"))
    result = cli("run", "-m", "sd", "-t", "mini-math", *FAST)
    assert result.code == 1
    assert result.out == "results: r\n"
    assert not list((tmp_path / "r").glob("*.csv"))


def test_an_interrupted_run_says_what_it_kept(cli: Cli, engine: Any, tmp_path: Path) -> None:
    engine.failing = {2: KeyboardInterrupt()}
    result = cli("run", "-m", "sd", "-t", "mini-math", *FAST)
    assert result.code == 130
    assert result.err.splitlines()[-1] == "error: interrupted: 1 of 2 samples are in r"
    assert len(rows(tmp_path / "r")) == 1
    assert (
        json.loads((tmp_path / "r/config.json").read_text())["progress"]["state"] == "interrupted"
    )


def test_a_run_interrupted_before_its_first_sample_leaves_nothing(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    engine.failing = {0: KeyboardInterrupt()}
    result = cli("run", "-m", "sd", "-t", "mini-math", *FAST)
    assert result.code == 130
    assert "no sample was finished" in result.err
    assert not (tmp_path / "r").exists()


def test_models_that_cannot_be_had_leave_nothing(
    cli: Cli, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.errors import UsageError
    from specbench.experiment import execute

    def absent(*_: Any) -> None:
        raise UsageError("cannot load meta-llama/x from the hub: accept the licence")

    monkeypatch.setattr(execute, "load_pair", absent)
    result = cli("run", "--pair", "llama", "-m", "sd", *FAST)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("error: cannot load meta-llama/x")
    assert not (tmp_path / "r").exists()


def test_figures_are_drawn_from_the_newest_run(cli: Cli, engine: Any, tmp_path: Path) -> None:
    cli("sweep-weights", "-t", "mini-math", "--weights", "0,1", "--limit", "2", "--pair", "mini")
    (folder,) = (tmp_path / "results").iterdir()
    result = cli("plot", "pareto")
    assert result.code == 0
    drawn = [folder / "figures" / f"pareto.{kind}" for kind in ("png", "svg")]
    assert [tmp_path / line for line in result.out.splitlines()] == drawn
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert cli("plot", "pareto", str(folder), "--output", "elsewhere").code == 0
    assert (tmp_path / "elsewhere" / "pareto.svg").is_file()
