"""The bundled tasks: generated ones with correct facts, and excerpts of source code."""

from collections import Counter

import pytest

from specbench.engine.pairs import PAIRS_FILE
from specbench.tasks.metrics import score
from specbench.tasks.mini import GENERATORS, MODULES, generate, split_of
from specbench.tasks.task import load_task

STYLES = ("plain", "target", "draft")


@pytest.mark.parametrize("name", MODULES)
def test_an_example_depends_on_split_and_index_and_no_test_prompt_is_one_of_training(name):
    first = [GENERATORS[name]("test", index) for index in range(5)]
    assert [GENERATORS[name]("test", index) for index in reversed(range(5))] == first[::-1]
    assert len({example.prompt for example in first}) == 5
    prompts = {s: {generate(name, s, i).prompt for i in range(400)} for s in ("train", "test")}
    assert not prompts["train"] & prompts["test"]
    assert all(split_of(prompt) == split for split in prompts for prompt in prompts[split])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["mini-math", "mini-code"])
def test_answers_are_right_in_every_style(name, style):
    metric = load_task(name).metric
    for index in range(8 if name == "mini-code" else 50):  # programs run in the sandbox
        example = generate(name, "train", index, style)
        assert score(metric, example.reference, example) == 1


@pytest.mark.parametrize("style", ["target", "draft"])
@pytest.mark.parametrize("name", ["mini-news", "mini-headline"])
def test_style_keeps_most_bigrams_of_the_reference(name, style):
    scores = [
        score("rouge2", generate(name, "train", i, style).reference, generate(name, "train", i))
        for i in range(50)
    ]
    assert sum(scores) / len(scores) > 0.6


@pytest.mark.parametrize("name", MODULES)
def test_the_two_models_styles_differ_and_the_facts_do_not(name):
    pairs = [[generate(name, "train", i, style) for style in STYLES[1:]] for i in range(60)]
    assert all(target.prompt == draft.prompt for target, draft in pairs)
    assert sum(target.reference == draft.reference for target, draft in pairs) < 10


def test_a_style_prefers_its_phrasings_and_every_reference_fits_the_limit(mini):
    first = Counter(
        (style, generate("mini-math", "train", i, style).reference.split(",")[0])
        for style in ("target", "draft")
        for i in range(200)
    )
    assert first["target", " First"] > 2 * first["draft", " First"]
    assert first["draft", " Step one"] > 2 * first["target", " Step one"]
    for name in MODULES:
        texts = [generate(name, "test", i).reference for i in range(200)]
        assert max(map(len, mini.tokenizer(texts)["input_ids"])) < load_task(name).max_new_tokens


def test_the_file_of_a_bundled_task_is_recorded_without_the_place_of_the_clone(monkeypatch):
    monkeypatch.chdir(PAIRS_FILE.parents[2])
    task = load_task("python-line")
    task.examples("test", 1)
    file = task.provenance()["splits"]["python-line-test"]["file"]
    assert file == "tasks/python-line-test.jsonl.xz"
