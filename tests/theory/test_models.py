"""Bytes and front gaps of a run of the bundled pair."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specbench.decoding.loop import decode
from specbench.decoding.sampling import Sampling
from specbench.engine.prompts import encode
from specbench.errors import UsageError
from specbench.experiment.examples import EXAMPLES, write_examples
from specbench.experiment.measurements import measurements
from specbench.methods.rules import static
from specbench.methods.speccascade import speccascade
from specbench.pairs.registry import get_pair
from specbench.tasks.task import load_task
from specbench.theory import models
from specbench.theory.models import bytes_ratio, front_gaps
from specbench.theory.table import BIAS, COLUMNS, GAP

from .runs import CELL

TASK = "mini-headline"


@pytest.fixture
def run(mini: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two texts of static at two weights and of SpecCascade."""
    monkeypatch.setattr(models, "load_pair", lambda *_: mini)
    cascade = {"rule": "token-v3", "alpha": 0.5}
    cells: list[tuple[dict[str, Any], Any]] = [
        ({"method": "static", "weight": 0.5}, partial(static, weight=0.5)),
        ({"method": "static", "weight": 1.0}, partial(static, weight=1.0)),
        ({"method": "speccascade", **cascade}, partial(speccascade, **cascade)),
    ]
    examples = load_task(TASK).examples("test", 2, 0)
    records = []
    for example in examples:
        ids = encode(mini.tokenizer, example.prompt).ids
        for cell, verify in cells:
            how: dict[str, Any] = {"draft_length": 3, "max_new_tokens": 12, "seed": 0}
            text = decode(mini, verify, ids, sampling=Sampling(), sample_key=example.id, **how)
            own = {"task": TASK, "draft_length": 3, "sample_id": example.id, "repeat": 0, **cell}
            records.append({**CELL, **measurements(text), **own})
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    write_examples(tmp_path, {TASK: examples})
    spec = get_pair("mini")
    config = {
        "pair": {"name": "mini", "target": spec.target, "draft": spec.draft},
        "loading": {"device": "cpu", "an_option_of_old": 1},
        "settings": dict.fromkeys(("top_k", "top_p", "max_prompt_tokens", "prompt_format"))
        | {"temperature": 1.0},
        "tasks": [{"name": TASK, "prompt_format": "chat"}],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_front_gaps_of_texts(run: Path) -> None:
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


def test_prompts_must_be_those_of_the_run(run: Path) -> None:
    path = run / EXAMPLES
    path.write_text(path.read_text().replace('"prompt": "', '"prompt": "More words. '))
    with pytest.raises(UsageError, match="tokens now and had"):
        front_gaps(run, texts=1)


def test_greedy_runs_have_no_front(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["settings"]["temperature"] = 0.0
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="is greedy"):
        front_gaps(run, texts=1)


def test_bytes_of_the_bundled_pair(run: Path) -> None:
    spec = get_pair("mini")
    sizes = [(Path(m) / "model.safetensors").stat().st_size for m in (spec.draft, spec.target)]
    assert bytes_ratio(run) == pytest.approx(sizes[0] / sizes[1], rel=0.05)
