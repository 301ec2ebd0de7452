"""Scoring by name, and the requirements of each metric."""

import subprocess
import sys

import pytest

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics import METRICS, get_metric, score

ANSWERS = {
    "accuracy": ("#### 5", "#### 6"),
    "accuracy-flexible": ("5", "#### 6"),
    "edit-similarity": ("there are #### 5 of them", ""),  # most texts share letters
    "parses": ("1", "("),
    "pass@1": ("def f():\n    return 5", "def f():\n    return 6"),
}
REFERENCE = "there are #### 5 of them"


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_distinguishes_right_from_wrong_and_requires_its_field(metric):
    right, wrong = ANSWERS.get(metric, (REFERENCE, "none at all"))
    tests = ("assert f() == 5",)
    example = Example("e", "prompt", REFERENCE, tests, greedy=REFERENCE, code_prefix="y = 1\n")
    assert score(metric, right, example) == pytest.approx(1.0, abs=1e-12)
    assert score(metric, wrong, example) == 0.0
    assert METRICS[metric].executes == (metric == "pass@1")
    with pytest.raises(UsageError, match=f"`{metric}`.*`{METRICS[metric].needs}`.*`e7`"):
        score(metric, "text", Example("e7", "prompt"))


def test_an_unknown_metric_suggests_the_nearest_or_all():
    for name, told in (("blue", "`bleu`"), ("quality", "`accuracy`.*`bleu`, .*`pass@1`")):
        with pytest.raises(UsageError, match=f"`{name}`.*{told}"):
            get_metric(name)


def test_registry_and_task_files_need_no_heavy_imports():
    heavy = "{'torch', 'transformers', 'pandas', 'numpy', 'nltk', 'rouge_score', 'sacrebleu'}"
    code = (
        "import sys, specbench.tasks.metrics, specbench.tasks.task, specbench.tasks.prompts\n"
        f"print(sorted({heavy} & set(sys.modules)))\n"
        "import specbench.analysis.summary; print('sacrebleu' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["[]", "False"]
