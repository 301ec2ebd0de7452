"""A rule and a metric of the user's own: the page's file and commands, and an edited file."""

import json
import re
import shlex
from pathlib import Path

import pytest

from ..synthetic import records
from ..told import DATA

PAGE = Path(__file__).parents[2] / "specbench" / "docs" / "python.md"
SMALL = ["-n", "4", "--max-new-tokens", "12", "--device", "cpu", "--no-progress"]
RULE = "my_rules.py:geometric"
SHIPPED = PAGE.with_name("my_rules.py")


def blocks(kind: str) -> list[str]:
    """Return the page's code blocks after the heading of own rules."""
    text = PAGE.read_text(encoding="utf-8").split("## A rule of your own")[1]
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def files(cli) -> None:
    for name, content in zip(("my_rules.py", "my_metrics.py"), blocks("python"), strict=True):
        Path(name).write_text(content)


def test_the_file_to_copy_is_the_one_on_the_page():
    assert blocks("python")[0] == SHIPPED.read_text(encoding="utf-8")


@pytest.mark.usefixtures("files", "report_without_figures")
def test_the_page_leads_from_nothing_to_a_figure(cli):
    """Its commands in order, with fewer samples; finished runs are read without the files."""
    lines = re.sub(r"\\\n", " ", "".join(blocks("sh"))).splitlines()
    assert len(lines) == 6
    for line in lines:
        _, command, *rest = shlex.split(line, comments=True)
        fewest = [*SMALL, "-n", "2", "--max-new-tokens", "4"]
        sizes = {"run": fewest, "sweep-weights": fewest}
        if command == "check":
            continue
        if command in ("plot", "compare"):
            Path("my_rules.py").rename("away")
        cli(command, *rest, *sizes.get(command, []), code=0)
        if Path("away").exists():
            Path("away").rename("my_rules.py")
    run = Path("results/geometric")
    assert (run / "figures" / "pareto.svg").exists()
    points = (run / "figures" / "pareto.csv").read_text().splitlines()
    assert sum(f",{RULE}," in line and line.startswith("point,acceptance") for line in points) == 4
    names = (run / "samples.csv").read_text().splitlines()[0].split(",")
    assert names[-1] == "length_ratio"
    assert ",length_ratio,0." in (run / "summary.csv").read_text()

    Path("my_rules.py").unlink()
    traced = "trace --sample test-0 -m 'geometric share=0.2'"
    for line in ("table", "report", "table --format csv", traced):
        command, *rest = shlex.split(line)
        cli(command, str(run), *rest, code=0)
    table = cli("table", str(run), "-m", "geometric").out
    assert table.count("geometric share=") == 4 and "my_rules" not in table
    assert "geometric share=" in cli("compare", str(run), "-m", "geometric", code=0).out


@pytest.mark.usefixtures("files")
def test_values_stand_behind_a_rule_of_a_file(cli):
    names = f"{RULE}:share=0.2,sd,static:weight=0.5"
    cli("run", "-m", names, "-t", "mini-math", "--output", "run", *SMALL, "-n", "1", code=0)
    values = {r["method"]: (r.get("settings"), r.get("weight")) for r in records(Path("run"))}
    assert values == {
        **{"autoregressive": (None, None), RULE: ("share=0.2", None)},
        **{"sd": (None, None), "static": (None, 0.5)},
    }


def test_a_metric_that_is_edited_while_it_scores_ends_the_run(cli):
    edits = "if text != reference:\n        open('m.py', 'a').write('#')"
    Path("m.py").write_text(f"def f(text, reference):\n    {edits}\n    return 0.5\n")
    Path("q.jsonl").write_text('{"prompt": "1 + 1?", "reference": "2"}\n')
    line = ["run", "-m", "sd", "--prompts", "q.jsonl", "--metric", "m.py:f", "-o", "run", *SMALL]
    assert "m.py:f changed while the run went on: start it again" in cli(*line, code=2).err
    assert not Path("run/samples.jsonl").exists() or not records(Path("run"))


MISBEHAVING = (DATA / "own/misbehaving.txt").read_text(encoding="utf-8")


def test_a_file_that_misbehaves_after_its_trial_fails_its_samples(cli):
    Path("bad.py").write_text(MISBEHAVING)
    Path("prompts.jsonl").write_text('{"prompt": "Tom has 3 pens.", "reference": "3"}')
    selection = ["-m", "sd,bad.py:exits,bad.py:breaks", "--prompts", "prompts.jsonl"]
    small = ["--max-new-tokens", "24", "--device", "cpu", "--no-progress", "--output", "run"]
    result = cli("run", *selection, "--metric", "bad.py:ends", *small)
    assert result.code == 1 and "4 of 4 samples failed" in result.err
    assert "NaN" not in Path("run/samples.jsonl").read_text()
    errors = sorted(record["error"] for record in records(Path("run")))
    for error, start in zip(
        errors,
        (
            *["bad.py:ends on example prompts-1 failed (line 21: SystemExit: 3)"] * 2,
            "breaks (bad.py, line 15): `accept` of draft 1 is nan, not from 0 to 1, in round",
            "exits (bad.py, line 10) failed (line 12: SystemExit: 0)",
        ),
        strict=True,
    ):
        assert error.startswith(start), error


@pytest.mark.usefixtures("files")
def test_prompts_are_scored_by_an_own_metric(cli):
    rows = [{"prompt": f"{n} + 1 =", "reference": f"{n + 1}"} for n in range(3)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ["run", "-m", "sd", "--prompts", "q.jsonl", "--output", "out", *SMALL]
    assert cli(*run, "--metric", "my_metrics.py:length_ratio").code == 0
    record = records(Path("out"))[0]
    assert record["quality_metric"] == "length_ratio" and 0 < record["quality"] < 1
    with Path("my_metrics.py").open("a") as file:
        file.write("# edited\n")
    cli("score", "out", "--metric", "my_metrics.py:length_ratio", code=0)
    again = cli(*run, "--metric", "my_metrics.py:length_ratio", code=0)
    assert "my_metrics.py changed: 6 samples are decoded again" in " ".join(again.err.split())
    Path("my_metrics.py").unlink()
    assert "length_ratio" in cli("table", "out").out
    rescored = cli("score", "out")
    assert rescored.code == 0 and "length_ratio of q keeps its scores" in rescored.err
    again = records(Path("out"))[0]
    assert (again["scores"], again["quality"]) == (record["scores"], record["quality"])
