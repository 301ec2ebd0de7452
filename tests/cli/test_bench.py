"""``specbench bench`` with the bundled pair, and its usage errors."""

import io
import json
from pathlib import Path

import pandas as pd
import pytest

from specbench.errors import UsageError
from specbench.experiment import bench_runner
from specbench.pricing.costs import read_costs

SMALL = ("--prompt-tokens", "8", "--new-tokens", "12", "--repeats", "2", "--device", "cpu")
RUN = [".lock", "config.json", "environment.json", "examples.jsonl", "samples.csv", "samples.jsonl"]
TABLES = ["summary.csv", "summary.md", *RUN]


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch) -> None:
    monkeypatch.setattr(bench_runner, "copy_bandwidth", lambda device, size: 1e10)


def systems(cli) -> pd.DataFrame:
    table = pd.read_csv(io.StringIO(cli("table", "out", "--format", "csv", code=0).out))
    return table[table["ratio"].isna()] if "ratio" in table else table


def test_tables_and_ratios_of_all_systems(cli):
    result = cli(
        "bench", *SMALL, "-m", "autoregressive,sd,diversed", "--acceptance", "0.3,1",
        "--batch-size", "1,2", "-o", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(TABLES)
    table, samples = systems(cli), pd.read_csv("out/samples.csv")
    again = cli("table", "out", code=0)
    assert result.out == f"{again.out}results: out\n"
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
    cli("bench", *SMALL, "-m", "sd", "--no-progress", code=0)
    (folder,) = Path("results").iterdir()
    assert folder.name.endswith("-bench-mini")
    tables = json.loads(cli("table", "--json", code=0).out)  # of the newest run
    assert [row["engine"] for row in tables["systems"]] == ["eager"]
    assert tables["ratios"] == []


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
    assert "is incomplete: interrupted, 2 of 4 samples" in cli("table", "out", code=2).err
    before = Path("out/samples.jsonl").read_bytes()
    other = cli("bench", *SMALL, "-m", "sd", "--refill", "1", "-o", "out")
    assert other.code == 2 and "systems is 2 there but 1 here" in other.err
    result = cli(*command, "-o", "out")
    assert result.code == 0 and "2 of 4 samples are done" in result.err
    assert Path("out/samples.jsonl").read_bytes().startswith(before)
    facts = json.loads(Path("out/environment.json").read_text())
    assert facts["fused_layers"] == [False, False]  # of both models, on a CPU
    environment = Path("out/environment.json").rename("moved")
    assert "out has no whole environment.json" in cli("table", "out", code=2).err
    environment.rename("out/environment.json")
    table = systems(cli)
    assert table["repeats"].tolist() == [2, 2]
    assert (table["limit_share"] > 0).all()
    samples = pd.read_csv("out/samples.csv").set_index(["block", "draft_length"])
    costs, seconds = read_costs(Path("out")), samples["decode_seconds"] / samples["shared_rounds"]
    for repeat, of_batches in enumerate(costs.rounds):
        expected = [seconds[repeat, n] for n in (0, 5)]
        assert of_batches.tolist() == [pytest.approx(expected)]
    for reader in ("verify", "compare", "report", "trace", "table -m sd", "table --paper"):
        assert "is a benchmark, of times alone" in cli(*reader.split(), "out", code=2).err
    cli("run", "-m", "autoregressive,sd", "-t", "mini-math", "-n", "1", "-o", "runs/one", code=0)
    Path("out").rename("runs/times")
    for reader in ("compare", "report", "table"):  # of a folder of runs, the others
        done = cli(reader, "runs", code=0)
        assert "runs/times is a benchmark, of times alone: it is left out" in done.err
    Path("runs/times").rename("out")
    with pytest.raises(UsageError, match="has times of `eager`: name one"):
        read_costs(Path("out"), "graph")


@pytest.mark.gpu
def test_every_method_on_a_gpu_with_both_engines(cli):
    options = (*SMALL[:6], "--device", "cuda", "--engine", "eager,graph", "--acceptance", "0.5,1")
    cli("bench", *options, "--batch-size", "1,4", "-o", "out", code=0)
    table = systems(cli)
    assert (table.query("forced_acceptance == 1")["position_acceptance"] == 1).all()
    assert set(table["engine"]) == {"eager", "graph"}
