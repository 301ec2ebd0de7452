"""A sample's key is one for all that decides it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.experiment import keys as module
from specbench.experiment.keys import Keys
from specbench.heads.registry import HeadFile
from specbench.tasks.task import Listed

from .test_execute import ROWS, TASK, plan_of

MODELS = {"target": "t0", "draft": "d0", "dtype": "float32"}


def key(task: Any = TASK, models: Any = MODELS, engine: str = "eager", **settings: Any) -> str:
    plan = plan_of(["sd"], task, **settings)
    return Keys(plan, models, engine).of(next(plan.steps()))


def test_the_same_sample_has_the_same_key() -> None:
    assert key() == key()
    # Neither the number of repeats decides a sample nor what an engine that cannot fail falls to.
    assert key() == key(repeats=3) == key(engine_fallback=True)


def test_an_engine_that_may_fall_back_is_not_one_that_may_not() -> None:
    assert key(engine="graph", engine_fallback=True) != key(engine="graph")


CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 3},
    "limit": {"max_new_tokens": 5},
    "batch": {"batch_size": 2},
    "engine": {"engine": "compile"},
    "target": {"models": {**MODELS, "target": "t1"}},
    "dtype": {"models": {**MODELS, "dtype": "bfloat16"}},
    "task version": {"task": replace(TASK, version="2")},
    "metric": {"task": replace(TASK, metrics=("rouge1",))},
    "stop": {"task": replace(TASK, stop=())},
    "prompt": {"task": replace(TASK, source=Listed((replace(ROWS[0], prompt="two"),)))},
    "reference": {"task": replace(TASK, source=Listed((replace(ROWS[0], reference="#### 9"),)))},
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_decides_a_sample_changes_its_key(what: str) -> None:
    assert key(**CHANGES[what]) != key()


def test_steps_of_one_plan_have_keys_of_their_own() -> None:
    plan = plan_of(["autoregressive", "sd", "lossy"], repeats=2)
    keys = Keys(plan, MODELS, "eager")
    found = [keys.of(step) for step in plan.steps()]
    assert len(set(found)) == len(found) == 18


def test_another_version_and_another_head_make_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    monkeypatch.setattr(module, "__version__", "99")
    assert key() != before

    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "head.json").write_bytes(content)
    plan = plan_of(["sd"])
    step = next(plan.steps())
    first, same, other = (
        Keys(plan, MODELS, "eager").of(
            replace(
                step,
                cell=replace(step.cell, parameters=(("head", HeadFile("h", tmp_path / name)),)),
            )
        )
        for name in "abc"
    )
    assert first == same != other
