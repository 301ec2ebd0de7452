"""Usage errors of every command: exit code 2, one line that names the place, no file changed.

Refusals before any heavy import are in ``test_refusals.py``.
"""

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from specbench.decoding.heads.registry import WEIGHTS
from specbench.engine.pairs import get_pair
from specbench.tasks.task import load_task
from specbench.training.recipe import CHECKPOINT

from .conftest import Cli

# Command lines, each with text that its error message must contain. RUN is a finished run, p.txt a
# prompt file, wrong.py a policy, custom a head of a pair without a name; full, taken and begun are
# folders with a file, a head and an unfinished training.
REFUSED = {
    "run -m sd,block --inside a,b": "not exact",
    "lst": "Did you mean 'list'?",
    "run --methd sd": "--methd",
    "--loud run": "--loud",
    "run --limit many": "--limit",
    "run --limit 0": "--limit",
    "run --draft-length 3,x": "--draft-length",
    "run --engine steam": "--engine",
    "run --temperature 1e-46": "--temperature",
    "run --temperature -0.1": "--temperature",
    "run --temperature nan": "--temperature",
    "run --temperature inf": "--temperature",
    "run --top-k 0": "--top-k",
    "run --top-p 0": "--top-p",
    "run --top-p 1.01": "--top-p",
    "run --top-p nan": "--top-p",
    "run --seed -1": "--seed",
    "run --repeats 0": "--repeats",
    "run --max-new-tokens 0": "--max-new-tokens",
    "run --prompt-format chatty": "--prompt-format",
    "run --draft-length 5,0": "--draft-length",
    "run --method ,": "--method",
    "run --pair mimi": "did you mean `mini`?",
    "run --set rule=token-v9": "token-v3",
    "run --set weight=0.3,1.5": "weight",
    "run -m sd --set weight=0.3": "weight is a parameter of static",
    "run --head bundled,nope": "there is no head at nope",
    "run -m diversed --pair llama": "--head",
    "run --pair mini --target a/b --draft a/c": "--target",
    "run --target a/b": "draft without one by --drafter prompt-lookup",
    "train --target a/b": "--draft is missing",
    "bench --target a/b": "--draft is missing",
    "check --target a/b": "--draft is missing",
    "finetune-draft --target a/b": "--target",
    "run --prompts no.csv": "no.csv",
    "run --prompts p.txt -t mini-math": "--prompts",
    "run --prompts p.txt --shots 2": "--shots",
    "run --prompts p.txt --metric pass@1": "--metric",
    "run --prompts p.txt --metric rouge2": "p.txt",
    "run --metric rouge2": "--prompts",
    "run -t mini-math --cut-prompts": "--cut-prompts needs --prompts",
    "run -t mini-math --metric agreement": "--metric needs --prompts",
    "run -t mini-math --data d": "--data",
    "run --load-format dummy --device-map auto": "--device-map",
    "run --ray-address auto": "--workers",
    "run --workers 2 --device cuda:1": "device",
    "run --output p.txt/r": "p.txt/r",
    "sweep-weights --set weight=1": "weight is a parameter of static",
    "run -m diversed --head nowhere": "nowhere",
    "train --head-kind deep": "--head-kind",
    "train --rollouts 1": "--rollouts",
    "train --target-acceptance 0,0.8": "--target-acceptance",
    "train --max-quality-loss 0,1": "--max-quality-loss",
    "train --target-acceptance 0.8,1.5": "--target-acceptance",
    "train --target-acceptance 0.8 --max-quality-loss 2": "--target-acceptance: omit one",
    "train --temperature -1": "--temperature",
    "train --temperature 0,1": "must be above 0, since greedy texts give no gradient",
    "train -t unscored.toml": "unscored has no metric, which training needs",
    "train -t mini-math,copy.toml": "two heads would be written to results/heads/mini/mini-math",
    "train -o taken": "taken/mini-news",
    "train -o begun": "begun/mini-news",
    "train -o p.txt/heads": "p.txt",
    "finetune-draft --steps 0": "--steps",
    "finetune-draft -t mini-news -o taken": "taken/mini-news is not an empty folder",
    "finetune-draft -o p.txt": "cannot write p.txt/mini-code",
    "bench --acceptance 0.5,1.5": "--acceptance",
    "bench --engine eager,vllm": "--engine",
    "bench --prompt-tokens 2000": "exceed the context of 2048",
    "bench --batch-size 10000000 --device cpu": "--batch-size",
    "bench --device cuda:99": "cuda:99",
    "check --samples 0": "--samples",
    "check --prompts none.txt": "none.txt",
    "audit": "--decoder",
    "audit --decoder vllm": "an address must begin with http",
    "audit --decoder http://x --weight 0.5": "--weight needs --decoder transformers: add it",
    "audit --decoder http://x --temperature 0": "--temperature",
    "price --drafting confidnce": "did you mean `confidence`",
    "price --drafting confidence:high": "takes a number",
    "price --drafting schedule": "needs a value",
    "price --drafting wrong.py:drops": "drops looks at the tokens that it drops",
    "price --drafter model/static": "judged by sd, match or block",
    "price --texts answer": "column of --prompts",
    "plot pie": "pareto",
    "plot pareto": "there is no run under results",
    "plot pareto empty": "summary.csv",
    "plot accepted-length custom": "holds no samples.csv",
    "plot pareto RUN -o figures": "--draft-length",
    "plot pareto RUN --task mini-mat": "did you mean `mini-math`?",
    "plot pareto --cost tme": "did you mean `time`?",
    "plot weights --cost time": "--cost applies only to pareto",
    "plot pareto --head bundled": "--head applies only to weights",
    "plot weights RUN --head bundled": "--head replaces the runs",
    "plot weights --head bundled -t mini-math -m sd": "--method",
    "plot weights --limit 3": "--limit needs --head",
    "plot weights --head nowhere": "there is no head at nowhere",
    "plot weights --head bundled": "name one with --task",
    "plot weights --head bundled --task all": "--task takes only one task here",
    "plot weights --head bundled -t mini-math --pair llama": "no bundled head for mini-math",
    "plot weights --head custom": "--target",
    "plot weights --head own": "was trained on your own task quiz: give its file with --task",
    "plot weights --head bundled --task mini-news": "mini-news contains another head",
    "plot training": "results/heads",
    "plot training taken -m sd": "--method",
    "plot training --task mini-math": "--task needs --head",
    "plot training empty": "empty holds no training.csv",
    "plot training empty -o empty": "would overwrite",
    "plot pareto RUN --draft-length 2 --method sd --cost speedup --task all -o p.txt": "p.txt",
    "table RUN --format html": "--format",
    "table RUN --by category": "no category: omit --by category",
    "table RUN --by domain": "--by",
    "compare RUN --times": "--times compares two runs",
    "compare RUN -m sd": "--method 'sd' is a baseline of the comparison",
    "compare RUN --against sd": "--against METHOD and --margin POINTS belong together",
    "compare RUN --against sd --margin 0": "--margin",
    "compare RUN --against sd --margin 2 --at time": "omit --at and --times",
    "compare RUN --require within": "--require needs --against METHOD and --margin POINTS",
    "compare RUN --against sd --margin 2 --require faster": "--require",
    "compare RUN --require-acceptance 0": "--require-acceptance",
    "compare RUN --require-acceptance 101": "--require-acceptance",
    "compare RUN --against ds --margin 2": "unknown method of these runs `ds`",
    "table RUN --task mini-new --frame x.csv": "mini-new",
    "table RUN --frame x.xyz": "x.xyz",
    "table RUN --frame x.csv --by position": "--frame",
    "report RUN -m ,": "--method",
    "report RUN -o nowhere/r.html": "nowhere",
    "score nowhere": "nowhere is not a run folder",
    "score RUN --metric beauty": "unknown metric `beauty`",
    "trace RUN --sample test-0": "choose with --task from",
    "trace RUN --sample test-0 -t mini-math": "choose with --method from",
    "trace tables --sample test-0": "tables is not a run folder",
    "run --shard 3/2": "--shard must be I/N",
    "run --shard 0/2": "--shard must be I/N",
    "run --shard 1/0": "--shard must be I/N",
    "run --shard 2": "--shard must be I/N",
    "run -t mini-math -n 2 --shard 3/3": "mini-math has too few prompts for --shard 3/3",
    "train -t mini-math --shard 2/2": "too few tasks for --shard 2/2",
    "run --pair mini,mimi": "did you mean `mini`?",
    "run --pair mini,llama --draft a/b": "--draft is about a model of one pair",
    "list thing": "unknown list `thing`; choose one of `methods`, `drafters`, `pairs`",
    "list pairs --validate": "--validate checks tasks",
    "list tasks some.toml": "--validate",
    "list tasks --validate mbp": "did you mean `mbpp`?",
}


@pytest.fixture
def folders(tmp_path: Path, finished: str) -> None:
    """Create the files and folders that the command lines name."""
    (tmp_path / "p.txt").write_text("a prompt\n")
    (tmp_path / "wrong.py").write_text(
        "from specbench.decoding.drafters.policies import policy\n"
        "@policy(predictable=False)\ndef drops(rounds):\n    return rounds.most\n"
    )
    places = ("taken/mini-news", "results/heads/mini/mini-news")
    heads = [f"{place}/{file}" for place in places for file in (WEIGHTS, "head.json")]
    for name in (*heads, f"begun/mini-news/{CHECKPOINT}", "empty/summary.csv", "full/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tables").mkdir()
    shutil.copy(Path(finished) / "samples.csv", tmp_path / "tables")
    shutil.copytree(get_pair("mini").heads / "mini-math", tmp_path / "custom")  # type: ignore[operator]
    description = tmp_path / "custom" / "head.json"
    description.write_text(description.read_text().replace('"pair": "mini"', '"pair": "a+b"'))
    shutil.copytree(tmp_path / "custom", tmp_path / "own")
    quiz_head = description.read_text().replace('"a+b"', '"mini"').replace('"mini-math"', '"quiz"')
    (tmp_path / "own" / "head.json").write_text(quiz_head)
    shutil.copy(load_task("mini-math").path, tmp_path / "copy.toml")
    task = load_task("mini-math").path.read_text().replace('"mini-math"', '"NAME"', 1)
    text = task.replace('metrics = ["accuracy"]', "").replace('"NAME"', '"unscored"')
    (tmp_path / "unscored.toml").write_text(text)


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("line", "place"), REFUSED.items(), ids=REFUSED)
def test_bad_input_is_refused_in_one_line(
    cli: Cli, engine: Any, models: list[Any], tmp_path: Path, finished: str, line: str, place: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = cli(*line.replace("RUN", finished).split())
    assert (result.code, result.out) == (2, "")
    (error,) = [text for text in result.err.splitlines() if not text.startswith("note: ")]
    assert error.startswith("error: ")
    assert place in error
    assert sorted(tmp_path.rglob("*")) == before
    assert engine.calls == models == []


def test_an_unexpected_failure_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by nothing")

    from specbench.cli import lookup as module
    from specbench.cli.app import main

    monkeypatch.setitem(module.LISTS, "methods", broken)
    result = cli("list", "methods")
    assert result.code == 1
    assert "ZeroDivisionError: by nothing" in result.err and result.err.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "list", "methods"])


@pytest.mark.parametrize("line", ["run --output locked/r", "train"])
def test_a_folder_without_write_permission_is_refused(
    cli: Cli, engine: Any, models: list[Any], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = cli(*line.split())
    assert (result.code, result.err.count("error: ")) == (2, 1)
    assert ("locked/r" if "locked" in line else "results/heads/mini/mini-code") in result.err
    assert engine.calls == models == []


@pytest.mark.parametrize("command", ["run -m sd -n 2", "train"])
def test_a_missing_extra_is_refused_with_its_install_command(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = cli(*command.split(), "-t", "mini-math", "--workers", "2")
    assert result.code == 2
    assert "pip install '.[ray]'" in result.err
    assert models == [] and not list(Path().iterdir())
