"""The comparison with published measurements: rows, the last line, and what is not predicted."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from measure import public_measurements
from measure.public_measurements import Setting, line, setting_of

from specbench.pricing import bounds
from specbench.pricing.bounds import Kind

from ..told import DATA

# Published by tomasruizt/vllm-scripts, manojarulmurugan/SpecDecoding-Study-vLLM-SGLang and
# sudoingX/qwen38-mtp.
ROWS = (DATA / "pricing/rows.csv").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["public_measurements.py", *arguments])
    public_measurements.main()


def test_rows_are_predicted_and_the_others_named(file, monkeypatch, capsys):
    run(monkeypatch, str(file), "--worst", "2", "--figure", str(file.with_suffix(".png")))
    lines = capsys.readouterr().out.splitlines()
    *_, before, last = lines
    assert "not computed: 3 rows: model Nobody-7B (2); machine RTX 9999 (1)" in lines
    assert before.startswith("3 people, each once: inside 100.0 %")
    match = re.fullmatch(
        r"n 4 of 7 told, median (\S+) %, ninth decile (\S+) %, sign (\S+) %, inside the printed "
        r"bound 100\.0 %",
        last,
    )
    assert match and float(match[1]) < 6 and float(match[2]) < 15 and float(match[3]) == 100
    assert file.with_suffix(".png").stat().st_size


def test_small_gains_that_were_none_are_counted():
    rows = [("a", 1.1, 0.9), ("a", 1.2, 1.3), ("b", 1.05, 0.8), ("b", 1.4, 0.7), ("b", 0.9, 0.8)]
    told = pd.DataFrame(rows, columns=["person", "predicted", "speedup"])
    sentence = "3 rows computed at 1 to 1.3: 2 were below 1 (a 1 of 2, b 1 of 1)"
    assert public_measurements.small_gains(told) == sentence
    assert public_measurements.small_gains(told[3:]) == "no row is computed at 1 to 1.3"


@pytest.mark.parametrize("left", ["person", "gpu"])
def test_what_is_left_out_is_predicted_by_the_others(file, left, monkeypatch, capsys, tmp_path):
    for module in (public_measurements, bounds):
        for name in ("ERRORS_FILE", "LENGTHS_FILE"):
            monkeypatch.setattr(module, name, tmp_path / f"{name}.csv")
    bounds.errors.cache_clear()
    try:
        run(monkeypatch, str(file), "--leave-out", left, "--write")
        assert re.search(r"\nn 4 of 7 told, median \S+ %", capsys.readouterr().out)
        assert set(bounds.errors()["person"]) == {"t", "m", "s"}
        kind = Kind("vLLM", "dense", 16, 16, "NVIDIA", "eagle3")
        assert bounds.bound(kind).people == 2 and bounds.bound(kind, "t").people == 1
        assert len(bounds.usual_lengths("eagle3")) == 3
    finally:
        bounds.errors.cache_clear()


def test_rows_without_a_number_are_counted_apart(file, monkeypatch, capsys):
    with file.open("a") as rows:
        rows.write("x,MLX,M3 Ultra,1,Qwen3-8B,4bit,,,block,x,15,c,100,256,0,1,7.0,10,3,3.0\n")
        rows.write("y,vLLM,H100,1,Qwen3-30B-A3B,bf16,,,eagle3,x,3,c,100,256,0,1,2.0,10,9,1.1\n")
    run(monkeypatch, str(file))
    out = capsys.readouterr().out
    assert "no number is told: 2 rows: MLX on Apple, dense (1); vLLM on NVIDIA, experts (1)" in out
    assert out.splitlines()[-1].startswith("n 4 of 9 told, ")


def test_people_are_owners_or_threads_and_the_last_lines_by_hand():
    for source, person in (
        ("tomasruizt/vllm-scripts", "tomasruizt"),
        ("ggml-org/llama.cpp#5877 (oxfighterjet)", "ggml-org/llama.cpp#5877 (oxfighterjet)"),
        ("huggingface Ichigec/a1", "Ichigec"),
    ):
        assert public_measurements.person_of(source) == person
    sweep = {"source": "s", "gpu": "g", "target": "t", "draft": "d", "weights": "w", "kv": "k"}
    rows = [
        {**sweep, "workload": "x", "batch": 1, "draft_length": n, "speedup": m, "predicted": p}
        for n, m, p in [(1, 1.2, 1.3), (2, 1.5, 1.4), (3, 1.2, 1.6)]
    ]
    text = public_measurements.cost_of_choice(pd.DataFrame(rows))
    assert text.startswith("the chosen N loses 20.0 % in the median")
    assert text.endswith("in 1 sweeps")
    measured = np.array([2.0, 0.5, 1.04, 1.5])
    predicted = np.array([2.2, 0.45, 0.9, 0.9])
    assert line(measured, predicted, np.array([1, 1, 1, 0]), 9) == (
        "n 4 of 9 told, median 11.7 %, ninth decile 32.0 %, sign 66.7 %, "
        "inside the printed bound 75.0 %"
    )


@pytest.mark.parametrize(
    ("change", "bits", "gpus"),
    [
        ({}, 16, 1),
        ({"weights": "w4a16", "target": "Qwen3-32B-AWQ"}, 4.25, 1),
        ({"weights": None, "target": "Qwen3-32B-FP8"}, 8, 1),
        ({"weights_gb": 17.5}, 8 * 17.5e9 / 32.76e9, 1),
        ({"gpu": "2x H100 80GB"}, 16, 2),
        ({"gpus": 4, "kv": "fp8"}, 16, 4),
    ],
)
def test_rows_say_what_they_were_measured_with(file, change, bits, gpus):
    row = pd.read_csv(file).astype(object).iloc[0].copy()
    for name, value in change.items():
        row[name] = value
    setting = setting_of(row)
    assert isinstance(setting, Setting)
    assert setting.target.precision.layers == pytest.approx(bits, rel=1e-3)
    assert setting.target.precision.cache == (8 if "kv" in change else 16)
    assert setting.server.gpus == gpus


@pytest.mark.parametrize("column", ["engine", "drafter", "gpu", "target"])
def test_what_is_unknown_is_named(file, column):
    row = pd.read_csv(file).astype(object).iloc[0].copy()
    row[column] = "unheard"
    assert "unheard" in str(setting_of(row))


def test_blank_cells_are_filled_or_named(file):
    row = pd.read_csv(file).astype(object).iloc[0].copy()
    for column in ("gpus", "batch", "prompt_tokens", "new_tokens", "weights", "kv"):
        row[column] = float("nan")
    assert isinstance(setting_of(row), Setting)
    row["kv"] = "turbo3"
    assert isinstance(setting_of(row), Setting)
    row["accepted_length"] = float("nan")
    assert setting_of(row) == "accepted length nan"


def test_a_draft_model_has_its_own_precision(file):
    row = pd.read_csv(file).astype(object).iloc[1].copy()
    row["weights"] = "awq"
    drafts = {"Qwen/Qwen3-1.7B": 16, "Qwen3-0.6B-FP8": 8, "Qwen3-0.6B-Q4_0.gguf": 4.9}
    for name, bits in drafts.items():
        row["draft"] = name
        setting = setting_of(row)
        assert isinstance(setting, Setting) and setting.drafting.model
        assert setting.drafting.model.precision.layers == bits
    row["draft"] = "Nobody-1B"
    assert setting_of(row) == "draft model Nobody-1B"
