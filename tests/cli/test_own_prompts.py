"""Prompts of one's own with the bundled pair: conversations, categories, agreement."""

import json
from collections import defaultdict
from html import unescape
from pathlib import Path
from statistics import fmean

import pytest

from specbench.runs.run import read_run

from ..synthetic import rows
from .conftest import Cli
from .made import edit_records

PENS = "Tom has {} pens and then buys 7 boxes of pens. How many?"
QUESTIONS = [
    *({"question_id": n, "category": "math", "turns": [PENS.format(n)]} for n in range(3, 6)),
    {"question_id": 81, "category": "talk", "turns": ["Ann has 5 apples.", "And 4 more?"]},
]
EXACT = "autoregressive,sd,static --set weight=0,1 --temperature 0 --draft-length 3"


@pytest.fixture
def questions(tmp_path) -> Path:
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return path


def run(cli: Cli, output: str, line: str) -> list[dict[str, str]]:
    shared = "--max-new-tokens 12 --device cpu --no-progress --output"
    line = f"{shared} {output} {line}"
    done = cli("run", "--prompts", "question.jsonl", *line.split(), code=0)
    assert "--metric" in line or "to add a front" not in done.err  # without a quality
    return rows(Path(output))


def test_ids_and_categories_may_look_like_numbers_or_blanks(cli, tmp_path):
    names = ("nan", "NA", "null", "None", "1.0", "1", "1e5", "-inf", "007", "true", "", "N/A")
    lines = [{"id": name, "category": name, "prompt": "Add 1 and 2."} for name in names]
    (tmp_path / "question.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recorded = run(cli, "r", "-m autoregressive --max-new-tokens 2")
    assert [row["sample_id"] for row in recorded] == [name or "question-11" for name in names]
    checked = cli("verify", "r", "--limit", "0")
    assert checked.code == 0 and "no difference found" in checked.out + checked.err
    assert "question/nan" in cli("table", "r", "--by", "category").out
    file = Path("r/samples.csv")
    file.write_text(file.read_text().replace(",1e5,", ",100000.0,"))
    assert cli("verify", "r", "--limit", "0").code == 1


def test_agreement_is_whole_for_exact_methods_and_less_for_the_draft_alone(cli, questions):
    """At temperature 0, on prompts and turns; the draft alone is the negative control."""
    scores = defaultdict(list)
    for row in run(cli, "r", f"--metric agreement -m {EXACT}"):
        scores[row["method"], row["weight"]].append(float(row["quality"]))
    assert all(len(qualities) == 5 for qualities in scores.values())
    draft = scores.pop(("static", "0.0"))
    assert len(scores) == 3 and all(qualities == [1.0] * 5 for qualities in scores.values())
    assert fmean(draft) < 0.8

    shown = cli("table", "r", "--by", "category,turn")
    for name in ("question/math", "question/talk/turn 1", "question/talk/turn 2"):
        assert name in shown.out
    of_a_part = cli("compare", "r", "--by", "category", "-t", "question/math", code=0)
    assert "question: tokens that the target would never emit" in of_a_part.err  # of the whole task
    one_turn = cli("table", "r", "--by", "turn", "-t", "question/turn 2", "--format", "csv", code=0)
    assert "question/turn 2" in one_turn.out
    drawn = cli("plot", "pareto", "r", "--by", "category", "--task", "question/math")
    assert drawn.code == 0 and "no static front" not in drawn.err
    assert "pareto-category-question-math.svg" in drawn.out
    traced = cli("trace", "r", "--sample", "81", "-m", "sd turn 2")
    assert traced.code == 0 and "turn 2" in traced.out
    assert cli("verify", "r", "-n", "1").code == 0


@pytest.mark.usefixtures("report_without_figures")
def test_without_a_quality_or_a_front_the_rest_is_compared_and_drawn(cli, questions):
    samples = run(cli, "r", "-m sd,typical --cut-prompts --max-prompt-tokens 16 --max-new-tokens 4")
    assert {row["quality"] for row in samples} == {""}
    assert max(int(row["prompt_tokens"]) for row in samples) == 16  # others were cut to it
    cli("verify", "r", "-n", "0", "--prompts", "question.jsonl", code=0)  # cut as the run was
    for command in (("table",), ("compare",), ("compare", "--at", "all")):
        assert cli(*command, "r").code == 0
    assert cli("report", "r", "--by", "turn", "-t", "question/turn 2").code == 0
    assert "--task 'question/turn 2'" in unescape(Path("r/report.html").read_text())
    assert cli("plot", "acceptance-time", "r").code == 0
    assert cli("plot", "pareto", "r").code == 2  # it needs a quality
    asked = run(cli, "s", "-m sd,typical --metric agreement --draft-length 3")
    assert {row["method"] for row in asked} == {"autoregressive", "sd", "typical"}
    drawn = cli("plot", "pareto", "s")
    assert drawn.code == 0 and "no static front on question" in drawn.err


def test_prompts_with_the_same_text_count_once(cli, tmp_path):
    texts = [{"id": n, "prompt": f"Add {n % 10} and 4.", "reference": "5"} for n in range(12)]
    (tmp_path / "twice.json").write_text(json.dumps(texts))
    line = "run --prompts twice.json -m sd,typical --max-new-tokens 2 --device cpu --output r"
    done = cli(*line.split(), "--no-progress", code=0)
    assert "to add a front" in done.err
    same = {row["sample_id"]: row["same_prompt_as"] for row in rows(Path("r"))}
    assert {name: first for name, first in same.items() if first} == {"10": "0", "11": "1"}
    shown = cli("compare", "r", "--json")
    for result in (done, shown):
        assert "twice: 2 examples repeat the prompt of another one" in result.err
    assert {row["n"] for row in json.loads(shown.out)["verdicts"]} == {10}
    edit_records(Path("r"), lambda records: [r.update(same_prompt_as="0") for r in records])
    assert {row["sample_id"]: row["same_prompt_as"] for row in rows(Path("r"))} == same
    assert all(
        r.same_prompt_as != "0" for r in read_run(Path("r")).records() if r.sample_id != "10"
    )
    assert cli("verify", "r", "-n", "0").code == 0


@pytest.mark.parametrize(
    ("columns", "metric"),
    [({"tests": ["assert add(1, 2) == 3"]}, "pass@1 to run"), ({}, "agreement to compare")],
)
def test_a_note_names_the_metric_of_rows_without_references(cli, columns, metric):
    Path("p.jsonl").write_text(json.dumps({"prompt": "Write add(a, b).", **columns}))
    done = cli("run", "--prompts", "p.jsonl", "-m", "autoregressive", "--dry-run", code=0)
    assert f"no references in p, so quality is not measured: add --metric {metric}" in done.err
