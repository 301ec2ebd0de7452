"""The user's own functions: loaded from a file or an installed package, and what is refused."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from specbench import plugins
from specbench.errors import UsageError
from specbench.experiment.planning import require_own_columns
from specbench.methods import get_method
from specbench.methods.registry import from_columns, to_columns
from specbench.tasks.example import Example
from specbench.tasks.metrics import get_metric, score

from .told import DATA, refusals

EXAMPLE = Example("1", "a prompt", "a reference")
RULE = (DATA / "own/rule.txt").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside.py").write_text("KEEP = 3\n")
    (tmp_path / "mine.py").write_text(RULE)
    return tmp_path


def test_a_function_is_loaded_with_modules_beside_it_and_an_edited_one_is_another(folder):
    method = get_method("./mine.py:accept_all")
    told = "mine.py:accept_all", "Accept every draft.", "mine.py"
    assert (method.name, method.summary, method.source) == told
    assert method.resolve({"keep": "3"}) == {"keep": 3.0, "form": "a"}
    assert plugins.short_name(method.name) == "accept_all"
    assert get_method("mine.py:accept_all").rule is method.rule  # executed once
    before = get_method("mine.py:accept_all")
    (folder / "mine.py").write_text(RULE.replace("keep: float = 2", "keep: float = 4"))
    after = get_method("mine.py:accept_all")
    assert after.digest != before.digest
    assert (before.resolve({})["keep"], after.resolve({})["keep"]) == (2, 4)


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
def test_the_kind_of_a_parameter_follows_its_annotation(folder, first):
    (folder / "kinds.py").write_text(
        f"{first}from typing import Literal\nfrom specbench.methods import Parameter, rule\n"
        "@rule(Parameter('k', 3, ''))\n"
        "def f(at, x, *, k: int, s: float = 1, on: bool = False, m: Literal['a', 'b'] = 'a', "
        "n: Literal[1, 2] = 2): pass\n"
    )
    method = get_method("kinds.py:f")
    assert [p.kind for p in method.parameters] == [int, float, bool, str, int]
    values = method.resolve({"k": "1", "on": "true", "m": "b", "n": "1"})
    assert values == {"k": 1, "s": 1.0, "on": True, "m": "b", "n": 1}
    assert [type(value) for value in values.values()] == [int, float, bool, str, int]
    assert method.resolve(from_columns(to_columns(values))) == values
    for wrong in ({"k": "1.5"}, {"on": "maybe"}, {"m": "c"}, {"n": "3"}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} cannot be"):
            method.resolve(wrong)


WRONG = (
    *(None, "def g(): pass", "f = 3", "def f(:", "\nimport nothing_like_it", "\n\n1 / 0"),
    *("raise SystemExit('bye')", "class Gone(BaseException): pass\nraise Gone"),
    *("def f(at): pass", "def f(at, x, **more): pass", "def f(at, x, *, keep): pass"),
    *(f"def f(at, x, *, keep{kind}): pass" for kind in ("=(1, 2)", ": int = 2.5", ": bool = 1")),
    "from typing import *\ndef f(at, x, *, m: Literal['a', 'b'] = 'c'): pass",
    *(
        f"from specbench.methods import *\n@rule(Parameter({fields}))\ndef f(at, x, *, k: int): 0"
        for fields in ("'k', 2.5, ''", "'k', 'a', '', str", "'kep', 1, ''")
    ),
    "from specbench.methods import *\n@rule(control='adaptive')\ndef f(at, x): 0",
    "from specbench.methods import *\n@rule\ndef f(at, x): 0",
)


def test_a_mistake_is_one_located_sentence(stored):
    messages = []
    for number, content in enumerate(WRONG):
        if content is not None:
            Path(f"wrong-{number}.py").write_text(content)
        message = refusals(lambda name=f"wrong-{number}.py:f": get_method(name))
        assert f"wrong-{number}.py" in message and message.count("\n") == 1
        messages.append(f"{content!r}\n{message}")
    stored(*messages)


METRICS = (
    *("def f(text): return 1", "def f(text, reference):\n    return text[99]"),
    *(f"def f(text, reference): return {value}" for value in ("1.5", "float('nan')", "None")),
    "def rouge1(text, reference): return 1",
)


def test_a_mistake_in_a_metric_is_one_located_sentence(stored):
    messages = []
    for number, content in enumerate(METRICS):
        Path(f"wrong-{number}.py").write_text(content)
        metric = f"wrong-{number}.py:{'rouge1' if 'rouge1' in content else 'f'}"
        message = refusals(lambda metric=metric: score(metric, "text", EXAMPLE))
        assert message.count("\n") == 1
        messages.append(f"{content!r}\n{message}")
    stored(*messages)


def test_a_metric_gets_the_reference_and_a_declared_one_the_example():
    Path("mine.py").write_text("def same(text, reference): return text == reference\n")
    metric = get_metric("mine.py:same")
    assert (metric.unit, metric.needs, metric.executes) == ("same", "reference", False)
    assert score("mine.py:same", EXAMPLE.reference or "", EXAMPLE) == 1
    assert score("mine.py:same", "other", EXAMPLE) == 0
    Path("mine.py").write_text(
        "from specbench.tasks.metrics import metric\n\n"
        "@metric(needs='greedy')\ndef same(text, example): return text == example.greedy\n"
    )
    assert get_metric("mine.py:same").needs == "greedy"
    assert score("mine.py:same", "a text", replace(EXAMPLE, greedy="a text")) == 1
    with pytest.raises(UsageError, match="needs `greedy`"):
        score("mine.py:same", "a text", replace(EXAMPLE, greedy=None))


def test_metrics_that_share_a_column_are_refused(stored):
    require_own_columns(["accuracy", "rouge1", "a.py:length"])
    shared = (["a.py:rounds"], ["a.py:status"], ["a.py:length", "b.py:length"], ["a.py:rouge1"])
    stored(refusals(*(partial(require_own_columns, metrics) for metrics in shared)))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["both_temperature", "session", "draft_length", "of", "length"])
def test_a_parameter_cannot_have_a_name_that_means_something_else(name):
    Path("warm.py").write_text(f"def warm(at, x, *, {name}=0.6): ...\n")
    with pytest.raises(UsageError, match=f"`{name}` means something else in runs: rename it"):
        get_method("warm.py:warm")
