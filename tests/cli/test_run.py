"""``specbench run``: its table and notes, heads, prompt files, and drafters beside each other."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from specbench.analysis.tables.run_tables import NO_BASELINE
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind
from specbench.engine.cache import SlotCache
from specbench.engine.pairs import get_pair
from specbench.runs.records import read_records

from ..synthetic import make_head, rows

FAST = ("--limit", "2", "--output", "r")


def test_a_run_prints_its_table_and_folder(cli, engine, tmp_path):
    result = cli("run", "-m", "autoregressive,sd", "-t", "mini-math", *FAST, code=0)
    for text in ("mini-math on mini, T = 1, n = 2", "60.0", "4.00", "1.00", "results: r"):
        assert text in result.out
    assert "--limit 2 is for testing" in result.err and result.err.count("\n") == 2
    assert "next: " in result.err.splitlines()[-1]
    assert len(rows(tmp_path / "r")) == 4
    # Drafts are always compared with no speculation.
    shown = cli("run", "-m", "sd", "-t", "mini-math", "--limit", "2", "--output", "s")
    assert "AR's" in shown.out and NO_BASELINE not in shown.out
    assert {row["method"] for row in rows(tmp_path / "s")} == {"autoregressive", "sd"}


def test_without_a_flag_everything_bundled_runs(cli, engine, monkeypatch, tmp_path):
    monkeypatch.setattr("specbench.experiment.planning.DEFAULT_LIMIT", 3)
    result = cli("run", code=0)
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("-run-mini")
    samples = rows(folder)
    assert {row["task"] for row in samples} == {
        *("mini-math", "mini-news", "mini-headline", "mini-code")
    }
    assert {"autoregressive", "sd", "lossy", "speccascade", "static"} <= {
        row["method"] for row in samples
    }
    assert len({(row["task"], row["sample_id"]) for row in samples}) == 4 * 3
    assert "is for testing" not in result.err


def linear(folder: Path, task: str, **recipe: float) -> None:
    make_head(folder, kind="linear", task=task, recipe=recipe)


def heads(folder: Path) -> list[tuple[str, str]]:
    return [(r["task"], r["head"]) for r in rows(folder) if r["method"] == "diversed"]


def test_the_default_head_is_found_and_named_in_one_line(cli, engine, tmp_path):
    pair = ("--target", "a/big", "--draft", "a/small")
    linear(tmp_path / "results/heads/big+small/mini-math", "mini-math", target_acceptance=0.85)
    result = cli("run", "-m", "diversed", "-t", "mini-math", *FAST, *pair, code=0)
    first = result.err.splitlines()[0]
    assert "heads: results/heads/big+small (linear, target acceptance 0.85" in first
    assert heads(tmp_path / "r") == [("mini-math", "results")] * 2
    linear(tmp_path / "h", "mini-news")
    line = ("run", "-m", "diversed", "-t", "mini-math,mini-news", "-n", "1", "-o", "s")
    notes = cli(*line, "--head", "h/").err.splitlines()[0]
    assert "h (linear, trained for mini-news) on mini-math; h (linear) on mini-news" in notes
    assert heads(tmp_path / "s") == [("mini-math", "h"), ("mini-news", "h")]


def test_several_heads_are_interleaved_in_one_run(cli, engine, tmp_path):
    for wish in (0.7, 0.9):
        linear(tmp_path / f"f/acceptance-{wish}/mini-math", "mini-math", target_acceptance=wish)
    line = ("sweep-weights", "--weights", "0,1", "-t", "mini-math", *FAST)
    result = cli(*line, "--head", "f", "--head", "bundled", code=0)
    names = ["f/acceptance-0.7", "f/acceptance-0.9", "bundled"]
    assert heads(tmp_path / "r") == [("mini-math", name) for name in names] * 2
    for label in ("diversed acceptance-0.7", "diversed acceptance-0.9", "diversed"):
        assert f"\n{label} " in result.out
        digest = (tmp_path / "r" / "summary.md").read_text()
        assert f"| {label} |" in digest.partition("At equal acceptance")[2]
    cells = json.loads((tmp_path / "r/config.json").read_text())["tasks"][0]["cells"]
    assert next(cell["head"] for cell in cells if cell["method"] == "diversed") == {
        **{"name": "f/acceptance-0.7", "path": "f/acceptance-0.7/mini-math", "kind": "linear"},
        **{"task": "mini-math", "target_acceptance": 0.7},
    }


def test_without_a_compiler_the_compiling_engine_is_refused(cli, engine, tmp_path, monkeypatch):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler()

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    result = cli("run", "-t", "mini-math", "-m", "sd", "--engine", "compile", *FAST, code=2)
    assert result.err.splitlines()[-1].startswith("error: --engine compile needs a C++ compiler")
    assert engine.loaded is None
    assert not (tmp_path / "r").exists()


def test_samples_that_fail_make_the_run_fail_after_its_table(cli, engine, tmp_path):
    engine.failing = {2: ValueError("broken")}
    result = cli("run", "-m", "sd", "-t", "mini-math", *FAST, code=1)
    assert "mini-math on mini" in result.out
    assert "1 of 4 samples failed, the first with: ValueError: broken" in result.err
    engine.failing = dict.fromkeys(range(20), ValueError("broken"))
    result = cli("run", "-m", "sd", "-t", "mini-math", "-n", "2", "-o", "s")
    assert (result.code, result.out) == (1, "results: s\n")
    assert not list((tmp_path / "s").glob("*.csv"))


@pytest.mark.parametrize(
    ("metric", "references", "quality"),
    [
        ("", [None], [""]),
        ("rouge2", ["so #### 7"], ["1.0"]),
        ("accuracy", ["#### 8", None], ["0.0", ""]),
    ],
)
def test_prompt_files_replace_tasks(cli, engine, tmp_path, metric, references, quality):
    lines = [{"prompt": f"{i}", "reference": each} for i, each in enumerate(references)]
    json_lines = [{name: value for name, value in line.items() if value} for line in lines]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in json_lines))
    options = ("--metric", metric) if metric == "accuracy" else ()
    result = cli("run", "--prompts", "mine.jsonl", *options, "-m", "sd", "--output", "r", code=0)
    samples = [row for row in rows(tmp_path / "r") if row["method"] == "sd"]
    assert [row["quality"] for row in samples] == quality
    assert {(row["task"], row["quality_metric"]) for row in samples} == {("mine", metric)}
    counted = "1 of 2 prompts of mine have no reference"
    assert (counted in result.err) == (len(references) == 2)


def test_chat_prompts_need_a_template(cli, engine, tmp_path):
    line = ("run", "-m", "sd", "-t", "mini-math", "-n", "1", "-o", "r", "--prompt-format")
    result = cli(*line, "chat", code=2)
    assert "no chat template: give --prompt-format plain" in result.err.splitlines()[-1]
    assert not (tmp_path / "r").exists()
    assert cli(*line, "plain").code == 0


def test_a_prompt_is_read_once_for_all_cells_and_once_more_to_warm_up(cli, monkeypatch, tmp_path):
    read: Counter[tuple[SlotCache, tuple[int, ...]]] = Counter()
    store = SlotCache.store

    def counted(cache, prompt, row, _, most_bytes):
        read[cache, tuple(prompt.tolist())] += 1
        store(cache, prompt, row, 1000.0, most_bytes)  # no machine needs so long by itself

    monkeypatch.setattr(SlotCache, "store", counted)
    methods = ("-m", "autoregressive,sd,lossy,static", "--draft-length", "1,3")
    options = ("-t", "mini-math", "-n", "6", "--batch-size", "3", "--max-new-tokens", "4")
    assert cli("run", *methods, *options, "--output", "r").code == 0
    assert len(rows(tmp_path / "r")) == 6 * 7
    # The three prompts of the first batch warm up both models.
    assert sorted(read.values()) == [1] * 6 + [2] * 6
    # Seven cells decode each prompt, six of them with a draft: each counts the time of its models,
    # which only the first cell spends.
    read_before: Counter[str] = Counter()
    for row in rows(tmp_path / "r"):
        read_before[row["sample_id"]] += int(float(row["prefill_seconds"]) // 1000)
    assert list(read_before.values()) == [7 + 6 - 2] * 6


def test_a_margin_says_how_many_prompts_it_needs_and_who_judges_it(cli):
    line = "run -m sd -t mini-math -n 2 --max-new-tokens 4 --device cpu --margin 2.5 -o out"
    done = cli(*line.split())
    needs = "a margin of 2.5 points needs 566 prompts if 2 % of the scores differ, 1,570 if 10 % do"
    assert done.code == 0 and f"note: {needs} and 4,082 if 30 % do; this run has 2 of " in done.err
    last = done.err.splitlines()[-1]
    assert last == "next: specbench compare out --against sd --margin 2.5"
    assert cli(*last.split()[2:]).code == 0
    planned = cli(*line.split(), "--dry-run", "--fresh")
    assert needs in planned.err and "next:" not in planned.err
    assert needs.split(" needs")[0] not in cli(*line.replace("--margin 2.5", "").split()).err


HEADLINE = ("-t", "mini-headline", "-n", "2", "--max-new-tokens", "12", "--no-progress")


@pytest.mark.usefixtures("report_without_figures")
def test_drafters_beside_each_other(cli, tmp_path):
    drafters = ("--drafter", "model,greedy,prompt-lookup")
    methods = "autoregressive,sd,static,typical"
    cli("run", "-m", methods, *drafters, *HEADLINE, "--output", "r", code=0)
    shown = cli("table", "r").out
    for label in ("sd", "sd greedy", "sd prompt-lookup", "static w=0.5 prompt-lookup"):
        assert label in shown
    compared = cli("compare", "r", "--at", "acceptance")
    assert compared.code == 0 and "typical ε=0.09 δ=0.3 prompt-lookup" in compared.out
    mixed = cli("plot", "pareto", "r")
    assert (mixed.code, mixed.err.count("\n")) == (2, 1)
    assert cli("plot", "pareto", "r", "--drafter", "prompt-lookup").code == 0
    assert Path("r/figures/pareto-prompt-lookup.svg").is_file()
    assert cli("report", "r", "--output", "r.html").code == 0


def test_a_target_without_a_draft_model(cli):
    how = ("--target", get_pair("mini").target, *HEADLINE, "-n", "1")
    result = cli("run", *how, "--drafter", "prompt-lookup", "--output", "r", code=0)
    assert "note: diversed is skipped with prompt-lookup" in result.err
    records = list(read_records(Path("r")))
    assert {record.drafter for record in records} == {None, "prompt-lookup"}
    for arguments in (("-m", "diversed"), ("--drafter", "model")):
        refused = cli("run", "--drafter", "prompt-lookup", *how, *arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1), arguments


@pytest.mark.parametrize("copies", [False, True])  # with the draft model, and without it
def test_every_drafter_is_listed_run_priced_and_decided_on(copies, cli):
    names = [name for name in DRAFTERS if parse_kind(name).copies == copies]
    drafters = ("--drafter", ",".join(names))
    texts = ("-t", "mini-headline", "-n", "10", "--max-new-tokens", "8", "--no-progress")
    cli("run", "-m", "sd", *drafters, "--draft-length", "3", *texts, "--output", "r", code=0)
    pair = json.loads(Path("r/config.json").read_text())["pair"]
    assert pair["name"] == "mini" and ("draft" in pair) == (not copies)
    priced = cli("price", "r", *drafters, "--draft-length", "3", code=0)
    machine = ("--machine", "h100", "--batch-size", "1", "--draft-length", "2,3")
    decided = cli("decide", "r", *drafters, *machine, "--output", "d", code=0)
    listed, explained = cli("list", "drafters").out, cli("check", "--help").out
    for name in names:
        assert name in listed and name in explained
        assert f"sd, {name}, N = 3" in priced.out
        assert re.search(rf"\b{name}\b", decided.out)
