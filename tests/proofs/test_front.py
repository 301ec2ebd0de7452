"""Bytes and front gaps of a run of the bundled pair."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.theory import BIAS, COLUMNS, GAP, theory_tables
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.sampling import Sampling
from specbench.errors import UsageError
from specbench.experiment.measurements import measurements
from specbench.experiment.prompts import encode_prompt
from specbench.heads.bind import bind
from specbench.proofs import front
from specbench.proofs.front import front_gaps
from specbench.runs.records import EXAMPLES, write_examples
from specbench.runs.run import Run, read_run
from specbench.tasks.task import load_task

from ..synthetic import RECORD, write_records

TASK = "mini-headline"
CELLS: list[dict[str, Any]] = [
    {"method": "static", "weight": 0.5},
    {"method": "static", "weight": 1.0},
    {"method": "speccascade", "rule": "token-v3", "alpha": 0.5},
]
# Samples both models at a lower temperature: SD against another target.
COOLED = {"method": "cooled", "settings": "both_temperature=0.5 cooled_weight=1"}


@pytest.fixture
def run(mini: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Two texts of each cell."""
    monkeypatch.setattr(front, "load_pair", lambda *_: mini)
    task = load_task(TASK)
    examples = task.examples("test", 2, 0)
    records = []
    for example in examples:
        ids = encode_prompt(mini.tokenizer, example, task.prompt_format).ids
        for cell in CELLS:
            parameters = {name: value for name, value in cell.items() if name != "method"}
            rule = bind(cell["method"], parameters, mini).rule
            text = decode(mini, rule, Request(ids, example.id), DecodeOptions(Sampling(), 3, 12))
            own = {"task": TASK, "draft_length": 3, "sample_id": example.id, "repeat": 0, **cell}
            records.append({**RECORD, **measurements(text, drafts=True), **own})
    write_records(tmp_path, records)
    write_examples(tmp_path, {TASK: examples})
    change(tmp_path, tasks=[{"name": TASK, "prompt_format": task.prompt_format}])
    return read_run(tmp_path)


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_front_gaps_of_texts(run: Run) -> None:
    table = front_gaps(run, texts=2)
    assert tuple(table.columns) == COLUMNS
    assert set(table["n"]) == {2}
    found = table.set_index(["metric", "method", "weight"]).sort_index()
    gaps, biases = found.loc[GAP, "measured"], found.loc[BIAS, "measured"]
    assert gaps["static"].tolist() == pytest.approx([0, 0], abs=1e-9)
    assert found.loc[GAP, "predicted"]["static"].tolist() == [0, 0]
    assert biases["static"][0.5] > 0.01
    assert biases["static"][1.0] == pytest.approx(0, abs=1e-9)
    assert gaps["speccascade"].item() > 1e-3
    assert found.loc[GAP, "predicted"]["speccascade"].isna().all()
    assert set(front_gaps(run, texts=1)["n"]) == {1}
    (table,) = theory_tables(table)
    assert [row[0] for row in table.rows] == [
        *("static w=0.5", "static w=1", "speccascade token-v3 α=0.5")
    ]
    assert [column.group for column in table.columns[2:]] == ["bias %", *["front gap %"] * 2]


def test_the_bias_is_against_the_runs_own_target(run: Run, caplog: Any) -> None:
    """A cooled target, and the same samples with p of the run: only the first is biased."""
    records = [*run.records(())]
    own = [r for r in records if r["weight"] == 1.0]
    cooled = [r | {"weight": None, **COOLED} for r in own]
    looked_up = [r | {"drafter": "prompt-lookup"} for r in own]
    write_records(run.folder, [*own, *cooled, *looked_up])
    change(run.folder, tasks=list(run.tasks.values()))
    table = front_gaps(read_run(run.folder), texts=2)
    bias = table[table["metric"] == BIAS].set_index("method")["measured"]
    assert bias["static"] == pytest.approx(0, abs=1e-9)
    assert bias["cooled"] > 0.01
    assert len(bias) == 2 and "prompt-lookup" in caplog.text


def test_a_prompt_that_was_cut_is_cut_to_the_same_length(run: Run) -> None:
    task, (sample, example) = TASK, next(iter(run.examples[TASK].items()))
    whole = f"{example.prompt} {'More words. ' * 20}"
    write_examples(run.folder, {task: [replace(example, prompt=whole, passage=whole)]})
    (record, *_) = (each for each in run.records(()) if each["sample_id"] == sample)
    write_records(run.folder, [record | {"prompt_cut": True}])
    change(run.folder, tasks=list(run.tasks.values()))
    assert len(front_gaps(read_run(run.folder), texts=1)) == 2
    write_records(run.folder, [record])
    change(run.folder, tasks=list(run.tasks.values()))
    with pytest.raises(UsageError, match="tokens now and had"):
        front_gaps(read_run(run.folder), texts=1)


def test_a_changed_prompt_and_a_greedy_run_are_refused(run: Run) -> None:
    path = run.folder / EXAMPLES
    path.write_text(path.read_text().replace('"prompt": "', '"prompt": "More words. '))
    with pytest.raises(UsageError, match="tokens now and had"):
        front_gaps(run, texts=1)
    change(run.folder, settings={"temperature": 0.0})
    with pytest.raises(UsageError, match="is greedy"):
        front_gaps(read_run(run.folder), texts=1)
