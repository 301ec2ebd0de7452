"""``specbench train`` with the bundled pair and tiny recipes."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli.choices import choose_tasks
from specbench.cli.options import data
from specbench.engine.loading import LoadedPair
from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.heads.registry import WEIGHTS, is_head
from specbench.tasks.dataset import Sourcing
from specbench.tasks.task import Listed
from specbench.training import session, verifier
from specbench.training.folder import CHECKPOINT

from .training import HEAD, TINY, errors, logged_steps, rewards

Cli = Callable[..., Any]


REFUSED = {
    "an unknown task": ("-t mini-maths", "did you mean `mini-math`?"),
    "an unknown pair": ("--pair mimi", "did you mean `mini`?"),
    "an unknown kind": ("--head-kind deep", "--head-kind must be one of linear, mlp, features"),
    "an unknown baseline": ("--baseline none", "--baseline must be one of batch, group, ema"),
    "no steps": ("--steps 0", "--steps must be 1 or more"),
    "a negative rate": ("--learning-rate -1", "--learning-rate must be above 0"),
    "a rate that is no number": ("--learning-rate nan", "--learning-rate must be above 0"),
    "a negative price": ("--kl-weight -0.1", "--kl-weight must be 0 or more"),
    "a weight of one": ("--initial-weight 1", "--initial-weight must be between 0 and 1"),
    "a negative seed": ("--seed -1", "--seed must be from 0 to 999"),
    "nothing to compare with": ("--rollouts 1", "--rollouts must be 2 or more with the group"),
    "more parts than prompts": ("--rollout-parts 17", "must be from 1 to the 16 prompts of a step"),
    "more workers than parts": (
        "--workers 3 --rollout-parts 2",
        "--workers 3 needs as many parts of a step, and --rollout-parts is 2: give --rollout-parts",
    ),
    "workers of one part": ("--workers 2", "--rollout-parts is 1: give --rollout-parts 2, or few"),
    "no workers": ("--workers 0", "--workers must be 1 or more, not 0"),
    "an address alone": ("--ray-address auto", "--ray-address goes with --workers N"),
    "an acceptance above one": ("--target-acceptance 0.8,1.5", "must be between 0 and 1, not 1.5"),
    "an acceptance in words": ("--target-acceptance high", "cannot be 'high'"),
    "a target without a draft": ("--target a/b", "--draft is missing"),
    "one task twice": ("-t mini-math,copy.toml", "two heads would go to results/heads/mini/mini-m"),
    "a head that is there": ("-o taken", "taken/mini-news holds a head already"),
    "a training that is there": ("-o begun", "begun/mini-news holds an unfinished training"),
    "an output below a file": ("-o a.txt/heads", "cannot write a.txt/heads/mini-code (a.txt: is a"),
    "a log below a file": ("--log-to a.txt", "name another folder with --log-to"),
}


@pytest.mark.parametrize(("line", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_before_models_load(
    cli: Cli, models: list[Any], tmp_path: Path, line: str, message: str
) -> None:
    (original,) = choose_tasks(["mini-math"], Sourcing())
    (tmp_path / "copy.toml").write_text(original.path.read_text())
    names = ("a.txt", f"taken/mini-news/{WEIGHTS}", "taken/mini-news/head.json")
    for name in (*names, f"begun/mini-news/{CHECKPOINT}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    if "--log-to" in line:
        pytest.importorskip("tensorboard")
    before = sorted(tmp_path.rglob("*"))
    result = cli("train", *line.split())
    assert result.code == 2
    assert len(errors(result)) == 1
    assert message in errors(result)[0]
    assert result.err.count("\n") == 1
    assert result.out == ""
    assert sorted(tmp_path.rglob("*")) == before
    assert models == []


def test_a_task_that_cannot_be_trained_for_is_refused(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = choose_tasks(["mini-math,mini-news"], Sourcing())
    listed = replace(second, source=Listed(()))
    monkeypatch.setattr(data, "choose_tasks", lambda *_: [first, listed])
    result = cli("train")
    assert result.code == 2
    assert "has no training split" in result.err
    assert models == []


def test_rewards_of_a_task_with_stop_strings_are_of_the_texts_before_them(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch, mini: LoadedPair
) -> None:
    (task,) = choose_tasks(["mini-headline"], Sourcing())
    monkeypatch.setattr(data, "choose_tasks", lambda *_: [replace(task, stop=(".",))])
    honest, ends = verifier.reward, []

    def reward(rollouts: Any, *rest: Any) -> torch.Tensor:
        assert not any("." in text for text in rollouts.texts)
        last = [rollouts.token[rollouts.row == i][-1] for i in range(len(rollouts.texts))]
        ends.extend(map(mini.tokenizer.decode, last))
        return honest(rollouts, *rest)

    monkeypatch.setattr(verifier, "reward", reward)
    assert cli(*TINY, "--target-acceptance", "0.9", "--no-progress").code == 0
    assert "." in ends


def test_a_folder_without_permission_is_refused(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = cli("train")
    assert result.code == 2
    assert "cannot write results/heads/mini/mini-code (.: no permission)" in result.err
    assert models == []


def test_without_tensorboard_the_log_is_refused(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = cli(*TINY, "--log-to", "logs")
    assert result.code == 2
    assert "pip install '.[tensorboard]'" in result.err
    assert result.err.count("\n") == 1
    assert models == []


def test_a_head_is_trained_shown_and_used(cli: Cli, models: list[Any]) -> None:
    result = cli(*TINY, "--head-kind", "mlp", "--learning-rate", "0.002")
    assert result.code == 0
    assert models == [("mini", "auto", "auto")]
    assert is_head(HEAD)
    assert logged_steps(HEAD) == ["1", "2", "3"]
    assert not (HEAD / CHECKPOINT).exists()
    (row,) = (line for line in result.out.splitlines() if line.startswith("│ mini-headline"))
    assert "mlp" in row
    assert "ROUGE-2" in row
    assert f"Heads of mini in {HEAD.parent}" in result.out
    assert "mini-headline on mini, mlp head: step 3, reward" in result.err
    used = result.out.splitlines()[-1].removeprefix("use it: specbench ")
    assert used.endswith(f"--task mini-headline --head {HEAD}")
    run = cli(*shlex.split(used), "--limit", "1", "--max-new-tokens", "4", "-o", "run")
    assert run.code == 0
    assert "diversed" in run.out


def test_the_next_command_gets_every_option_that_counts_there(
    cli: Cli, models: list[Any], tmp_path: Path
) -> None:
    (original,) = choose_tasks(["mini-headline"], Sourcing())
    (tmp_path / "a b.toml").write_text(original.path.read_text())
    line = [part if part != "mini-headline" else "a b.toml" for part in TINY]
    result = cli(*line, "--dtype", "float32", "--offline", "--allow-code-execution")
    used = shlex.split(result.out.splitlines()[-1].removeprefix("use it: specbench "))
    assert used == [
        *("run", "--method", "sd,diversed", "--dtype", "float32", "--task", "a b.toml"),
        *("--offline", "--allow-code-execution", "--head", str(HEAD)),
    ]


def test_memory_is_compared_before_models_load(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.engine import memory

    asked: list[tuple[int, int, int]] = []

    def check(spec: Any, how: Loading, *sizes: int) -> None:
        asked.append(sizes)  # type: ignore[arg-type]
        raise UsageError("mini needs 99 GiB to train a head")

    monkeypatch.setattr(memory, "check_training_memory", check)
    (task,) = choose_tasks(["mini-headline"], Sourcing())
    prompt = max(len(e.prompt) for e in task.examples("train", 6, 5)) / 2.5
    for more, sizes in (
        ((), (int(prompt), task.max_new_tokens, 128)),
        (("--max-prompt-tokens", "20"), (20, task.max_new_tokens, 128)),
        (("--rollouts", "200"), (int(prompt), task.max_new_tokens, 200)),
    ):
        line = [*TINY, *more]
        assert cli(*line).code == 2
        assert asked.pop() == sizes
    assert models == []


def test_values_typed_go_before_those_of_the_task(cli: Cli, models: list[Any]) -> None:
    from specbench.heads.files import read_description

    assert cli(*TINY, "--acceptance-weight", "3", "--no-progress").code == 0
    recipe = read_description(HEAD)["recipe"]
    assert recipe["acceptance_weight"] == 3
    assert (recipe["steps"], recipe["prompts_per_step"], recipe["rollouts"]) == (3, 2, 2)
    assert recipe["seed"] == 5


def test_a_family_has_a_head_per_target_acceptance(cli: Cli, models: list[Any]) -> None:
    result = cli(*TINY, "--target-acceptance", "0.9,0.95", "-o", "family")
    assert result.code == 0
    for name in ("acceptance-0.9", "acceptance-0.95"):
        assert is_head(Path("family") / name / "mini-headline")
    assert "mini-headline at acceptance 0.95 on mini" in result.err
    used = result.out.splitlines()[-1].removeprefix("use it: specbench ")
    assert used.endswith("--head family")
    run = cli(*shlex.split(used), "--limit", "1", "--max-new-tokens", "4", "-o", "run")
    assert run.code == 0
    assert run.out.count("diversed") == 2 * 2  # in the table and in that of further metrics


def test_a_single_target_acceptance_goes_where_run_looks(cli: Cli, models: list[Any]) -> None:
    assert cli(*TINY, "--target-acceptance", "0.9").code == 0
    assert is_head(HEAD)


@pytest.mark.parametrize(
    ("wish", "why"), [("0.2", "strict verification accepts about 0."), ("0.99", "more --steps")]
)
def test_a_wish_that_was_missed_is_told_with_both_numbers(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch, wish: str, why: str
) -> None:
    monkeypatch.setattr(session, "settle", lambda *_: None)
    unmoved = ("--learning-rate", "1e-6", "--no-progress")
    result = cli(*TINY, "--target-acceptance", wish, *unmoved)
    (told,) = result.err.splitlines()
    assert told.startswith("note: mini-headline at acceptance")
    assert "held-out acceptance is 0." in told
    assert f"wished {wish}" in told
    assert why in told


def test_rewards_that_were_all_the_same_are_counted(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = verifier.reward
    flat = rewards(0.0, 0.0)
    calls = 0

    def reward(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return flat(*arguments) if calls < 3 else honest(*arguments)

    monkeypatch.setattr(verifier, "reward", reward)
    result = cli(*TINY, "--no-progress")
    (told,) = result.err.splitlines()
    assert "the same for all roll-outs in 2 of 3 steps" in told
    assert "--initial-weight" in told


def test_help_names_every_value_of_the_recipe(cli: Cli) -> None:
    from dataclasses import fields

    from specbench.training.recipe import HeadRecipe

    text = cli("train", "--help").out
    for field in fields(HeadRecipe):
        assert f"--{field.name.replace('_', '-')} " in text
    for option in ("--pair", "--target", "--draft", "--output", "--resume", "--log-to"):
        assert f"{option} " in text
    assert "--workers " in text
    assert "expected_acceptance" in text
    assert "Example: specbench train" in text
