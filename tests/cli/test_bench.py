"""``specbench bench`` with the bundled pair, and its usage errors."""

import json
from pathlib import Path

import pandas as pd
import pytest

from specbench.errors import UsageError
from specbench.experiment import bench_runner
from specbench.pricing.costs import read_costs

SMALL = ("--prompt-tokens", "8", "--new-tokens", "12", "--repeats", "2", "--device", "cpu")
RUN = [".lock", "config.json", "environment.json", "examples.jsonl", "samples.csv", "samples.jsonl"]
TABLES = ["bench.csv", "ratios.csv", "summary.csv", "summary.md", *RUN]


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch) -> None:
    """Use a fixed bandwidth."""
    monkeypatch.setattr(bench_runner, "copy_bandwidth", lambda device, size: 1e10)


def test_tables_and_ratios_of_all_systems(cli):
    result = cli(
        "bench", *SMALL, "-m", "autoregressive,sd,diversed", "--acceptance", "0.3,1",
        "--batch-size", "1,2", "-o", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(TABLES)
    table, samples = pd.read_csv("out/bench.csv"), pd.read_csv("out/samples.csv")
    assert len(table) == 2 * (1 + 4)
    texts = samples.groupby("batch_size").size()  # of two repeats of two texts per row
    assert texts.to_dict() == {1: 4 * (1 + 4), 2: 8 * (1 + 4)}
    assert (samples["output_tokens"] == 12).all()
    assert (table.query("forced_acceptance == 1")["position_acceptance"] == 1).all()
    assert table["position_acceptance"].isna().sum() == 2
    assert (table["tokens_per_second"] > 0).all()
    environment = json.loads(Path("out/environment.json").read_text())
    assert environment["models"]["dtype"] == "float32"
    tasks = json.loads(Path("out/config.json").read_text())["tasks"]
    assert [task["batch_size"] for task in tasks] == [1, 2]
    assert result.out.startswith("mini in float32 on cpu: prompts of 8 tokens")
    titles = [line for line in result.out.splitlines() if line.startswith("batch ")]
    assert titles == ["batch 1", "batch 2"]
    assert result.out.splitlines()[-1] == "results: out"


def test_bench_in_its_default_folder(cli):
    result = cli("bench", *SMALL, "-m", "sd", "--json", code=0)
    tables = json.loads(result.out)
    assert [row["engine"] for row in tables["systems"]] == ["eager"]
    assert tables["ratios"] == []
    (folder,) = Path("results").iterdir()
    assert folder.name.endswith("-bench-mini")
    assert set(pd.read_csv(folder / "bench.csv")["engine"]) == {"eager"}
    assert "ratio of" not in result.out


def test_an_interrupted_benchmark_is_resumed_and_others_are_refused(cli, monkeypatch):
    decode = bench_runner.BenchRunner.run

    def interrupted(runner, steps):
        if steps[0].place[2] > 0:
            raise KeyboardInterrupt
        return decode(runner, steps)

    command = ("bench", *SMALL, "-m", "autoregressive,sd", "--refill", "1")
    with monkeypatch.context() as patched:
        patched.setattr(bench_runner.BenchRunner, "run", interrupted)
        result = cli(*command, "-o", "out")
    assert result.code == 130 and "2 of 4 samples are in out" in result.err
    assert not Path("out/bench.csv").exists()
    before = Path("out/samples.jsonl").read_bytes()
    other = cli("bench", *SMALL, "-m", "sd", "--refill", "1", "-o", "out")
    assert other.code == 2 and "systems is 2 there but 1 here" in other.err
    result = cli(*command, "-o", "out")
    assert result.code == 0 and "2 of 4 samples are done" in result.err
    assert Path("out/samples.jsonl").read_bytes().startswith(before)
    table = pd.read_csv("out/bench.csv")
    assert table["repeats"].tolist() == [2, 2]
    assert (table["limit_share"] > 0).all()
    samples = pd.read_csv("out/samples.csv").set_index(["block", "draft_length"])
    costs, seconds = read_costs(Path("out")), samples["decode_seconds"] / samples["shared_rounds"]
    for repeat, of_batches in enumerate(costs.rounds):
        expected = [seconds[repeat, n] for n in (0, 5)]
        assert of_batches.tolist() == [pytest.approx(expected)]
    for reader in ("verify", "compare", "table", "report", "trace"):
        assert "is a benchmark, of times alone" in cli(reader, "out", code=2).err
    with pytest.raises(UsageError, match="has times of `eager`: name one"):
        read_costs(Path("out"), "graph")


@pytest.mark.gpu
def test_every_method_on_a_gpu_with_both_engines(cli):
    options = (*SMALL[:6], "--device", "cuda", "--engine", "eager,graph", "--acceptance", "0.5,1")
    cli("bench", *options, "--batch-size", "1,4", "-o", "out", code=0)
    table = pd.read_csv("out/bench.csv")
    assert (table.query("forced_acceptance == 1")["position_acceptance"] == 1).all()
    assert set(table["engine"]) == {"eager", "graph"}
