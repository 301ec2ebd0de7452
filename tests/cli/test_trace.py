"""``specbench trace`` on a run of the bundled pair."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.app import main

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two tasks, one prompt, three methods."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    line = "run -m autoregressive,sd,diversed -t mini-math,mini-news -n 1 --no-progress --device"
    with pytest.raises(SystemExit) as exit:
        main([*line.split(), "cpu", "--output", str(folder)])
    assert exit.value.code == 0
    return str(folder)


def record(run: str, method: str) -> Any:
    lines = (Path(run) / "samples.jsonl").read_text().splitlines()
    found = (json.loads(line) for line in lines)
    return next(r for r in found if (r["task"], r["method"]) == ("mini-math", method))


def plain(shown: str) -> str:
    """The text without what was rejected and without the marks."""
    kept = re.sub(r"\[-.*?-\]", "", shown).replace("↵", "")
    return re.sub(r"\{[~+]|[~+]\}", "", kept).replace("⟨end⟩", "")


@pytest.mark.parametrize("method", ["autoregressive", "sd", "diversed"])
def test_its_text_is_the_sample_s(cli: Cli, run: str, method: str) -> None:
    shown = cli("trace", run, "--sample", "test-0", "-t", "mini-math", "-m", method)
    assert shown.code == 0, shown.err
    head, body = shown.out.split("\n\n", 1)
    made = record(run, method)
    assert head.startswith(f"mini-math, test-0: {method}")
    assert plain(body) == made["text"] + "\n"
    rejected = sum(token is not None for token in made["per_round"]["rejected"])
    assert (body.count("[-"), body.count("{+")) == (rejected, rejected)
    assert f"{made['output_tokens']} tokens in {made['rounds']} rounds" in head


def test_several_are_told_in_one_line(cli: Cli, run: str) -> None:
    for options, said in (
        ((), "choose with --task from `mini-math`, `mini-news`"),
        (("-t", "mini-news"), "choose with --method from `autoregressive`, `sd`, `diversed`"),
    ):
        refused = cli("trace", run, "--sample", "test-0", *options)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == f"error: several samples match: {said}\n"


def test_a_page_of_it(cli: Cli, run: str) -> None:
    line = ("trace", run, "--sample", "test-0", "-t", "mini-math", "-m", "diversed")
    written = cli(*line, "--html", "trace.html")
    assert (written.code, written.out) == (0, "trace.html\n")
    page = Path("trace.html").read_text()
    made = record(run, "diversed")
    agreed = [a for of_round in made["per_round"]["agreed"] for a in of_round]
    # One of each is in the legend.
    assert len(re.findall("<mark[ >]", page)) == agreed.count(False) + 1
    assert page.count("style=--w:") == sum(
        len(w) + (t is not None)
        for w, t in zip(made["per_round"]["weights"], made["per_round"]["rejected"], strict=True)
    )
    missing = cli(*line, "--html", "nowhere/trace.html")
    assert missing.code == 2
    assert "cannot write nowhere/trace.html" in missing.err


def test_a_run_without_its_texts_is_a_run_all_the_same(cli: Cli, run: str, tmp_path: Path) -> None:
    shutil.copy(Path(run) / "samples.csv", tmp_path)
    for command in ("trace . --sample test-0", "theory ."):
        refused = cli(*command.split())
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert "is a run without its samples.jsonl" in refused.err


def test_a_damaged_record_is_refused(cli: Cli, run: str, tmp_path: Path) -> None:
    made = record(run, "sd")
    made["token_ids"].append(5)
    made["per_round"]["emitted"][0] += 7
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "samples.jsonl").write_text(json.dumps(made) + "\n")
    (tmp_path / "bad" / "config.json").write_text((Path(run) / "config.json").read_text())
    refused = cli("trace", "bad", "--sample", "test-0")
    assert refused.code == 2
    assert "do not add up to its tokens" in refused.err
