import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.cli.tables import NO_BASELINE, print_run

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
    title, *headings = result.out.splitlines()[:3]
    assert title == "mini-math on mini, n = 2"
    assert [line.split() for line in headings] == [
        ["accuracy", "accepted", "/", "tokens", "/", "tokens/s"],
        ["method", "N", "[95", "%]", "drafted", "round", "tokens/s", "/", "AR's"],
    ]
    for text in ("60.0%", "4.00", "1.00", "results: r"):
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


def make_head(folder: Path, task: str, **recipe: float) -> None:
    """Head files as far as they are read before a model loads."""
    folder.mkdir(parents=True)
    (folder / "head.safetensors").touch()
    about = {"kind": "linear", "task": task, "recipe": recipe}
    (folder / "head.json").write_text(json.dumps(about))


def heads(folder: Path) -> list[tuple[str, str]]:
    return [(r["task"], r["head"]) for r in rows(folder) if r["method"] == "diversed"]


def test_a_head_is_found_by_itself_and_named_in_one_line(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    pair = ("--target", "a/big", "--draft", "a/small")
    make_head(tmp_path / "results/heads/big+small/mini-math", "mini-math", target_acceptance=0.85)
    line = ("run", "-m", "diversed", "-t", "mini-math", *FAST)
    found = cli(*line, *pair)
    assert found.code == 0
    assert found.err.splitlines()[0] == (
        "note: heads: mini-math results/heads/big+small "
        "(linear, target acceptance 0.85 per position)"
    )
    assert heads(tmp_path / "r") == [("mini-math", "results")] * 2
    assert "\ndiversed  5  " in found.out
    other = cli("run", "-m", "diversed", "-t", "mini-math", "--limit", "2", "--output", "s")
    assert other.err.splitlines()[0] == "note: heads: mini-math bundled (linear)"


def test_a_head_of_another_task_is_used_and_said(cli: Cli, engine: Any, tmp_path: Path) -> None:
    make_head(tmp_path / "h", "mini-news")
    line = ("run", "-m", "diversed", "-t", "mini-math,mini-news", *FAST, "--head", "h/")
    assert cli(*line).err.splitlines()[0] == (
        "note: heads: mini-math h (linear, trained for mini-news); mini-news h (linear)"
    )
    assert set(heads(tmp_path / "r")) == {("mini-math", "h"), ("mini-news", "h")}


def test_several_heads_take_turns_in_one_run(cli: Cli, engine: Any, tmp_path: Path) -> None:
    for wish in (0.7, 0.9):
        make_head(tmp_path / f"f/acceptance-{wish}/mini-math", "mini-math", target_acceptance=wish)
    line = ("sweep-weights", "--weights", "0,1", "-t", "mini-math", *FAST)
    result = cli(*line, "--head", "f", "--head", "bundled")
    assert result.code == 0
    names = ["f/acceptance-0.7", "f/acceptance-0.9", "bundled"]
    assert heads(tmp_path / "r") == [("mini-math", name) for name in names] * 2
    for label in ("diversed acceptance-0.7", "diversed acceptance-0.9", "diversed"):
        assert f"\n{label} " in result.out
        digest = (tmp_path / "r" / "summary.md").read_text()
        assert f"| **{label} above the static front (randomised)** |" in digest
    cells = json.loads((tmp_path / "r/config.json").read_text())["tasks"][0]["cells"]
    assert next(cell["head"] for cell in cells if cell["method"] == "diversed") == {
        "name": "f/acceptance-0.7",
        "path": "f/acceptance-0.7/mini-math",
        "kind": "linear",
        "task": "mini-math",
        "target_acceptance": 0.7,
    }


def test_prompts_without_a_head_are_told_which_there_are(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    (tmp_path / "q.txt").write_text("Add 2 and 5.\n")
    line = ("run", "-m", "sd,diversed", "--prompts", "q.txt", "--output", "r")
    refused = cli(*line)
    assert refused.code == 2
    assert "specbench train" not in refused.err
    assert "--head (mini-code, mini-headline, mini-math, mini-news)" in refused.err
    assert cli(*line, "--head", "mini-math").code == 0
    assert heads(tmp_path / "r") == [("q", "mini-math")]


def test_both_heads_of_a_task_are_told_apart(cli: Cli, engine: Any, tmp_path: Path) -> None:
    make_head(tmp_path / "results/heads/mini/mini-math", "mini-math")
    line = ("sweep-weights", "--weights", "0,1", "-t", "mini-math", *FAST)
    result = cli(*line, "--head", "bundled,results")
    assert result.code == 0
    assert "\ndiversed bundled " in result.out
    assert "\ndiversed results " in result.out


def test_an_untrained_head_decodes_as_static_does(cli: Cli, tmp_path: Path) -> None:
    command = ("run", "-m", "static,diversed", "--head", "untrained", "-t", "mini-math")
    assert cli(*command, "--weight", "0.5", "--max-new-tokens", "24", *FAST).code == 0
    lines = (tmp_path / "r" / "samples.jsonl").read_text().splitlines()
    texts: dict[str, list[str]] = {}
    for record in map(json.loads, lines):
        texts.setdefault(record["method"], []).append(record["text"])
    assert texts["diversed"] == texts["static"]


def test_without_a_compiler_the_compiling_engine_is_refused(
    cli: Cli, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import cpp_builder, exc

    def none() -> str:
        raise exc.InvalidCxxCompiler()

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    result = cli("run", "-t", "mini-math", "-m", "sd", "--engine", "compile", *FAST)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("error: --engine compile needs a C++ compiler")
    assert engine.loaded is None
    assert not (tmp_path / "r").exists()


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
    line = ("sweep-weights", "--weights", "0.25", "--method", "paper", "-t", "mini-math")
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


def test_several_prompt_files_are_tasks_each(cli: Cli, engine: Any, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"question {name}\n")
    result = cli("run", "--prompts", "a.txt", "--prompts", "b.txt", "-m", "sd", "--output", "r")
    assert result.code == 0, result.err
    assert [row["task"] for row in rows(tmp_path / "r")] == ["a", "b"]


def test_prompts_without_reference_are_counted(cli: Cli, engine: Any, tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "reference": "#### 7"}', '{"prompt": "b"}', '{"prompt": "c"}']
    (tmp_path / "questions.jsonl").write_text("\n".join(lines) + "\n")
    line = "run --prompts questions.jsonl --metric accuracy -m autoregressive,sd --output r"
    result = cli(*line.split())
    assert "2 of 3 prompts of questions have no reference" in result.err
    assert "n = 3, quality of 1 of them" in result.out
    assert "3 prompts per task, quality of 1 of them" in cli("table", "r").out
    assert "3 prompts (quality of 1 of them)" in (tmp_path / "r" / "summary.md").read_text()


def test_chat_prompts_need_a_template(cli: Cli, engine: Any, tmp_path: Path) -> None:
    engine.tokenizer.chat_template = None
    line = ("run", "-m", "sd", "-t", "mini-math", "--prompt-format", "chat", *FAST)
    result = cli(*line)
    assert result.code == 2
    assert "no chat template: give --prompt-format plain" in result.err.splitlines()[-1]
    assert not (tmp_path / "r").exists()
    assert cli(*line[: -len(FAST) - 1], "plain", *FAST).code == 0


def test_without_autoregressive_there_is_a_word_and_no_empty_column(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    shown = cli("run", "-m", "sd", "-t", "mini-math", *FAST)
    table, word, _ = shown.out.partition(NO_BASELINE)
    assert "AR's" not in table
    assert word
    assert "autoregressive" in cli("table", "r").err


def test_a_slow_pair_s_speed_is_not_0(
    cli: Cli, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("run", "-m", "sd", "-t", "mini-math", *FAST).code == 0
    path = tmp_path / "r" / "summary.csv"
    table = pd.read_csv(path)
    table.loc[table["metric"] == "tokens_per_second", "value"] = 0.3125
    table.to_csv(path, index=False)
    print_run(tmp_path / "r")
    assert "0.312" in capsys.readouterr().out


def test_samples_that_fail_make_the_run_fail_after_its_table(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    engine.failing = {2: ValueError("broken")}
    result = cli("run", "-m", "sd", "-t", "mini-math", *FAST)
    assert result.code == 1
    assert "mini-math on mini" in result.out
    assert result.err.splitlines()[-1] == (
        "error: 1 of 2 samples failed, the first with: ValueError: broken; "
        "each is in r/samples.jsonl with its status, and the same command tries them again"
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
    assert result.err.splitlines()[-1] == (
        "error: interrupted: 1 of 2 samples are in r; the same command goes on from there"
    )
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
    drawn = [folder / "figures" / f"pareto.{kind}" for kind in ("png", "svg", "pdf", "csv")]
    assert [tmp_path / line for line in result.out.splitlines()] == drawn
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert cli("plot", "pareto", str(folder), "--output", "elsewhere").code == 0
    assert (tmp_path / "elsewhere" / "pareto.svg").is_file()
