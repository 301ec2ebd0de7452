"""The bundled tasks: correct facts in every style, and disjoint splits."""

from collections import Counter

import pytest

from specbench.tasks.metrics import score
from specbench.tasks.mini import GENERATORS, MODULES, generate, split_of
from specbench.tasks.task import load_task

STYLES = ("plain", "target", "draft")


@pytest.mark.parametrize("name", MODULES)
def test_an_example_depends_only_on_split_and_index(name):
    first = [GENERATORS[name]("test", index) for index in range(5)]
    assert [GENERATORS[name]("test", index) for index in reversed(range(5))] == first[::-1]
    assert len({example.prompt for example in first}) == 5


@pytest.mark.parametrize("name", MODULES)
def test_no_test_prompt_occurs_in_training(name):
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
    target, draft = (
        [generate(name, "train", i, style) for i in range(60)] for style in ("target", "draft")
    )
    assert [e.prompt for e in target] == [e.prompt for e in draft]
    same = sum(a.reference == b.reference for a, b in zip(target, draft, strict=True))
    assert same < 10


def test_a_style_prefers_its_phrasings():
    first = Counter(
        (style, generate("mini-math", "train", i, style).reference.split(",")[0])
        for style in ("target", "draft")
        for i in range(200)
    )
    assert first["target", " First"] > 2 * first["draft", " First"]
    assert first["draft", " Step one"] > 2 * first["target", " Step one"]


def test_every_reference_fits_the_token_limit(mini):
    for name in MODULES:
        lengths = [
            len(mini.tokenizer(generate(name, "test", i).reference)["input_ids"])
            for i in range(200)
        ]
        assert max(lengths) < load_task(name).max_new_tokens
