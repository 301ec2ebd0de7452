"""``specbench price`` and ``decide``: from texts and costs to sentences, flags and files."""

import io
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from specbench.experiment.loader import Loader

from ..synthetic import rows
from ..told import DATA
from .conftest import imported, load_once
from .made import strict

TEXTS = "-t mini-math -n 12 --max-new-tokens 12 --no-progress"


@pytest.fixture
def costs(tmp_path) -> Path:
    """Costs at which drafting pays for one text and never for eight."""
    path = tmp_path / "costs.csv"
    times = [(b, n, 1 + 0.1 * n if b == 1 else b * (1 + n)) for b in (1, 8) for n in (0, 1, 4)]
    columns = ["batch_size", "draft_length", "round_seconds"]
    pd.DataFrame(times, columns=columns).to_csv(path, index=False)
    return path


def test_without_rates_none_are_taken_as_exact(cli, costs):
    said = cli("decide", "--costs", str(costs), "--drafter", "mtp", "-o", "o", code=0)
    assert "taken as exact" not in said.out + said.err


def test_it_says_where_speculation_pays(cli, costs):
    line = f"decide {TEXTS} --costs {costs} --batch-size 1,8 --draft-length 1,2,4 --output run"
    line += " --top-k 50 --flags all"
    result = cli(*line.split(), code=0)
    assert result.out.startswith("Speculate at batch 1: ")
    assert re.search(r"^8 .*loses$", result.out, re.MULTILINE)
    assert "Leave it off at batch 8" in result.out.splitlines()[0]
    assert "--model-draft results/gguf/mini/draft-f32.gguf" in result.out
    assert "mini/draft-f32.gguf: python tasks/export_pair.py mini" in result.out
    assert "--speculative-num-steps" in result.out
    assert "--task mini-math" in result.out and "--top-k 50" in result.out
    assert "the costs were measured once" in result.err
    assert "prompt-lookup is priced as if every round had N drafts" in result.err
    assert "with N = 4 it copies " in result.err
    table = pd.read_csv("run/decision/decision.csv")
    assert len(table) == 2 * 3 * 3
    # Costs of 8 texts grow with every token, so a round takes as long as its tokens one by one.
    slow = table[(table["batch_size"] == 8) & (table["draft_length"] == 4)]
    assert slow["speedup"].to_numpy() == pytest.approx(slow["tokens_per_round"] / 5, rel=1e-5)
    (settings,) = re.findall(r"--speculative-config '(.*)'", result.out)
    assert json.loads(settings)["num_speculative_tokens_per_batch_size"][-1][-1] == 0
    for kind in ("svg", "csv"):
        assert Path(f"run/decision/crossover.{kind}").stat().st_size

    line = "decide run --machine h100 --batch-size 1,8 --json --output again"
    assert len(json.loads(cli(*line.split(), code=0).out)["settings"]) == 2 * 3 * 8


def test_acceptance_by_position_needs_no_models_and_a_loss_no_schedule(cli, costs, monkeypatch):
    line = f"decide --acceptance .3,.2 --costs {costs} --batch-size 8 --output o"
    result = cli(*line.split(), code=0)
    assert result.out.startswith("Leave it off at batch 8.\n")
    assert "--speculative" not in result.out
    monkeypatch.setattr("specbench.engine.loading.load_pair", None)
    line = f"decide --acceptance .9,.9,.8 --costs {costs} --batch-size 1,8 --drafter greedy"
    result = cli(*line.split(), "--output", "o", code=0)
    answer = "Speculate at batch 1 with greedy: N = 3; Leave it off at batch 8.\n2.58 times as fast"
    assert result.out.startswith(answer)
    assert "N = 3 is the largest that was priced, and the best at batch 1," in result.err
    line = "decide --acceptance .9,.9,.8 --machine h100 --pair llama -o o"
    result = cli(*line.split(), code=0)
    assert '"model": "meta-llama/Llama-3.2-1B-Instruct"' in result.out


PUBLISHED = "--target llama-3.3-70b --draft llama-3.2-1b --machine h100 --gpus 2"


def test_models_and_machines_that_are_not_here_are_answered_without_torch(cli, monkeypatch):
    """The whole command, offline: no weights, no configuration, no figure."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    line = f"decide {PUBLISHED} --accepted-length 3.4 --draft-length 4 -o o"
    assert not {"torch", "matplotlib"} & imported(line)
    result = cli(*line.split(), code=0)
    said, times, sure, *_ = lines = result.out.splitlines()
    assert said == "Speculate at batch 1 to 16 with model: N = 4."
    assert re.fullmatch(r"2\.\d\d \[.*\] times as fast with model at batch 1\.", times)
    assert re.match(r"Computed; 9 of 10 measurements .* are within a factor 1\.\d\d of it", sure)
    assert "meta-llama/Llama-3.2-1B-Instruct" in result.out
    assert len(lines) <= 17 and "SGLang" not in result.out


@pytest.mark.parametrize("serving", ["vllm", "llama.cpp", "mlx"])
def test_without_acceptance_it_says_from_which_one_it_pays(cli, serving):
    line = f"decide --target qwen3-32b --drafter eagle3,mtp --machine h100 --serving {serving}"
    result = cli(*line.split(), "-o", "o", code=0)
    pays = r"eagle3 pays from 1\.\d\d \[.*\] tokens per round \(N = \d, \d+ % accepted\) at batch 1"
    assert re.fullmatch(pays, result.out.splitlines()[0])
    assert "never" not in result.out and "InstructCoder, n = 96, tomasruizt" in result.out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--target qwen3.5-9b --machine m4-max", "llama-bench -m TARGET.gguf"),
        ("--target qwen3.5-9b --machine m4-max --serving mlx", "mlx_lm.benchmark --model Qwen/"),
        ("--target qwen3-30b-a3b --machine h100", "vllm bench serve --model Qwen/Qwen3-30B-A3B"),
        ("--target qwen3-8b --machine rx7900xtx --weights q4_k_m", "llama-bench"),
    ],
)
def test_where_no_number_transfers_the_lines_to_measure_are_printed(cli, options, line):
    more = " --drafter mtp --accept-rate .7@3 -o o"
    for given in (f"{options}{more}", f"{options} --drafter mtp -o o"):
        result = cli("decide", *given.split(), code=0)
        first, second, *_ = result.out.splitlines()
        assert first == "Not decided by computing: measure one minute"
        assert second.strip().startswith(line) or line in second
        assert "specbench decide --costs" in result.out and "pays from" in result.out
        assert "times as fast" not in result.out


def test_drafters_stand_side_by_side(cli):
    line = (
        "decide --target qwen3.8-27b --drafter mtp,eagle3,dflash --machine rtx5090 --weights "
        "q4_k_m --accepted-length mtp=2.9@3,eagle3=2.6@4,dflash=3.1@8 -o o"
    )
    result = cli(*line.split(), code=0)
    assert result.out.startswith("Speculate at batch 1")
    assert re.search(r"mtp +eagle3 +block", result.out)
    line = "decide --target qwen3-32b --drafter eagle3 --machine h200 --acceptance .8 -o q "
    line += "-t mini-math"
    assert "measure it at" not in cli(*line.split(), code=0).out  # by a module that is not here
    again = "decide --costs o/decision/costs-mtp.csv --drafter mtp --accepted-length 2.9@3 -o p"
    cli(*again.split(), code=0)
    first, second = (
        {(r["batch_size"], r["draft_length"]): float(r["break_even"]) for r in rows(Path(file))}
        for file in ("p/decision/decision.csv", "o/decision/decision.csv")
    )
    assert len(first) == 5 * 3 and set(first) <= set(second)
    assert max(map(len, result.out.splitlines())) < 130


def test_what_mlx_printed_are_costs(cli):
    rates = {1: 50.0, 2: 90.0, 4: 150.0}
    Path("t.txt").write_text(
        "".join(
            f"Running warmup..\nTiming with prompt_tokens=64, generation_tokens=64, batch_size={b}."
            f"\nTrial 1:  prompt_tps=9.0, generation_tps={rate:.3f}, peak_memory=1.0\n"
            f"Averages: prompt_tps=9.0, generation_tps={rate:.3f}, peak_memory=1.0\n"
            for b, rate in rates.items()
        )
    )
    Path("none.txt").write_text(Path("t.txt").read_text().replace("_tps=50.000", "_tps=0.000"))
    assert "cannot read none.txt" in cli("decide", "--costs", "none.txt", code=2).err
    line = "decide --costs t.txt --drafter mtp -o o"
    cli(*line.split(), "--acceptance", ".8", code=0)
    (row,) = [r for r in rows(Path("o/decision/decision.csv")) if r["draft_length"] == "3"]
    assert float(row["break_even"]) == pytest.approx((4 / 150) / (1 / 50), rel=1e-4)
    assert "pays from 1.33" in cli(*line.split()).out


RUN_BY_PEOPLE = (DATA / "pricing/run_by_people.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", RUN_BY_PEOPLE.strip().splitlines())
def test_what_people_run_is_answered_by_its_shape(cli, line):
    options, said = line.split(" | ")
    result = cli("decide", *options.split(), "--json", "--output", "o", code=0)
    content = strict(result.out)
    assert "Computed; " in content["answer"]
    assert all(row["speedup_low"] < row["speedup"] for row in content["settings"])
    text = cli("decide", *options.split(), "--output", "o").out
    assert said in text and "[9 in 10]" in text


@pytest.mark.parametrize(("seconds", "repeats"), [(0.0, 3), (1e9, 8)])
def test_models_are_read_once_and_timed_as_often_as_time_allows(cli, monkeypatch, seconds, repeats):
    monkeypatch.setattr("specbench.experiment.benchmark.SECONDS", seconds)
    monkeypatch.setattr("specbench.experiment.benchmark.STEADY", 0.0)
    for name in ("MOST_TOKENS", "LEAST_TOKENS"):
        monkeypatch.setattr(f"specbench.experiment.benchmark.{name}", 4)
    read: list[object] = []

    def load(*models):
        read.append(models)
        return load_once(*models)  # type: ignore[arg-type]

    monkeypatch.setattr("specbench.engine.loading.load_pair", None)
    initialise = Loader.__init__
    monkeypatch.setattr(Loader, "__init__", lambda loader: initialise(loader, load))
    few = "-t mini-math -n 10 --max-new-tokens 4 --drafter model --no-progress"
    cli(*f"decide {few} --batch-size 1 --draft-length 1,2 --output o".split(), code=0)
    assert len(read) == 1
    timed = rows(Path("o/decision/costs.csv"))
    assert {int(row["repeat"]) for row in timed} == set(range(repeats))


def test_an_interrupt_keeps_what_was_measured(cli, monkeypatch):
    """The second size is interrupted in its second repeat of three: the first one is decided."""
    monkeypatch.setattr("specbench.experiment.benchmark.SECONDS", 0.0)
    from specbench.experiment.bench_runner import BenchRunner

    run, rounds = BenchRunner.run, dict[int, int]()

    def counted(runner, steps):
        size = steps[0].plan.batch_size
        rounds[size] = rounds.get(size, 0) + 1
        if size == 2 and rounds[size] > 4:
            raise KeyboardInterrupt
        yield from run(runner, steps)

    monkeypatch.setattr(BenchRunner, "run", counted)
    few = "-t mini-math -n 10 --max-new-tokens 4 --drafter model --no-progress"
    result = cli(*f"decide {few} --batch-size 1,2 --draft-length 1,2 --output o".split(), code=0)
    assert rounds == {1: 9, 2: 5}  # three repeats of three cells each
    assert re.search(r"note: N = \d: .* times as fast with model at batch 1", result.err)
    assert "no costs of batch 2" in result.err
    assert {row["batch_size"] for row in rows(Path("o/decision/costs.csv"))} == {"1"}


def test_a_run_is_priced_once_and_compared_with_its_rounds(cli, finished):
    shutil.copytree(finished, "run")
    options = ("-t", "mini-math", "--draft-length", "2,3", "--drafting", "fixed,svip:0.9")
    first = cli("price", "run", *options, "--format", "csv", code=0)
    rows = pd.read_csv(io.StringIO(first.out))
    assert len(rows) == 3 * 2 * 2
    assert rows["tokens_per_round"].between(1, 4).all()
    stored = Path("run/scores.jsonl.gz")
    before = stored.stat().st_mtime_ns
    again = cli("price", "run", *options)
    assert "sd, model, N = 3" in again.out and "Recorded rounds" in again.out
    assert stored.stat().st_mtime_ns == before  # nothing was scored again
    with_head = cli("price", "run", *options, "--drafter", "eagle3,eagle3/block", "--format", "csv")
    rows = pd.read_csv(io.StringIO(with_head.out))
    tokens = rows[rows["policy"] == "fixed"].groupby("draft_length")["tokens_per_round"]
    assert (tokens.min() > 1).all() and (tokens.nunique() == 2).all()


def test_costs_may_be_what_llama_bench_wrote(cli):
    def test(name, size, prompt, seconds):
        rows = {"n_prompt": prompt, "n_gen": 0 if prompt else 32}
        return {"model_filename": name, "model_size": size, **rows, "avg_ns": 1e9 * seconds}

    target = [test("t", 9, n, 0.1 + 0.01 * n) for n in range(2, 9)] + [test("t", 9, 0, 32 * 0.11)]
    Path("t.json").write_text(json.dumps(target))
    Path("d.json").write_text(json.dumps([test("d", 1, 0, 32 * 0.01)]))
    line = "decide --acceptance .8 --costs t.json --costs d.json --drafter model -o o"
    result = cli(*line.split(), code=0)
    assert result.out.startswith("Speculate at batch 1 with model: N = 4.")
    (row,) = [r for r in rows(Path("o/decision/decision.csv")) if r["draft_length"] == "2"]
    assert float(row["speedup"]) == pytest.approx((1 + 0.8 + 0.64) * 0.11 / (0.13 + 0.02), rel=1e-3)
