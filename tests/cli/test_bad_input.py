import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

# What is typed, and the place or name that the one line of its refusal must hold.
REFUSED = {
    "lst": "Did you mean 'list'?",
    "run --methd sd": "--methd",
    "--loud run": "--loud",
    "run -m sdd": "did you mean `sd`?",
    "run -t mini-maths": "did you mean `mini-math`?",
    "run --pair mimi": "did you mean `mini`?",
    "run --rule token-v9": "token-v3",
    "list thing": "methods, pairs, tasks",
    "plot pie": "pareto",
    "pairs build llama": "mini",
    "run --limit many": "--limit",
    "run --limit 0": "--limit",
    "run --draft-length 3,x": "--draft-length",
    "run --engine steam": "--engine",
    "run --temperature 1e-46": "--temperature",
    "run --method ,": "--method",
    "run --weight half": "--weight",
    "run --weight 0.3,1.5": "weight",
    "run -m sd --weight 0.3": "--weight is a parameter of static",
    "run --head bundled,nope": "there is no head at nope",
    "run -m diversed --pair llama": "--head",
    "run --pair mini --target a/b --draft a/c": "--target",
    "run --prompts no.csv": "no.csv",
    "run --prompts p.txt -t mini-math": "--prompts",
    "run --prompts p.txt --shots 2": "--shots",
    "run --prompts p.txt --metric pass@1": "--metric",
    "run --prompts p.txt --metric rouge2": "p.txt",
    "run --metric rouge2": "--prompts",
    "run -t gsm8k --data d --data-revision v": "--data-revision",
    "run -t gsm8k,mbpp --data-revision v": "--data-revision",
    "run -t mini-math --data d": "--data",
    "sweep --parameter budgets": "did you mean `budget`?",
    "sweep --parameter budget --values x": "--values",
    "sweep --parameter budget --budget 0.1": "--budget",
    "sweep --parameter weight --weights 0,1": "--weights",
    "sweep-weights --weight 1": "No such option: --weight",
    "transfer --draft-length 3,5": "--draft-length",
    "transfer --head nowhere": "nowhere",
    "plot pareto": "results",
    "plot pareto empty": "summary.csv",
    "run --output full": "full",
    "run --output p.txt/r": "p.txt/r",
}


@pytest.mark.parametrize(("line", "place"), REFUSED.items(), ids=REFUSED)
def test_bad_input_is_refused_in_one_line(
    cli: Cli, engine: Any, tmp_path: Path, line: str, place: str
) -> None:
    (tmp_path / "p.txt").write_text("a prompt\n")
    for name in ("empty/summary.csv", "full/notes.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    result = cli(*line.split())
    assert (result.code, result.out) == (2, "")
    (error,) = [text for text in result.err.splitlines() if not text.startswith("note: ")]
    assert error.startswith("error: ")
    assert place in error
    assert sorted(tmp_path.rglob("*")) == before
    assert engine.calls == []


def test_a_failure_nobody_foresaw_is_one_line_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by nothing")

    from specbench.cli import list as module

    monkeypatch.setitem(module.LISTS, "methods", broken)
    result = cli("list", "methods")
    assert result.code == 1
    assert "ZeroDivisionError: by nothing" in result.err and result.err.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        from specbench.cli.app import main

        main(["--debug", "list", "methods"])


def test_a_folder_without_write_permission_is_refused(
    cli: Cli, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    result = cli("run", "--output", "locked/r")
    assert result.code == 2
    assert "locked/r" in result.err
    assert engine.calls == []
