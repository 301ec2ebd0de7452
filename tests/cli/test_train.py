"""``train`` with tiny recipes: train, stop, kill, resume, use."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.analysis.statistics.intervals import Interval
from specbench.cli.options import Tasks
from specbench.cli.train import HeadJob, _waits
from specbench.decoding.heads.registry import WEIGHTS, is_head, read_description
from specbench.errors import RunError, UsageError
from specbench.runs.labels import LOG
from specbench.tasks.task import load_task
from specbench.training import front, verifier
from specbench.training.recipe import CHECKPOINT, HeadRecipe
from specbench.training.verifier import Training

TINY = [
    *("train", "-t", "mini-headline", "--steps", "3", "--prompts-per-step", "2"),
    *("--rollouts", "2", "--seed", "5"),
]
HEAD = Path("results/heads/mini/mini-headline")


def rewards(*steps: Any) -> Callable[..., torch.Tensor]:
    """Replace ``verifier.reward``: for each step the reward of all texts, or an error to raise."""
    left: Iterator[Any] = iter(steps)

    def reward(rollouts: Any, *_: Any) -> torch.Tensor:
        value = next(left, 0.5)
        if isinstance(value, BaseException):
            raise value
        return torch.full((len(rollouts.texts),), float(value))

    return reward


def logged_steps(folder: Path) -> list[str]:
    return [line.split(",")[0] for line in (folder / LOG).read_text().splitlines()[1:]]


def test_a_head_is_trained_shown_and_used(cli, models):
    result = cli(
        *TINY, "--head-kind", "linear", "--acceptance-weight", "3", "--allow-code-execution", code=0
    )
    assert models == [("mini", "auto", "auto")]
    assert is_head(HEAD)
    assert logged_steps(HEAD) == ["1", "2", "3"]
    assert not (HEAD / CHECKPOINT).exists()
    recipe = read_description(HEAD)["recipe"]  # the user's values override the task's
    assert (recipe["acceptance_weight"], recipe["steps"], recipe["seed"]) == (3, 3, 5)
    rows = [line.split() for line in result.out.splitlines() if line.startswith("mini-headline ")]
    assert re.search(
        r"^mini-headline: the head of step [123] of 3, \d+ s of steps; .*points above the front,\s"
        r"beside [+-][\d.]+ at step [123](.|\n)*more\s--steps\s(may|are\snot\sshown\sto)\shelp$",
        *(result.out, re.M),
    )
    assert [row[1] for row in rows] == ["head", "target", "static", "static", "draft"]
    assert all(row[-1] == "ROUGE-2" for row in rows)
    assert f"Heads of mini in {HEAD.parent}" in result.out
    assert "note: mini-headline: not shown to be above the randomised static front" in result.err
    assert "n = 12; " in result.err and "points would be shown in 80 % of such" in result.err
    assert "mini-headline on mini, linear head: step 3, reward" in result.err
    advice, _, used = result.out.splitlines()[-1].partition(": specbench ")
    assert advice == f"{HEAD} is not shown to beat mixtures of sd and the draft"
    assert used.endswith("--task mini-headline --allow-code-execution --set weight=0")
    method = ("--method", "sd,static,diversed", "--head", str(HEAD))
    run = cli(
        *shlex.split(used), *method, "--limit", "1", "--max-new-tokens", "4", "-o", "run", code=0
    )
    assert "diversed" in run.out and "static w=0" in run.out
    assert "in training it was not shown to be above the randomised static front" in run.err


def test_a_head_above_the_front_is_advised(cli, models, monkeypatch):
    def distance(head, static):
        return Interval(0.02, 0.01, 0.03, len(head.quality))

    monkeypatch.setattr(front, "distance", distance)
    result = cli(*TINY, "--temperature", "0.7", "--no-progress")
    assert "above the randomised static front (2.0 [1.0, 3.0] points, n = 12)" in result.err
    used = result.out.splitlines()[-1].removeprefix("use it: specbench ")
    assert "--temperature 0.7" in used
    assert used.endswith(f"--task mini-headline --head {HEAD}")
    assert cli(*shlex.split(used), "--dry-run").code == 0


def test_only_a_reward_that_executes_code_needs_permission(tmp_path):
    for reward in ("agreement", "metric"):
        job = HeadJob(load_task("mini-code"), HeadRecipe(reward=reward), tmp_path / "head")
        with nullcontext() if reward == "agreement" else pytest.raises(UsageError, match="execut"):
            assert _waits(job, resume=False, may_execute=False)


def test_a_refusal_of_one_task_leaves_the_others(cli, models, monkeypatch):
    honest = front.require_trade

    def require_trade(static, task, metric):
        if task == "mini-news":
            raise front.NothingToLearnError("mini-news: the target is not measurably better")
        honest(static, task, metric)

    monkeypatch.setattr(front, "require_trade", require_trade)
    result = cli("train", "-t", "mini-news,mini-headline", *TINY[3:], "--no-progress", code=2)
    assert result.err.splitlines()[-1].startswith("error: mini-news: the target is not measurably")
    assert is_head(HEAD) and not (HEAD.parent / "mini-news").exists()
    assert "mini-headline" in result.out and "mini-news  " not in result.out


def test_a_head_that_diverges_leaves_other_tasks(cli, models, monkeypatch):
    honest = Training.learn

    def learn(training, *texts):
        if training.task.name == "mini-news":
            raise RunError("the loss is not finite")
        return honest(training, *texts)

    monkeypatch.setattr(Training, "learn", learn)
    result = cli("train", "-t", "mini-news,mini-headline", *TINY[3:], "--no-progress", code=1)
    assert "mini-news: the loss is not finite" in result.err and is_head(HEAD)


def test_memory_is_compared_before_models_load(cli, models, monkeypatch):
    from specbench.engine import memory

    asked: list[tuple[int, ...]] = []

    def check(spec, how, *tokens, rows, purpose):
        assert purpose == "to train a head"
        asked.append((*tokens, rows))
        raise UsageError("mini needs 99 GiB to train a head")

    monkeypatch.setattr(memory, "check_memory", check)
    task = load_task("mini-headline")
    prompt = int(max(len(e.prompt) for e in task.examples("train", 6, 5)) / 2.5)
    for more, sizes in (
        ((), (prompt, task.max_new_tokens, 128)),
        (("--max-prompt-tokens", "20"), (20, task.max_new_tokens, 128)),
        (("--rollouts", "200"), (prompt, task.max_new_tokens, 200)),
    ):
        assert cli(*TINY, *more).code == 2
        assert asked.pop() == sizes
    assert models == []


def long_ones(monkeypatch: pytest.MonkeyPatch, which: Callable[[int], bool]) -> None:
    """Make some of the task's prompts longer than any limit."""
    task = load_task("mini-headline")
    honest = task.source

    def examples(split: str, limit: int | None, seed: int) -> list[Any]:
        return [
            replace(e, prompt=f"{i} " + "word " * 600, passage="") if which(i) else e
            for i, e in enumerate(honest.examples(split, limit, seed))
        ]

    source = SimpleNamespace(examples=examples, provenance=honest.provenance)
    monkeypatch.setattr(Tasks, "tasks", lambda _: [replace(task, source=source)])


def test_a_family_has_one_head_per_target_and_skips_long_prompts(cli, models, monkeypatch):
    with monkeypatch.context() as patch:
        long_ones(patch, lambda i: i % 4 == 3)
        result = cli(*TINY, "--target-acceptance", "0.9,0.95", "-o", "family")
    assert result.code == 0
    for name in ("acceptance-0.9", "acceptance-0.95"):
        described = read_description(Path("family") / name / "mini-headline")
        assert described["left_out"] == {"train": 1, "held-out": 6}
        assert described["worth"]["n"] == 18
    (skipped,) = (line for line in result.err.splitlines() if "skipped" in line)
    assert skipped.startswith("note: mini-headline: 1 training and 6 held-out examples are skipped")
    assert (
        "2 features heads on mini: step 1, mini-headline at acceptance 0.95: reward" in result.err
    )
    advice = [line for line in result.out.splitlines() if "is not shown to beat" in line]
    assert [line.split()[0] for line in advice] == [
        f"family/acceptance-{goal}/mini-headline" for goal in ("0.9", "0.95")
    ]
    used = advice[-1].partition(": specbench ")[2]
    assert cli(*shlex.split(used), "--dry-run").code == 0


def test_heads_that_differ_in_seed_share_a_front_and_equal_lone_ones(cli, models, monkeypatch):
    measure, fronts = verifier.Training.measure, list[int]()

    def counted(training, heads, *others):
        fronts.extend([1] * (len(heads) == len(front.WEIGHTS)))
        return measure(training, heads, *others)

    monkeypatch.setattr(verifier.Training, "measure", counted)
    *options, flag, first = [part if part != "3" else "2" for part in TINY]  # steps
    assert cli(*options, flag, "6", "-o", "alone").code == 0
    both = (*options, flag, f"{first},6", "-o", "both")
    fronts.clear()
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "reward", rewards(0.5, KeyboardInterrupt()))
        assert cli(*both).code == 130
    assert (Path("both/seed-6/mini-headline") / CHECKPOINT).exists()
    result = cli(*both, "--resume", code=0)
    assert fronts == [1]
    assert "2 features heads on mini: step 1, mini-headline, seed 6: reward" in result.err
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "reward", rewards(0.5, KeyboardInterrupt()))
        assert cli(*options, flag, first, "-o", "later/seed-5").code == 130
    fronts.clear()  # a resumed training has measured its front for the others
    assert cli(*options, flag, f"{first},6", "-o", "later", "--resume").code == 0
    assert fronts == []
    folders = ("alone", "both/seed-6", "both/seed-5")
    alone, same, other = (load_file(Path(name) / "mini-headline" / WEIGHTS) for name in folders)
    torch.testing.assert_close(alone, same)  # but for rounding, since the batches are others
    assert not all(torch.equal(alone[name], other[name]) for name in alone)


@pytest.mark.parametrize(
    ("target", "why"),
    [("0.2", "strict verification already accepts about 0."), ("0.99", "more --steps")],
)
def test_missed_targets_and_steps_without_gradient_are_noted(cli, models, monkeypatch, target, why):
    flat, honest, calls = rewards(0.0, 0.0), verifier.reward, []

    def reward(*arguments):
        calls.append(1)
        return flat(*arguments) if len(calls) < 3 else honest(*arguments)

    monkeypatch.setattr(verifier, "reward", reward)
    unmoved = ("--learning-rate", "1e-6", "--no-progress")
    result = cli(*TINY, "--target-acceptance", target, *unmoved)
    measured, step, last, worthless, silent, missed = result.err.splitlines()
    assert "static weights on 12 of 12 prompts" in measured
    assert re.search(r"mini-headline: a step takes [\d.]+ s, and 2 are left$", step)
    assert "last, the final measurement" in last
    assert "not shown to be above the randomised static front" in worthless
    assert is_head(HEAD)  # a single head is stored where `run` finds it
    assert "all rollouts had the same reward in 2 of 3 steps" in silent
    assert "held-out acceptance is 0." in missed
    assert f"target {target}" in missed and why in missed


def test_after_ctrl_c_it_resumes_unless_values_differ(cli, models, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "reward", rewards(0.5, KeyboardInterrupt()))
        stopped = cli(*TINY)
    assert stopped.code == 130
    assert f"every finished step is in {HEAD};" in stopped.err and "--resume" in stopped.err
    assert logged_steps(HEAD) == ["1"]
    # Different values are refused before any training.
    both = [part if part != "mini-headline" else "mini-code,mini-headline" for part in TINY]
    other = cli(*both, "--acceptance-weight", "0.5", "--resume")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "acceptance_weight 0.8 instead of 0.5" in other.err
    assert not HEAD.with_name("mini-code").exists()
    assert cli(*TINY, "--resume").code == 0
    assert is_head(HEAD)
    assert logged_steps(HEAD) == ["1", "2", "3"]
    # A finished head is skipped.
    weights, loaded = (HEAD / WEIGHTS).read_bytes(), len(models)
    again = cli(*TINY, "--resume", code=0)
    assert f"note: {HEAD} is already trained\n" in again.err
    assert "mini-headline" in again.out
    assert ((HEAD / WEIGHTS).read_bytes(), len(models)) == (weights, loaded)
