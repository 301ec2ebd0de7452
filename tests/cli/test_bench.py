"""``specbench bench`` with the bundled pair, and its usage errors."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.engine.loading import load_pair
from specbench.experiment.bench import measure
from specbench.experiment.bench.decoders import Timing

from .conftest import Cli

SMALL = ("--prompt-tokens", "8", "--new-tokens", "12", "--repeats", "2", "--device", "cpu")
TABLES = ["bench.csv", "environment.json", "ratios.csv", "repeats.csv"]
KINDS = ("csv", "pdf", "png", "svg")
FIGURES = [f"{name}.{kind}" for name in ("rounds", "time-per-token") for kind in KINDS]


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch, mini: Any) -> None:
    """Use the loaded pair and a fixed bandwidth."""
    monkeypatch.setattr(measure, "load_pair", lambda spec, loading: mini)
    monkeypatch.setattr(measure, "copy_bandwidth", lambda device, size: 1e10)


def test_tables_figures_and_ratios_of_all_systems(cli: Cli) -> None:
    result = cli(
        "bench", *SMALL, "-m", "autoregressive,sd,diversed", "--acceptance", "0.3,1",
        "--batch-size", "1,2", "-o", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(TABLES + FIGURES)
    table, repeats = pd.read_csv("out/bench.csv"), pd.read_csv("out/repeats.csv")
    assert len(table) == (1 + 4 + 1 + 2) + (1 + 4 + 1)
    assert len(repeats) == 2 * len(table)
    eager = repeats.query("engine == 'eager'")
    assert (eager["output_tokens"] == 12 * eager["batch_size"]).all()
    full = table.query("forced_acceptance == 1")
    assert (full["position_acceptance"] == 1).all()
    assert table["position_acceptance"].isna().sum() == 4
    assert (table["tokens_per_second"] > 0).all()
    environment = json.loads(Path("out/environment.json").read_text())
    assert environment["models"]["dtype"] == "float32"
    assert environment["bench"]["batch_size"] == [1, 2]
    assert result.out.startswith("mini in float32 on cpu: prompts of 8 tokens")
    titles = [line for line in result.out.splitlines() if line.startswith("batch ")]
    assert titles == ["batch 1", "batch 2"]
    assert result.out.splitlines()[-1] == "results: out"
    assert "supports only batch 1" in result.err


def test_bench_without_transformers_in_its_default_folder(cli: Cli) -> None:
    result = cli("bench", *SMALL, "-m", "sd", "--no-transformers", "--json")
    assert result.code == 0, result.err
    tables = json.loads(result.out)
    assert [row["engine"] for row in tables["systems"]] == ["eager"]
    assert tables["ratios"] == []
    (folder,) = Path("results").iterdir()
    assert folder.name.endswith("-bench-mini")
    assert set(pd.read_csv(folder / "bench.csv")["engine"]) == {"eager"}
    assert "ratio of" not in result.out


def test_an_interrupted_benchmark_leaves_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure", interrupt)
    result = cli("bench", *SMALL, "-m", "sd", "-o", "out")
    assert result.code == 130
    assert "nothing was written" in result.err
    assert not list(Path().iterdir())


def test_an_interrupted_benchmark_keeps_the_repeats_before(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def decoders_of(*_: Any) -> tuple[Any, list[Any]]:
        def decode(prompts: Any, limit: int, key: str) -> Timing:
            decoded.append(key)
            if key == "1":
                raise KeyboardInterrupt
            return Timing(12, 3, 3, 15, 12, 9, 0.5, 1.0)

        return decode, []

    monkeypatch.setattr(measure, "measure", partial(measure.measure, make_decoders=decoders_of))
    result = cli("bench", *SMALL, "-m", "autoregressive,sd", "--no-transformers", "-o", "out")
    assert result.code == 130 and "out keeps what was written" in result.err
    assert decoded == ["warm-up", "warm-up", "0", "0", "1"]
    assert [path.name for path in Path("out").iterdir()] == ["repeats.csv"]
    repeats = pd.read_csv("out/repeats.csv")
    assert repeats["method"].tolist() == ["autoregressive", "sd"]
    assert repeats["output_tokens"].tolist() == [12, 12]


@pytest.mark.gpu
def test_every_method_on_a_gpu_with_both_engines(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "load_pair", load_pair)
    options = (*SMALL[:6], "--device", "cuda", "--engine", "eager,graph", "--acceptance", "0.5,1")
    result = cli("bench", *options, "--batch-size", "1,4", "-o", "out")
    assert result.code == 0, result.err
    table = pd.read_csv("out/bench.csv")
    full = table.query("forced_acceptance == 1")
    assert (full["position_acceptance"] == 1).all()
    assert set(table["engine"]) == {"eager", "graph", "transformers"}
