"""The report is one self-contained file, whatever the texts of a run contain."""

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.figures import pareto
from specbench.analysis.report import pages
from specbench.analysis.report.build import build, report_cells
from specbench.analysis.report.figures import draws_of, figures
from specbench.analysis.results import ROUND_COLUMNS, Results
from specbench.analysis.statistics.estimates import ABOVE
from specbench.analysis.statistics.positions import CONDITIONAL
from specbench.analysis.tables.html import TEMPLATES
from specbench.analysis.tables.table import to_text
from specbench.analysis.tables.verdict_tables import comparison_tables, verdict_tables
from specbench.analysis.trace import run_decoder
from specbench.analysis.verdicts.compare import compare, verdict_rows, verdicts
from specbench.analysis.verdicts.contrasts import FRONT
from specbench.runs.frames import CELL
from specbench.runs.records import latest_records
from specbench.runs.run import read_run

from ...cli.made import configure, lines
from ...synthetic import samples
from ..figures.made import from_samples, sample
from .conftest import METHODS, TASKS

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"wrong.push(1)\">&amp;"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def tooltips(self) -> list[str]:
        return [attrs["data-tooltip"] or "" for _, attrs in self.tags if "data-tooltip" in attrs]


@pytest.fixture(scope="module")
def cells(finished) -> pd.DataFrame:
    return report_cells(Results([finished]))


@pytest.fixture(scope="module")
def evil(finished, tmp_path_factory) -> str:
    """The report of a run in which every text is an injection attempt."""
    folder = tmp_path_factory.mktemp("evil") / "small"
    shutil.copytree(finished, folder)
    decode = run_decoder(read_run(folder))
    ids = [i for c in EVIL for i in range(3, 300) if decode([i]) == c]
    assert decode(ids) == EVIL
    rounds = {"proposed": 0, "accepted": 0, "emitted": 1, "rejected": ids[0]}
    rounds |= {"agreed": [], "expected": [], "weights": []}
    per_round = {name: [value] * len(ids) for name, value in rounds.items()}
    spoilt = {"token_ids": ids, "head": EVIL, "per_round": per_round}
    asked = {"prompt": EVIL, "reference": EVIL}
    for file, name, more in (("samples", "sample_id", spoilt), ("examples", "id", asked)):
        spoil = lambda row, name=name, more=more: row | more | {name: EVIL + row[name]}  # noqa: E731
        lines(folder / f"{file}.jsonl", lambda rows, spoil=spoil: [*map(spoil, rows)])
    summary, quoted = (folder / "summary.csv").read_text(), EVIL.replace('"', '""')
    (folder / "summary.csv").write_text(summary.replace("bundled", f'"{quoted}"'))
    configure(folder, lambda config: config.update(notes=[EVIL]))
    return build([folder]).html


def test_injected_markup_stays_text(page, evil):
    plain, attacked = Elements(page), Elements(evil)
    assert attacked.count("script") == plain.count("script") == 2  # one is data
    assert attacked.count("img") == 0
    assert attacked.text.count("document.title='owned'") > 3
    # A head is named by the last part of its path.
    assert any(f"diversed {EVIL.rpartition('/')[2]}; " in text for text in attacked.tooltips())


def test_injected_markup_stays_text_in_a_browser(ask, evil):
    title, wrong, prompt, traced = ask(
        evil,
        """const text = document.querySelector(".trace .text").cloneNode(true);
        text.querySelectorAll("del").forEach(rejected => rejected.remove());
        return [document.title, wrong, document.querySelector("details .text").textContent,
          text.textContent];""",
    )
    assert title == "specbench: mini-math, mini-headline with the pair mini"
    assert wrong == []
    assert prompt == traced == EVIL


def test_the_page_loads_nothing_external(page):
    elements = Elements(page)
    links = [(name, value) for _, attrs in elements.tags for name, value in attrs.items()]
    linked = [value for name, value in links if name in ("src", "href", "xlink:href")]
    assert all(value and value.startswith(("#", "data:")) for value in linked)
    assert not any(tag in ("iframe", "object", "embed", "base") for tag, _ in elements.tags)
    (policy,) = (a["content"] for _, a in elements.tags if "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'")


def test_the_report_contains_what_a_reader_needs(finished, page):
    elements = Elements(page)
    assert elements.count("article") == len(TASKS) * len(METHODS) * 5  # of the first prompts
    assert elements.count("svg") == 3
    assert f"{TASKS[0]} on mini, T = 1, n = 10" in elements.text
    command = json.loads((finished / "environment.json").read_text())["command"]
    assert f"\n{shlex.join(command)}\n" in elements.text.replace("\n\n", "\n")
    assert f"specbench report {finished.name}" in elements.text
    assert str(finished.parent) not in page
    assert "packages, torch" in elements.text
    assert build([finished]).html == page  # deterministic


def test_points_have_tooltips_with_their_values(page, cells):
    tooltips = Elements(page).tooltips()
    sd = cells[(cells["task"] == TASKS[0]) & (cells["method"] == "sd")].iloc[0]
    of_sd = [t for t in tooltips if t.startswith(f"sd; accuracy {100 * sd['quality']:.1f}")]
    assert len(of_sd) >= 4  # three costs, acceptance
    assert f"accepted / drafted {100 * sd['draft_acceptance_rate']:.1f} % [" in of_sd[0]
    by_position = [text for text in tooltips if "; draft " in text]
    drafting = int((cells["draft_length"] > 0).sum())
    assert len(set(by_position)) == len(by_position) == drafting * 2 * 5  # kinds, positions
    assert any(text.startswith("sd; draft 3, conditional; accepted ") for text in by_position)
    assert len({*tooltips} - {*by_position}) == len(cells)


def test_draft_lengths_and_batch_sizes_have_their_own_blocks(cells):
    here = cells[(cells["task"] == TASKS[0]) & cells["method"].isin(["autoregressive", "sd"])]
    other = here[here["method"] == "sd"].assign(draft_length=7, label="other")
    there = cells[(cells["task"] != TASKS[0]) & (cells["method"] == "autoregressive")]
    blocks = list(figures(pd.concat([here, other, there], ignore_index=True), pd.DataFrame()))
    assert [setting for setting, _ in blocks] == ["mini, T = 1, N = 5", "mini, T = 1, N = 7"]
    for (_, drawn), absent in zip(blocks, ("other;", "sd;"), strict=True):
        assert not any(absent in svg for _, svg in drawn)
        assert dict(drawn)["Quality vs. cost"].count("autoregressive;") == 2  # time and speed
    for alone in ("autoregressive", "sd"):
        ((_, drawn),) = figures(here[here["method"] == alone], pd.DataFrame())
        assert [title for title, _ in drawn] == ["Quality vs. cost"]


def test_the_page_begins_with_the_question_and_its_answer(page, finished):
    tags = [tag for tag, _ in Elements(page).tags]
    figures, tables = ([at for at, tag in enumerate(tags) if tag == of] for of in ("svg", "table"))
    assert tables[0] < figures[0] < tables[len(TASKS)]
    heading, after = page.split("<h1>")[1].split("</h1>")
    assert heading == "mini-math, mini-headline with the pair mini"
    top = after.split("<nav")[0]
    assert "The dashed line is the randomised static front" in after
    assert "Pair mini: target " in top and "T = 1; N = 5; n = 10 prompts" in top
    results = Results([finished], by_folder=True)
    answers = list(verdict_tables(results.comparison))
    shown = re.findall("<caption>(.*?)</caption>", after.split('id="figures"')[0])
    assert shown == [table.title for table in answers] and len(shown) == len(TASKS)


def test_traces_are_bounded(finished, cells, monkeypatch):
    monkeypatch.setattr(pages, "PROMPTS", 2)
    records = latest_records(finished, ROUND_COLUMNS)
    run = pages.open_run(read_run(finished), pages.reported(records, cells))
    whole = pages.collect_traces([run])
    expected = [(task, sample) for sample in ("test-0", "test-1") for task in TASKS]
    assert [(each.task, each.sample) for each in whole.prompts] == expected
    assert whole.notes == []
    page = "".join(article for each in whole.prompts for _, article in each.traces)
    rounds = [record.per_round for records in run.samples.values() for record in records]
    agreed = [flags for each in rounds for flags in each.agreed or ()]
    assert page.count("<mark") == sum(flags.count(False) for flags in agreed) > 0
    weights = [(w, t) for each in rounds for w, t in zip(each.weights, each.rejected, strict=True)]
    assert page.count("style=--w:") == sum(len(w) + (t is not None) for w, t in weights if w) > 0
    size = sum(len(article) for each in whole.prompts[:2] for _, article in each.traces)
    monkeypatch.setattr(pages, "LARGEST", size)
    cut = pages.collect_traces([run])
    assert cut.prompts == whole.prompts[:2]
    assert "`specbench trace`" in cut.notes[0]


def test_a_run_without_traces_or_end_is_still_reported(finished, tmp_path, monkeypatch):
    drawn: list[pd.DataFrame] = []
    module = "specbench.analysis.report.build.figures"
    monkeypatch.setattr(module, lambda cells, positions, samples: drawn.append(positions) or [])
    monkeypatch.chdir(tmp_path)  # folders are shown relative to it
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    configure(folder, lambda config: config["progress"].update(state="interrupted"))
    (folder / "environment.json").unlink()
    for name in ("examples.jsonl", "samples.jsonl"):
        (folder / name).unlink()
        report = build([folder])
        assert "interrupted, 80 of 80" in report.notes[0]
        assert name in report.notes[1]
        elements = Elements(report.html)
        assert all(note in elements.text for note in report.notes)
        assert elements.count("article") == 0
    assert [positions.empty for positions in drawn] == [False, True]  # records are gone at last
    assert [note for note in report.notes if "by position of run: " in note]


def test_text_has_contrast_on_light_and_dark_backgrounds():
    def luminance(colour):
        shares = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return sum(a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    for half in (TEMPLATES / "style.css").read_text().split("@media", 1):
        colours = {n: luminance(c) for n, c in re.findall(r"--(\w+): #([0-9a-f]{6})", half)}
        pairs = list(product(("ink", "soft", "link", "good", "bad"), ("paper", "raised")))
        for ink, paper in [*pairs, ("ink", "shade"), ("good", "shade"), ("bad", "shade")]:
            darker, lighter = sorted((colours[ink], colours[paper]))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, paper)


# Accepted and proposed drafts, and the share of right answers.
POINTS: dict[tuple[str, float | None], tuple[int, int, float]] = {
    ("sd", None): (60, 200, 0.9),
    ("static", 0.5): (60, 150, 0.75),
    ("static", 0.0): (50, 50, 0.1),
    ("diversed", None): (75, 150, 0.8),
}


@pytest.fixture
def altered() -> pd.DataFrame:
    """A run whose acceptance mixes far from a straight line, since the draft has few rounds."""
    rows: list[dict[str, Any]] = [
        sample(
            *(method, number),
            **{"weight": weight, "head": "bundled" if method == "diversed" else None},
            **{"accepted": float(accepted), "proposed": proposed, "repetition": 0.0},
            **{"draft_acceptance_rate": accepted / proposed},
            **{"quality": float((number + 0.5) / 20 < right)},
        )
        for (method, weight), (accepted, proposed, right) in POINTS.items()
        for number in range(20)
    ]
    return samples(*rows)


def test_report_figure_table_and_sentence_have_one_front(altered):
    rows = compare(altered, ["acceptance"]).rows
    placed = rows[(rows["metric"] == ABOVE) & (rows["against"] == FRONT)]
    front, lead = 100 * placed["reference"].item(), 100 * placed["value"].item()
    assert front + lead == pytest.approx(100 * placed["quality"].item())
    # Between static at w = 0.5 and the draft, with the draft for a share s of the prompts, so that
    # (60 - 10 s) / (150 - 100 s) = 0.5; straight segments would be at 64.2.
    share = (75 - 60) / (50 - 10)
    of_all = 100 * (0.75 - 0.65 * share)
    assert front == pytest.approx(of_all, abs=1)  # halves of the prompts choose it
    results = from_samples(altered)
    drawn = pareto.draw(results, ("acceptance",))
    reported = draws_of(results.cells, altered)["Quality vs. cost"]()
    for drawing in (drawn, reported):
        line = drawing.data.query("mark == 'front' and against == 'acceptance'").sort_values("x")
        assert np.interp(50, line["x"], line["quality"]) == pytest.approx(of_all, abs=0.2)
    (placed_table,) = comparison_tables(rows, ["acceptance"])
    assert ["50.0", "80.0", f"{front:.1f}"] == placed_table.rows[0][3:6]
    (table,) = verdict_tables(rows)
    assert f"coarse {lead:+.1f} [" in to_text(table, width=130)
    (sentence,) = verdicts(verdict_rows(altered))["sentence"]
    assert f" {80 - front:.1f} [" in sentence and "above the randomised static front" in sentence


def test_points_of_many_settings_and_of_means_of_seeds_have_their_own_tooltips():
    """Of more than four settings of a method four have their acceptance drawn by position."""
    rows = [
        sample(method, number, draft_length=length, weight=weight, head=head, repetition=0.0)
        for method, weight, head in (
            ("sd", None, None),
            *(("static", weight / 10, None) for weight in range(6)),
            *(("diversed", None, f"h/seed-{seed}") for seed in range(2)),
        )
        for length in (3, 5)
        for number in range(12)
    ]
    results = from_samples(samples(*rows))
    cells = results.cells.assign(setting="mini")
    rates = cells[list(CELL)].assign(kind=CONDITIONAL, position=1, rounds=9)
    rates["value"] = rates["ci_low"] = rates["ci_high"] = np.arange(len(rates)) / 100
    *_, (_, of_setting) = figures(cells, rates, results.samples)
    drawn = dict(of_setting)
    assert "seed-0; accuracy" in drawn["Quality vs. cost"]  # a mean has no tooltip of a cell
    told = re.findall(
        'data-tooltip="([^;]+); .*?accepted ([0-9.]+) %', drawn["Acceptance by position"]
    )
    by_label = dict(zip(cells["label"], 100 * rates["value"], strict=True))  # of N = 5, the later
    assert len(told) == 1 + 4 + 2
    assert all(float(rate) == pytest.approx(by_label[label]) for label, rate in told)


def test_without_samples_the_report_draws_no_front(altered):
    drawing = draws_of(from_samples(altered).cells, None)["Quality vs. cost"]()
    assert set(drawing.data["mark"]) == {"point"}
