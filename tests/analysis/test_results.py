"""Finished runs as data frames: ``specbench.load``."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import specbench
from specbench.errors import UsageError
from specbench.files import stored
from specbench.runs import columns
from specbench.runs.columns import schema

from ..synthetic import RECORD

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
ROUNDS: dict[str, list[Any]] = {
    "proposed": [3, 3, 1],
    "accepted": [3, 1, 0],
    "emitted": [4, 2, 1],
    "expected": [[1.0, 0.5, 0.75], [0.25, 0.75], []],
    "weights": [[0.5, 0.5, 0.5], [0.5, 0.5], []],
    "rejected": [None, 17, 9],
    "agreed": [[True, False, True], [True], []],
}


def record(**changes: Any) -> dict[str, Any]:
    static = {"method": "static", "weight": 0.5, "draft_length": 3}
    return {**RECORD, **static, "token_ids": [], "per_round": ROUNDS, **changes}


def run_of(folder: Path, *records: dict[str, Any], packed: bool = False) -> Path:
    folder.mkdir()
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    if packed:
        (folder / "samples.jsonl.gz").write_bytes(gzip.compress(text))
    else:
        (folder / "samples.jsonl").write_bytes(text)
    return folder


def test_importing_the_package_is_cheap() -> None:
    code = "import specbench, sys; sys.exit(any(m in sys.modules for m in ('pandas', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_reference_run_as_frames() -> None:
    found = specbench.load(REFERENCE)
    (run,) = found.runs.to_dict("records")
    assert list(found.runs) == list(schema(columns.RUNS))
    assert (run["run_id"], run["pair"], run["state"]) == ("reference", "mini", "complete")
    assert (run["seed"], run["device"], run["dtype"]) == (1, "cpu", "float32")
    assert run["tasks"] == "mini-code mini-headline mini-math mini-news"
    assert run["command"].startswith(
        "specbench sweep-weights --method paper --weights 0,0.25,0.5,0.75,0.9,0.95,0.98 "
    )
    assert run["samples"] == len(found.samples) == 24_000
    assert len(run["commit"]) == 40
    assert run["dirty"] == "False"
    speedup = found.summary.query("task == 'mini-math' and method == 'sd' and metric == 'speedup'")
    wide = found.cells.query("task == 'mini-math' and method == 'sd'")
    assert wide["speedup"].item() == speedup["value"].item()
    assert found.samples is found.samples


def test_each_round_is_a_row_that_identifies_its_sample(tmp_path: Path) -> None:
    run_of(tmp_path / "run", record(), record(sample_id="b", weight=None, method="sd"))
    rounds = specbench.load(tmp_path / "run").rounds
    assert {name: rounds[name].dtype for name in ("round", "accepted", "rejected")} == {
        "round": "int64",
        "accepted": "int64",
        "rejected": "float64",
    }
    assert list(rounds) == list(schema(columns.ROUNDS))
    assert list(rounds["sample_id"]) == ["a"] * 3 + ["b"] * 3
    assert list(rounds["round"]) == [0, 1, 2] * 2
    first = rounds[rounds["sample_id"] == "a"]
    assert list(first["emitted"]) == [4, 2, 1]
    np.testing.assert_array_equal(first["expected_acceptance"], [0.75, 0.5, np.nan])
    np.testing.assert_array_equal(first["mean_weight"], [0.5, 0.5, np.nan])
    np.testing.assert_array_equal(first["rejected"], [np.nan, 17, 9])
    np.testing.assert_array_equal(first["agreed"], [2, 1, 0])
    assert rounds["weight"].isna().tolist() == [False] * 3 + [True] * 3


def test_rounds_of_packed_records_and_without_the_rejected_tokens(tmp_path: Path) -> None:
    kept = {name: ROUNDS[name] for name in ROUNDS if name not in ("rejected", "agreed")}
    run_of(tmp_path / "old", record(run_id="old", per_round=kept), packed=True)
    run_of(tmp_path / "new", record(run_id="new"))
    rounds = specbench.load([tmp_path]).rounds
    assert list(rounds["run_id"]) == ["new"] * 3 + ["old"] * 3
    assert rounds["agreed"].isna().tolist() == [False] * 3 + [True] * 3
    assert rounds["rejected"].isna().tolist() == [True, False, False] + [True] * 3


def test_only_the_last_attempt_of_a_sample_counts(tmp_path: Path) -> None:
    failed = {name: value for name, value in record().items() if name != "per_round"}
    short = {name: values[:1] for name, values in ROUNDS.items()}
    tried = [failed | {"status": "error"}, record(), record(per_round=short)]
    run_of(tmp_path / "run", *(each | {"key": "k"} for each in tried))
    assert len(specbench.load(tmp_path / "run").rounds) == 1


def test_rounds_add_up_to_samples() -> None:
    run = REFERENCE.with_name("reference-lengths")
    found = specbench.load(run)
    key = list(found.rounds)[: list(found.rounds).index("round")]
    summed = found.rounds.groupby(key, dropna=False)[["proposed", "accepted", "emitted"]].sum()
    both = found.samples.merge(summed, on=key, suffixes=("", "_summed"))
    assert len(both) == len(found.samples)
    assert (both["proposed"] == both["proposed_summed"]).all()
    drafted = both[both["proposed"] > 0]
    assert (drafted["accepted"] == drafted["accepted_summed"]).all()
    assert drafted["acceptance_length"].to_numpy() == pytest.approx(
        (drafted["emitted"] / drafted["rounds"]).to_numpy()
    )


def test_a_run_keeps_its_name_in_a_renamed_folder(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("samples.csv", "config.json"):
        shutil.copy(stored(REFERENCE / name), moved)
    (run,) = specbench.load(moved).runs.to_dict("records")
    assert run["run_id"] == "reference"
    assert Path(run["folder"]) == moved
    assert pd.isna(run["device"])


def test_missing_data_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder .*nowhere: give"):
        specbench.load([REFERENCE, tmp_path / "nowhere"])
    with pytest.raises(UsageError, match=r"holds no samples\.jsonl"):
        _ = specbench.load(tmp_path).rounds


def test_loaded_runs_draw_figures_and_display_themselves() -> None:
    found = specbench.load(REFERENCE)
    html = found._repr_html_()
    assert html.count("<table") == 2
    assert "mini-math" in html and "24000" in html and "static w=0.5" in html
    figure = found.plot("pareto", against=["acceptance"])
    assert len(figure.axes) == 4
    assert figure._repr_png_().startswith(b"\x89PNG")
    for name, style in (("training", "paper"), ("no", "paper"), ("pareto", "no")):
        with pytest.raises(UsageError):
            found.plot(name, style=style)
