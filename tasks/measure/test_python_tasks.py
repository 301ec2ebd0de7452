"""The bundled tasks of source code: unseen packages, and prompts that are parts of files."""

import pytest
from pretraining.sources import digest, read_package, version_of

from specbench.engine.pairs import PAIRS_FILE
from specbench.errors import UsageError
from specbench.schema import load_toml
from specbench.tasks.metrics import score
from specbench.tasks.task import load_task

PACKAGES = load_toml(PAIRS_FILE.parent / "python" / "recipe.toml", "recipe")["packages"]
TASKS = {"python-line": 500, "python-block": 500, "python-docstring": 500}


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_of_unseen_packages_and_references_have_the_best_score(name):
    task = load_task(name)
    for split, packages in (("test", "test"), ("train", "choice"), ("held-out", "choice")):
        examples = task.examples(split, None)
        assert {e.category for e in examples} == set(PACKAGES[packages])
        assert all(e.reference and e.prompt == e.prompt.rstrip() for e in examples)
    tested = {(e.prompt, e.reference) for e in task.examples("test", None)}
    assert len(tested) == TASKS[name]
    task = load_task(name)
    for example in task.examples("test", 100):
        assert score(task.metric or "", example.reference or "", example) == pytest.approx(1)
        assert not any(stop in (example.reference or "") for stop in task.stop)
        if name == "python-block":
            assert example.prompt.endswith(example.code_prefix.rsplit("\n", 1)[-1].rstrip())


@pytest.mark.parametrize("name", ["python-line", "python-block"])
def test_prompt_and_reference_are_a_part_of_their_file(name):
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
        part, whole = (  # without spaces at line ends
            "\n".join(line.rstrip() for line in text.split("\n"))
            for text in (example.prompt + (example.reference or ""), file)
        )
        assert part in whole
