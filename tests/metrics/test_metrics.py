"""Scoring by name, and what each metric demands of an example."""

import subprocess
import sys

import pytest

from specbench.errors import UsageError
from specbench.example import Example
from specbench.metrics import METRICS, get_metric, score


@pytest.mark.parametrize(
    ("metric", "right", "wrong"),
    [
        ("accuracy", "#### 5", "#### 6"),
        ("accuracy-flexible", "5", "#### 6"),
        ("rouge1", "there are #### 5 of them", "none at all"),
        ("rouge2", "there are #### 5 of them", "none at all"),
        ("rougeL", "there are #### 5 of them", "none at all"),
        ("rouge1-32", "there are #### 5 of them", "none at all"),
        ("rouge2-32", "there are #### 5 of them", "none at all"),
        ("rougeL-32", "there are #### 5 of them", "none at all"),
        ("bleu", "there are #### 5 of them", "none at all"),
        ("pass@1", "def f():\n    return 5", "def f():\n    return 6"),
    ],
)
def test_each_metric_tells_right_from_wrong(metric: str, right: str, wrong: str) -> None:
    reference = "there are #### 5 of them"
    example = Example("e", "prompt", reference, ("assert f() == 5",))
    assert score(metric, right, example) == pytest.approx(1.0, abs=1e-12)
    assert score(metric, wrong, example) == 0.0


def test_unknown_metric_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"`blue`.*`accuracy`.*`bleu`, `pass@1`"):
        get_metric("blue")


def test_an_example_without_anything_to_compare_with_is_refused() -> None:
    for metric, missing in [
        ("accuracy", "reference"),
        ("rouge2", "reference"),
        ("pass@1", "tests"),
    ]:
        with pytest.raises(UsageError, match=f"`{metric}`.*`{missing}`.*`e7`"):
            score(metric, "text", Example("e7", "prompt"))


def test_each_metric_is_known_by_its_name_and_one_executes_code() -> None:
    assert all(metric.name == name and callable(metric.load()) for name, metric in METRICS.items())
    assert [name for name, metric in METRICS.items() if metric.executes] == ["pass@1"]


def test_registry_and_task_files_need_no_heavy_imports() -> None:
    heavy = "{'torch', 'transformers', 'pandas', 'numpy', 'nltk', 'rouge_score', 'sacrebleu'}"
    code = (
        "import sys, specbench.metrics, specbench.tasks.task, specbench.tasks.prompts\n"
        f"print(sorted({heavy} & set(sys.modules)))\n"
        "import specbench.analysis.summary; print('sacrebleu' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["[]", "False"]
