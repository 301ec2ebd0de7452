"""What a report tells of servers, and what it leaves out of a page that is sent."""

import base64
import gzip
import json
from html import unescape
from pathlib import Path
from random import Random

import pandas as pd
import pytest

from specbench.analysis.figures import style
from specbench.analysis.figures.latency import latency_tables
from specbench.analysis.report.answers import LARGEST, differing, pack
from specbench.analysis.report.build import Baseline, build, ends_tables
from specbench.analysis.results import Results
from specbench.analysis.tables.verdict_tables import margin_tables
from specbench.analysis.verdicts.margin import margin_rows
from specbench.analysis.written import write_tables
from specbench.runs.frames import Selection
from specbench.runs.model import SampleRecord
from specbench.tasks.example import Example

from ...cli.made import configure
from ...synthetic import sample_record, samples, write_records

ARMS = {"plain": 1.0, "fast": 0.5}
TEXTS = {"plain": "#### 7", "fast": "no"}


def answers() -> list[SampleRecord]:
    """Two arms that answer alike but to the last of 20 prompts."""
    return [
        sample_record(
            **{"key": f"{arm} {n}", "place": [0, 0, n, i], "method": arm, "draft_length": 0},
            **{"sample_id": f"p{n}", "quality_metric": "accuracy", "drafter": None},
            **{
                "quality": float(arm == "plain" or n < 19),
                "text": TEXTS["plain" if n < 19 else arm],
            },
            **{"first_token_seconds": 0.01 * (n + 1) * slow, "inter_token_seconds": 0.001 * slow},
            **{"prefill_seconds": 0.25, "decode_seconds": slow, "latency_seconds": slow},
            **{"output_tokens": 20, "stopped_by": "eos", "finish_reason": "stop", "retries": 0},
            **{"token_ids": [], "per_round": {}, "category": None, "turn": None},
            **{"status": "ok", "scores": {"accuracy": 1.0}, "settings": "concurrency=1"},
        )
        for i, (arm, slow) in enumerate(ARMS.items())
        for n in range(20)
    ]


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A run of two servers whose configuration names folders of a machine."""
    folder = write_records(tmp_path / "home" / "secret" / "run", [])
    (folder / "samples.jsonl").write_bytes(b"".join(record.line() for record in answers()))
    servers = [{"name": arm, "model": arm, "prompts": "chat"} for arm in ARMS]
    pair = {"name": "m", "target": "/home/secret/models/big.gguf"}
    configure(folder, lambda config: config.update(servers=servers, pair=pair))
    command = "specbench run --server plain=http://host:8000/v1 -o /home/secret/run"
    (folder / "environment.json").write_text(json.dumps({"command": command.split()}))
    write_tables(folder)
    return folder


def test_a_page_of_servers_opens_with_the_answer_of_compare_and_names_no_folder(served):
    page = build([served], baseline=Baseline("plain", 2.0)).html
    judged = margin_rows(Results([served]).decodes, "plain", 2.0)
    (table,) = margin_tables(judged)
    first = page.split('id="figures"')[0]
    assert table.title in first and "In sentences" in first
    assert all(sentence in unescape(first) for sentence in judged["sentence"].dropna())
    assert "/home" not in page and "secret" not in page
    assert "big.gguf" in page and "plain=http://host:8000/v1" in page
    assert "to the first token" in page and "Ends of answers" in page
    of_fast = build([served], Selection(methods=["fast"])).html
    ends = of_fast.partition("Ends of answers")[2].partition("</table>")[0]
    assert "fast" in ends and "plain" not in ends
    progress = {"state": "interrupted", "samples": 1}
    configure(served, lambda config: config.update(progress=progress))
    unanswered = build([served])
    assert "run is incomplete: interrupted" in unanswered.html and "secret" not in unanswered.html
    assert any("add --against METHOD --margin POINTS" in note for note in unanswered.notes)
    assert "dashed line" not in unanswered.html


def test_latencies_are_quantiles_of_all_answers(served):
    (table,) = latency_tables(frame := Results([served]).samples)
    headings = [column.heading for column in table.columns]
    assert headings[:3] == ["arm", "answers", "to the first token\np50"]
    assert table.rows[0][:5] == ["plain concurrency=1", "20", "105", "181", "198"]
    assert table.rows[1][2] == "52.5"
    (named,) = latency_tables(pd.concat([frame.assign(run_id=name) for name in "ab"]))
    assert [row[0] for row in named.rows][::2] == [f"plain concurrency=1 ({name})" for name in "ab"]
    assert [*latency_tables(samples({}))] == []
    at_once = frame["first_token_seconds"].mask(frame["method"] == "fast")  # a proxy held it back
    (whole,) = latency_tables(frame.assign(first_token_seconds=at_once))
    assert whole.rows[1][:3] == ["fast concurrency=1", "20", ""] and whole.rows[1][-1] == "500"


def test_ends_and_failures_are_shares_of_an_arm():
    failed = sample_record(method="plain", settings="concurrency=1", status="error", error="no")
    (table,) = ends_tables([*answers(), *[failed] * 20])
    assert table.rows == [
        ["plain concurrency=1", "50 %", "50 %"],
        ["fast concurrency=1", "100 %", "0 %"],
    ]


def test_a_page_has_all_prompts_whose_score_or_text_differs():
    examples = {"mini-math": {"p19": Example("p19", "Why?")}}
    (prompt,) = differing(answers(), examples)  # all others have equal answers
    assert (prompt["sample"], prompt["prompt"]) == ("p19", "Why?")
    assert prompt["texts"] == ["#### 7", "no"]
    plain, fast = prompt["answers"].values()
    assert plain == [1.0, "accuracy 100.0, ended by stop", 0] and fast[::2] == [0.0, 1]
    unlike = [r.filled(text="other", quality=1.0) if r.sample_id == "p3" else r for r in answers()]
    assert [each["sample"] for each in differing(unlike, {})] == ["p19"]
    unlike[3] = unlike[3].filled(text="#### 7 so")
    assert [each["sample"] for each in differing(unlike, {})] == ["p19", "p3"]


def test_500_prompts_of_long_answers_fit_a_page_and_what_does_not_is_counted(monkeypatch):
    words = Random(0).choices([f"word{n}" for n in range(2000)], k=100_000)
    starts = range(0, len(words), 200)
    prompts = [{"texts": [" ".join(words[at : at + k]) for k in (100, 200)]} for at in starts]
    whole = pack(prompts)
    assert whole[1:] == (500, 500) and len(whole.packed) <= LARGEST
    most = len(whole.packed) // 4
    monkeypatch.setattr("specbench.analysis.report.answers.LARGEST", most)
    cut = pack(prompts)
    assert cut.number == 500 and 100 < cut.kept < 125 and len(cut.packed) <= most
    assert len(json.loads(gzip.decompress(base64.b64decode(cut.packed)))) == cut.kept


def test_arms_of_a_figure_have_looks_of_their_own():
    arms = [f"arm-{number}" for number in range(7)]
    before = style._arms.set(arms)
    try:
        assert len({style.look(arm).colour for arm in arms}) == len(arms)
    finally:
        style._arms.reset(before)
