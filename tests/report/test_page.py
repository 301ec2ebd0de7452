"""One file with everything in it, whatever the texts of a run hold."""

import json
import math
import shlex
import shutil
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from specbench.report import traces as report_traces
from specbench.report.build import build
from specbench.report.cells import read_cells
from specbench.report.tables import summary_tables

from .conftest import METHODS, TASKS, Ask

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"wrong.push(1)\">&amp;"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)

    def data(self) -> Any:
        start = self.text.index('{"', self.text.index("Run it again"))
        return json.JSONDecoder().raw_decode(self.text, start)[0]


@pytest.fixture(scope="module")
def evil(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run whose every text tries to get out of its place."""
    from specbench.trace.tokenizer import run_decoder

    folder = tmp_path_factory.mktemp("evil") / "small"
    shutil.copytree(finished, folder)
    decode = run_decoder(folder)
    ids = [i for c in EVIL for i in range(3, 300) if decode([i]) == c]
    assert decode(ids) == EVIL
    lines = []
    for line in (folder / "samples.jsonl").read_text().splitlines():
        record = json.loads(line)
        record |= {"token_ids": ids, "sample_id": EVIL + record["sample_id"], "head": EVIL}
        rounds = {"proposed": 0, "accepted": 0, "emitted": 1, "rejected": ids[0]}
        rounds |= {"agreed": [], "expected": [], "weights": []}
        record["per_round"] = {name: [value] * len(ids) for name, value in rounds.items()}
        lines.append(json.dumps(record))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
    examples = (folder / "examples.jsonl").read_text().splitlines()
    changed = [
        json.loads(line) | {"id": EVIL + json.loads(line)["id"], "prompt": EVIL, "reference": EVIL}
        for line in examples
    ]
    (folder / "examples.jsonl").write_text("".join(json.dumps(e) + "\n" for e in changed))
    summary = (
        (folder / "summary.csv").read_text().replace("bundled", '"' + EVIL.replace('"', '""') + '"')
    )
    (folder / "summary.csv").write_text(summary)
    config = json.loads((folder / "config.json").read_text()) | {"notes": [EVIL]}
    (folder / "config.json").write_text(json.dumps(config))
    return build([folder]).html


def test_texts_stay_texts(finished: Path, evil: str) -> None:
    plain, attacked = Elements(build([finished]).html), Elements(evil)
    assert attacked.count("script") == plain.count("script")
    assert attacked.count("img") == 0
    assert attacked.text.count("document.title='owned'") > 3
    labels = [point["label"] for point in attacked.data()["panels"][0]["points"]]
    assert labels[-1] == "diversed " + EVIL.rpartition("/")[2]  # a head is named by its path's end


def test_texts_stay_texts_in_a_browser(ask: Ask, evil: str) -> None:
    title, wrong, prompt, traced = ask(
        evil,
        """const text = document.querySelector(".told .text").cloneNode(true);
        text.querySelectorAll("del").forEach(rejected => rejected.remove());
        return [document.title, wrong, document.querySelector("details .text").textContent,
          text.textContent];""",
    )
    assert title == "specbench: small"
    assert wrong == []
    assert prompt == traced == EVIL


def test_nothing_comes_from_elsewhere(finished: Path) -> None:
    page = Elements(build([finished]).html)
    linked = [
        value for _, attrs in page.found for name, value in attrs.items() if name in ("src", "href")
    ]
    assert all(value and value.startswith(("#", "data:")) for value in linked)
    assert not any(tag in ("iframe", "object", "embed", "base") for tag, _ in page.found)
    (policy,) = (a["content"] for _, a in page.found if "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'")


def test_it_holds_what_a_reader_needs(finished: Path) -> None:
    page = Elements(build([finished]).html)
    assert page.count("article") == len(TASKS) * len(METHODS) * 5  # texts of the first prompts
    assert f"{TASKS[0]} on mini, T = 1, 10 prompts" in page.text
    command = json.loads((finished / "environment.json").read_text())["command"]
    assert f"\n{shlex.join(command)}\n" in page.text.replace("\n\n", "\n")
    assert f"specbench report {finished}" in page.text
    assert "packages, torch" in page.text


def test_a_figure_has_the_decimals_of_its_interval() -> None:
    seconds = {"": 0.09, "_low": 0.0879, "_high": 0.1}
    cell = {"task": "q", "quality_metric": None, "label": "sd", "run_id": "r", "draft_length": 5}
    cell |= {"pair": "mini", "temperature": 1.0, "engine": "eager", "batch_size": 1, "n": 9}
    figures = {f"seconds_per_sample{end}": value for end, value in seconds.items()}
    (table,) = summary_tables([defaultdict(lambda: math.nan, cell | figures)], [])
    assert table.columns[-1] == ("time / sample", "s")
    assert table.rows[0][-1][:2] == ("0.0900", "0.0879 to 0.100")


def test_the_same_run_gives_the_same_page(finished: Path) -> None:
    assert build([finished]).html == build([finished]).html


def test_traces_are_bounded(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_traces, "PROMPTS", 2)
    cells, _ = read_cells([finished])
    whole = report_traces.collect_traces([finished], cells)
    assert [(told.task, told.sample) for told in whole.prompts] == [
        (TASKS[0], "test-0"),
        (TASKS[1], "test-0"),
        (TASKS[0], "test-1"),
        (TASKS[1], "test-1"),
    ]
    assert whole.notes == []
    size = sum(len(article) for told in whole.prompts[:2] for _, article in told.traces)
    monkeypatch.setattr(report_traces, "LARGEST", size)
    cut = report_traces.collect_traces([finished], cells)
    assert cut.prompts == whole.prompts[:2]
    assert "`specbench trace` shows them" in cut.notes[0]


def test_a_run_without_traces_is_reported_all_the_same(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(finished, folder)
    (folder / "environment.json").unlink()
    for lost, said in (
        ("examples.jsonl", "holds no examples.jsonl"),
        ("samples.jsonl", "without its samples.jsonl"),
    ):
        (folder / lost).unlink()
        report = build([folder])
        assert said in report.notes[0]
        assert said in report.html
        assert Elements(report.html).count("article") == 0


def test_a_run_that_is_not_whole_says_so(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(finished, folder)
    config = json.loads((folder / "config.json").read_text())
    config["progress"]["state"] = "interrupted"
    (folder / "config.json").write_text(json.dumps(config))
    report = build([folder])
    assert report.notes == ["small is not a whole run: interrupted, 80 of 80 samples"]
    assert report.notes[0] in Elements(report.html).text
