"""``specbench decide``: from texts and costs to sentences, flags and files."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from specbench.engine.pair import LoadedPair
from specbench.experiment.loader import Loader

from .conftest import Cli, load_once
from .made import rows

TEXTS = "-t mini-math -n 12 --max-new-tokens 12 --no-progress"


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """Costs at which drafting pays for one text and never for eight."""
    path = tmp_path / "costs.csv"
    times = [(b, n, 1 + 0.1 * n if b == 1 else b * (1 + n)) for b in (1, 8) for n in (0, 1, 4)]
    columns = ["batch_size", "draft_length", "round_seconds"]
    pd.DataFrame(times, columns=columns).to_csv(path, index=False)
    return path


def test_it_says_where_speculation_pays(cli: Cli, costs: Path) -> None:
    line = f"decide {TEXTS} --costs {costs} --batch-size 1,8 --draft-length 1,2,4 --output run"
    line += " --top-k 50"
    result = cli(*line.split())
    assert result.code == 0, result.err
    assert result.out.startswith("Speculate at batch 1: ")
    assert re.search(r"^8 +model +1 .*loses$", result.out, re.MULTILINE)
    assert "at batch 8 leave speculation off" in result.out
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
    for kind in ("png", "svg", "pdf", "csv"):
        assert Path(f"run/decision/crossover.{kind}").stat().st_size

    line = "decide run --machine h100 --batch-size 1,8 --json --output again"
    machine = cli(*line.split())
    assert machine.code == 0, machine.err
    assert len(json.loads(machine.out)["settings"]) == 2 * 3 * 8


def test_no_drafts_and_no_schedule_where_nothing_pays(cli: Cli, costs: Path) -> None:
    result = cli(*f"decide --acceptance .3,.2 --costs {costs} --batch-size 8 --output o".split())
    assert result.code == 0, result.err
    assert result.out.startswith("Leave it off: speculation loses at every batch size (best: ")
    assert "--speculative" not in result.out


def test_acceptance_by_position_needs_no_models(
    cli: Cli, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.engine.loading.load_pair", None)
    line = f"decide --acceptance .9,.9,.8 --costs {costs} --batch-size 1,8 --drafter greedy"
    result = cli(*line.split(), "--output", "o")
    assert result.code == 0, result.err
    answer = "Speculate at batch 1: greedy, N = 3, 2.58 times as fast at batch 1.\n"
    assert result.out.startswith(answer)
    assert "N = 3 is the largest that was priced, and the best at batch 1," in result.err
    assert "DRAFT stands for your draft model" in result.out
    result = cli(
        *["decide", "--acceptance", ".9,.9,.8", "--machine", "h100", "--pair", "llama", "-o", "o"]
    )
    assert result.code == 0, result.err
    assert '"model": "meta-llama/Llama-3.2-1B-Instruct"' in result.out


@pytest.mark.parametrize(("seconds", "repeats"), [(0.0, 3), (1e9, 8)])
def test_models_are_read_once_and_timed_as_often_as_time_allows(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, seconds: float, repeats: int
) -> None:
    monkeypatch.setattr("specbench.experiment.bench.measure.SECONDS", seconds)
    for name in ("MOST_TOKENS", "LEAST_TOKENS"):
        monkeypatch.setattr(f"specbench.experiment.bench.measure.{name}", 4)
    read: list[object] = []

    def load(*models: object) -> LoadedPair:
        read.append(models)
        return load_once(*models)  # type: ignore[arg-type]

    monkeypatch.setattr("specbench.engine.loading.load_pair", None)
    monkeypatch.setattr("specbench.experiment.bench.measure.load_pair", load)
    initialise = Loader.__init__
    monkeypatch.setattr(Loader, "__init__", lambda loader: initialise(loader, load))
    few = "-t mini-math -n 10 --max-new-tokens 4 --drafter model --no-progress"
    line = f"decide {few} --batch-size 1 --draft-length 1,2 --output o"
    result = cli(*line.split())
    assert result.code == 0, result.err
    assert len(read) == 1
    timed = rows(Path("o/decision/costs.csv"))
    assert {int(row["repeat"]) for row in timed} == set(range(repeats))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--costs c.csv --machine h100", "exclude each other"),
        ("--machine h1000", "h100"),
        ("--costs nowhere.csv", "cannot read the costs"),
        ("--costs few.csv --batch-size 1,8", "batch size 8 is outside of the measured 1 to 2"),
        ("--costs few.csv --batch-size 1", "has draft lengths 12 to 12 alone"),
        ("--drafter nobody", "nobody"),
        ("--acceptance .9,1.9 --costs few.csv --batch-size 1 --draft-length 12", "from 0 to 1"),
        ("--acceptance nowhere --machine h100 --pair mini", "a rate from 0 to 1"),
        ("--acceptance .9", "seconds per round depend on the models"),
        ("--acceptance .9 --machine h100 --pair mini --drafter model,greedy", "of one drafter"),
        (
            "--acceptance .9,.8 --machine h100 --pair mini --draft-length 3",
            "no --draft-length has both",
        ),
        ("--limit 2", "2 prompts are too few for an interval"),
        ("--task mini-math,mini-code", "2 tasks: name one"),
    ],
)
def test_mistakes_are_told_before_texts_are_written(cli: Cli, options: str, complaint: str) -> None:
    rows = "1,0,1\n1,12,2\n2,0,1\n2,12,2\n"
    Path("few.csv").write_text("batch_size,draft_length,round_seconds\n" + rows)
    result = cli(*f"decide {TEXTS} {options}".split())
    assert result.code == 2
    assert complaint in result.err and len(result.err.strip().splitlines()) == 1
    assert not Path("results").exists()
