import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

REFUSED = {
    "an unknown command": ("lst", "Did you mean 'list'?"),
    "an unknown option": ("run --methd sd", "No such option: --methd"),
    "an unknown option before the command": ("--loud run", "No such option: --loud"),
    "an unknown method": ("run -m sdd", "did you mean `sd`?"),
    "an unknown task": ("run -t mini-maths", "did you mean `mini-math`?"),
    "an unknown pair": ("run --pair mimi", "did you mean `mini`?"),
    "an unknown rule": ("run --rule token-v9", "token-v1, token-v2, token-v3"),
    "an unknown list": ("list thing", "methods, pairs, tasks"),
    "an unknown figure": ("plot pie", "pareto, acceptance-time, weights"),
    "a pair without a recipe": ("pairs build llama", "choose one of mini"),
    "a word for a number": ("run --limit many", "--limit"),
    "a word for a draft length": ("run --draft-length 3,x", "--draft-length cannot be '3,x'"),
    "a word for a weight": ("sweep-weights --weights half", "--weights cannot be 'half'"),
    "no weight": ("sweep-weights --weights ,", "--weights is empty"),
    "no method": ("run --method ,", "--method is empty"),
    "a weight out of range": ("run --weight 1.5", "from 0 to 1"),
    "a lenience of zero": ("run --lenience 0", "above 0 to 1"),
    "an alpha out of range": ("run --rule chow --alpha 2", "from 0 to 1"),
    "a negative temperature": ("run --temperature -1", "--temperature must be 0 or more"),
    "a temperature that float32 takes for 0": ("run --temperature 1e-46", "at least 1e-05"),
    "a limit of zero": ("run --limit 0", "--limit must be 1 or more"),
    "a parameter of no method": ("run -m sd --weight 0.3", "--weight is a parameter of static"),
    "a head that is not there": ("run --head nowhere", "there is no head at nowhere"),
    "no head at all": ("run --head ,", "--head is empty"),
    "one of several heads not there": ("run --head bundled,nope", "there is no head at nope"),
    "a head of no method": ("run -m sd --head bundled", "--head is a parameter of diversed"),
    "no head trained here": ("run -m diversed --head results", "specbench train --pair mini"),
    "no heads to compare": ("transfer --pair llama", "pair llama holds no head: train some"),
    "no folder of heads": ("transfer --head nowhere", "nowhere holds no head"),
    "a matrix of draft lengths": ("transfer --draft-length 3,5", "--draft-length"),
    "a pair without a head": ("run -m diversed --pair llama", "name one with --head"),
    "a target without a draft": ("run --target a/b", "--draft is missing"),
    "models named twice": ("run --pair mini --target a/b --draft a/c", "give one of the two"),
    "prompts that are not there": ("run --prompts no.csv", "cannot read the prompt file no.csv"),
    "prompts and tasks": ("run --prompts p.txt -t mini-math", "takes the place of --task"),
    "prompts with shots": ("run --prompts p.txt --shots 2", "--shots goes with tasks, not with"),
    "prompts with data": ("run --prompts p.txt --data d", "--data goes with tasks, not with --pro"),
    "prompts with a revision of data": ("run --prompts p.txt --data-revision v", "--data-revision"),
    "local data's revision": ("run -t gsm8k --data d --data-revision v", "give one of the two"),
    "a revision of several": ("run -t gsm8k,mbpp --data-revision v", "run their tasks one by one"),
    "data that nobody reads": ("run -t mini-math --data d", "--data goes with a task that has a d"),
    "a revision of nothing": ("run --data-revision v", "--data-revision goes with a task that has"),
    "a metric for a task": ("run --metric rouge2", "--metric belongs to --prompts"),
    "a metric without references": ("run --prompts p.txt --metric rouge2", "no `reference`"),
    "a metric that needs tests": ("run --prompts p.txt --metric pass@1", "give one of accuracy, "),
    "no run to draw": ("plot pareto", "there is no run under results"),
    "a run that is not there": ("plot pareto nowhere", "nowhere"),
    "an empty table": ("plot pareto empty", "summary.csv is empty"),
    "an output that is not empty": ("run --output full", "full is not empty"),
    "an output below a file": ("run --output p.txt/r", "cannot write p.txt/r (Not a directory)"),
}


@pytest.mark.parametrize(("line", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_in_one_line(
    cli: Cli, engine: Any, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "p.txt").write_text("a prompt\n")
    for name in ("empty/summary.csv", "full/notes.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    result = cli(*line.split())
    assert result.code == 2
    errors = [text for text in result.err.splitlines() if not text.startswith("note: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    assert result.out == ""
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
    assert result.err == "error: ZeroDivisionError: by nothing (where: specbench --debug ...)\n"
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
    assert "error: cannot write locked/r (Permission denied)" in result.err
    assert engine.calls == []
