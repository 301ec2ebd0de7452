"""The tasks on Python source code: excerpts of the packages in the recipe's held-out splits."""

import pytest
from pretraining.sources import digest, read_package, version_of

from specbench.engine.pairs import PAIRS_FILE
from specbench.errors import UsageError
from specbench.schema import load_toml
from specbench.tasks.example import Example
from specbench.tasks.metrics import score
from specbench.tasks.task import load_task

PACKAGES = load_toml(PAIRS_FILE.parent / "python" / "recipe.toml", "recipe")["packages"]
TASKS = {"python-line": 500, "python-block": 500, "python-docstring": 500}


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_of_packages_that_the_models_have_not_seen(name: str) -> None:
    task = load_task(name)
    for split, packages in (("test", "test"), ("train", "choice"), ("held-out", "choice")):
        examples = task.examples(split, None)
        assert {e.category for e in examples} == set(PACKAGES[packages])
        assert all(e.reference and e.prompt == e.prompt.rstrip() for e in examples)
    tested = {(e.prompt, e.reference) for e in task.examples("test", None)}
    assert len(tested) == TASKS[name]


@pytest.mark.parametrize("name", TASKS)
def test_references_have_the_best_score_and_end_where_a_text_is_stopped(name: str) -> None:
    task = load_task(name)
    for example in task.examples("test", 100):
        assert score(task.metric or "", example.reference or "", example) == pytest.approx(1)
        assert not any(stop in (example.reference or "") for stop in task.stop)
        if name == "python-block":
            assert example.prompt.endswith(last_line(example.code_prefix))


@pytest.mark.parametrize("name", ["python-line", "python-block"])
def test_prompt_and_reference_are_a_part_of_their_file(name: str) -> None:
    """As far as the same versions of the packages are installed."""
    texts: dict[str, dict[str, str]] = {}
    for package, wanted in PACKAGES["test"].items():
        try:
            sources = read_package(package)
        except UsageError:
            continue
        if f"{version_of(package)} {digest(sources)}" == wanted:
            texts[package] = {source.path: source.text for source in sources}
    if not texts:
        pytest.skip("no package of the recipe is installed in its version")
    examples = [e for e in load_task(name).examples("test", None) if e.category in texts]
    for example in examples:
        file = texts[example.category][example.id.rpartition(":")[0]]
        assert whole(example) in "\n".join(line.rstrip() for line in file.split("\n"))


def whole(example: Example) -> str:
    """Return prompt and reference without spaces at line ends."""
    text = example.prompt + (example.reference or "")
    return "\n".join(line.rstrip() for line in text.split("\n"))


def last_line(text: str) -> str:
    return text.rsplit("\n", 1)[-1].rstrip()


def test_the_file_of_a_bundled_task_is_recorded_without_the_place_of_the_clone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PAIRS_FILE.parents[2])
    task = load_task("python-line")
    task.examples("test", 1)
    file = task.provenance()["splits"]["python-line-test"]["file"]
    assert file == "tasks/python-line-test.jsonl.xz"
