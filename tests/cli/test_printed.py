"""Every command on every page works as it is printed.

Stand-ins replace what takes a GPU, a network or hours: an engine without models, one prompt, small
data files, and a small run in the place of the reference run. Commands that train, check or time
models stop where they would load them; they have tests of their own.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine import loading, memory
from specbench.errors import UsageError
from specbench.experiment import progress
from specbench.experiment.arms import NO_RULE
from specbench.pricing import passes, source
from specbench.serving.arm import ARGUMENT
from specbench.validation import check

from ..analysis.figures.made import training_of
from ..pages import MEASURED, PAGES, ROOT, blocks, commands
from ..serving.fake import Fake, Handler, serving, solved
from .conftest import Cli, measured

RUN = "results/reference"
DATA = "tests/data"
ARTICLES = {"cnndm": ("id", "article", "highlights"), "xsum": ("id", "document", "summary")}
MEASURE = ("run", "sweep-weights", "sweep")
LOADS = "here models are loaded"
# The options have been checked when these are missing.
ABSENT = (
    "no server answers at http://localhost",
    "no program .servers/bin/vllm",
    "no folder FOLDER",
    "not shown to be within",  # the stand-in of a run has one prompt
    "these runs have no task",  # but `mini-math`
    "there is no head at results/heads/$drafter",  # which an earlier command trains
)
SERVERS = re.compile(r"http://127\.0\.0\.1:800\d")
# In the place of names that a reader replaces, and of runs with many cells.
LARGE = (
    *("results/paper-T1", "results/shards", "results/again-sharpened", "results/qwen"),
    *("results/lengths", "results/line"),
)
NAMES = {
    **{"I/4": "1/4", "DIR": DATA, "$pair": "llama", "$seed": "0", "$T": "1", "$drafter": "eagle3"},
    "eager,graph": "eager",
    **dict.fromkeys(("results/RUN", *LARGE), RUN),
}
MODELS = ("BIG", "SMALL", "MODEL", "gguf/target-f32.gguf", "gguf/draft-f32.gguf")


def stand_in(printed: list[str], later: set[str]) -> list[str]:
    """Return a command's words with stand-ins for data, models and time.

    A run whose folder is among the words of ``later`` commands is decoded, all others are planned.
    """
    named = (NAMES.get(word, word) for word in printed if word != "$@")
    name, *words = (RUN if word.startswith(f"{RUN}-") else word for word in named)
    for option in {"--workers", "--ray-address"} & {*words}:  # Ray may not be installed
        del words[(at := words.index(option)) : at + 2]
    if name in MEASURE:
        words = [word for word in words if word != "..."] + ["--limit", "1", "--no-progress"]
        read = any(word.startswith("results/") and word in later for word in words)
        words += [] if read else ["--dry-run"]
    if any(word.startswith(("gsm8k", "mbpp")) for word in words) and "--data" not in words:
        words += ["--data", DATA]
    more = {"train": ["--output", "trained"], "verify": ["--limit", "0"]}
    more |= {name: ["--limit", "1", "--no-progress"] for name in ("decide", "price")}
    return [name, *words, *more.get(name, [])]


def loads(*_: Any, **__: Any) -> None:
    """Stop a command that would load models; what it was asked has then been checked."""
    raise UsageError(LOADS)


def faults(text: str, cli: Cli) -> list[str]:
    """Run the commands of a page in its order; return those that fail, with their message."""
    messages, lines = [], commands(text)
    for number, printed in enumerate(lines, start=1):
        later = {word for line in lines[number:] for word in line}
        result = cli(*stand_in(printed, later))
        if result.code and not any(reason in result.err for reason in (LOADS, *ABSENT)):
            messages.append(f"specbench {' '.join(printed)}: {result.err.strip()}")
    return messages


@pytest.fixture(scope="session")
def small(once) -> Path:
    """A real run with the names of the reference run, and fewer prompts and cells."""
    line = "-t mini-math --set weight=0,0.5 -n 10 --seed 1 --max-new-tokens 8"
    return once("reference", lambda folder: measured(folder, line))


def refuses(handler: Handler, body: dict[str, Any]) -> bool:
    """Refuse an unknown rule, as vLLM with the plugin does."""
    if body.get("vllm_xargs", {}).get(ARGUMENT) != NO_RULE:
        return False
    handler.reply(400, {"error": "unknown rule"})
    return True


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server."""
    with serving(Fake(solved, fault=refuses)) as url:
        yield url


@pytest.fixture
def reader(cli, small, engine, server, report_without_figures, tmp_path, monkeypatch) -> Cli:
    """Run commands in a folder with what a reader of a page has at hand."""
    for module, name in (
        (progress, "forecast"),  # it reads from the hub
        (loading, "load_config"),
        (memory, "load_config"),
        (check, "read_prompts"),
        (passes, "texts_of"),
    ):
        monkeypatch.setattr(module, name, loads)
    monkeypatch.setattr(source, "FEWEST", 1)  # prompts
    for model in (engine.target, engine.draft):
        model.vocabulary, model.hidden_size, model.dtype = 20, 4, torch.float32
    shutil.copytree(small, tmp_path / RUN)
    heads = ROOT / "specbench" / "pairs" / "mini" / "heads"
    shutil.copytree(heads, tmp_path / "results" / "heads" / "mini")
    training_of(tmp_path / "results" / "heads" / "mini" / "new")
    shutil.copytree(heads / "mini-math", tmp_path / "results" / "heads" / "llama" / "gsm8k")
    for recipe, pair in (("math", "mini"), ("features", "python")):
        bundled = ROOT / "specbench" / "pairs" / pair / "heads"
        shutil.copytree(bundled, tmp_path / "results" / "heads" / recipe / "seed-0")
    (tmp_path / "tasks" / "measure").mkdir(parents=True)
    shutil.copy(ROOT / "tasks" / "measure" / "claims.py", tmp_path / "tasks" / "measure")
    for name in MODELS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch() if name.endswith(".gguf") else (tmp_path / name).mkdir()
    shutil.copy(ROOT / "specbench" / "docs" / "my_rules.py", tmp_path)
    shutil.copytree(ROOT / DATA, tmp_path / DATA, ignore=shutil.ignore_patterns("told"))
    for task, columns in ARTICLES.items():
        rows = [dict.fromkeys(columns, "One thing happened.") | {"id": str(n)} for n in range(40)]
        (tmp_path / DATA / task).mkdir()
        for split in ("train", "test"):
            (tmp_path / DATA / task / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    question = {"prompt": "Why?", "turns": ["Why?"], "reference": ["So."], "category": "math"}
    for name in ("questions.jsonl", "question.jsonl"):
        rows = (json.dumps(question | {"question_id": n}) for n in range(3))
        (tmp_path / name).write_text("\n".join(rows))
    for name in ("more.txt", "prompts.txt"):
        (tmp_path / name).write_text("One?\nTwo?\n")
    (task,) = blocks((ROOT / "tasks" / "README.md").read_text(encoding="utf-8"), "toml")
    (tmp_path / "my-task.toml").write_text(task)
    costs = [f"{b},{n},{b + n}" for b in (1, 32) for n in (0, 1, 8)]
    (tmp_path / "costs.csv").write_text(
        "\n".join(["batch_size,draft_length,round_seconds", *costs])
    )
    for name, size, lengths in (("target", 9, (2, 4, 8, 0)), ("draft", 1, (0,))):
        tests = [
            {"model_filename": name, "model_size": size, "n_prompt": n, "n_gen": 0 if n else 32}
            | {"avg_ns": 1e9}
            for n in lengths
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(tests))
    (tmp_path / "my_metrics.py").write_text("def length_ratio(text, reference):\n    return 1.0\n")
    (tmp_path / "my-pairs.toml").write_text('[mine]\ntarget = "BIG"\ndraft = "SMALL"\n')
    return lambda *words: cli(*(SERVERS.sub(server, word) for word in words))


PRINTING = [page for page in (*PAGES, *MEASURED) if commands(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PRINTING, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_work_as_printed(page, reader):
    assert faults(page.read_text(encoding="utf-8"), reader) == []


FAULTS = (
    *("table results/reference --agains paper", "compare results/refrence", "plot parto"),
    *("run -m sd,diverse -t mini-math", "run -t mini-maths", "run --pair lama -t gsm8k"),
    *("check -m sd --taks mini-math", "train -t mini-math --max-quality-loss much"),
    *("run -m my_rules.py:geometry -t mini-math", "trace results/reference -m lossy", "runs"),
)


def test_faulty_commands_are_found_among_good_ones(reader):
    good = "specbench list tasks\n"
    lines = good.join(f"specbench {fault}  # a comment\n" for fault in FAULTS)
    messages = faults(f"```sh\n{good}{lines}{good}```\n", reader)
    for sentence, fault in zip(messages, FAULTS, strict=True):
        assert sentence.startswith(f"specbench {fault}: ")


def test_the_notebook_page_runs(small, tmp_path, monkeypatch):
    shutil.copytree(small, tmp_path / RUN)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "specbench" / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(block, names)
    assert set(names["results"].cells["method"]) == {"autoregressive", "sd", "static", "diversed"}
    assert names["generation"].output_tokens == sum(
        step.emitted for step in names["generation"].rounds
    )
    assert names["verdict"].residual.sum(-1).tolist() == pytest.approx([1] * 4)
    reading = page.split("## A figure of your own")[0]
    tables = re.findall(r"^\| `(\w+)` \|", reading, re.MULTILINE)
    assert f": {', '.join(tables)}>" in repr(names["results"])
