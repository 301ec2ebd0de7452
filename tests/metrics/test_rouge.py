"""ROUGE against n-grams and subsequences counted by hand."""

import json
import os
from pathlib import Path

import pytest

from specbench.example import Example
from specbench.metrics import score
from specbench.metrics.rouge import rouge2

ROUGES = ("rouge1", "rouge2", "rougeL")


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        # 3 shared bigrams (the cat, on the, the mat): 3 of 4 and 3 of 5.
        ("the cat on the mat", "the cat sat on the mat", 2 * 3 / (4 + 5)),
        # A bigram counts as often as it is in both: a b twice, b a once; 3 of 5 and 3 of 3.
        ("a b a b a b", "a b a b", 2 * 3 / (5 + 3)),
        ("The CAT, sat!", "the cat sat", 1.0),
        # Stems are compared: dog run home.
        ("dogs running home", "dog runs home", 1.0),
        ("the cat", "cat the", 0.0),
        ("cat", "cat", 0.0),
        ("", "the cat", 0.0),
    ],
)
def test_f1_of_bigrams(text: str, reference: str, expected: float) -> None:
    assert rouge2(text, Example("e", "prompt", reference)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("rouge1", 2 * 6 / (6 + 6)),  # all words
        ("rouge2", 2 * 4 / (5 + 5)),  # all but on the, mat the
        ("rougeL", 2 * 4 / (6 + 6)),  # the cat sat on
    ],
)
def test_each_kind_counts_its_own(metric: str, expected: float) -> None:
    example = Example("e", "prompt", "the mat the cat sat on")
    assert score(metric, "the cat sat on the mat", example) == pytest.approx(expected, abs=1e-12)


def test_line_breaks_are_spaces() -> None:
    example = Example("e", "prompt", "the cat sat on the mat")
    assert score("rougeL", "the cat\nsat on\nthe mat", example) == 1


@pytest.mark.parametrize("metric", ROUGES)
def test_only_the_first_32_words_of_the_text_count(metric: str) -> None:
    words = [f"w{i}" for i in range(40)]
    example = Example("e", "prompt", " ".join(words[:32]))
    start, longer = " ".join(words[:32]), "  \n".join(words)
    assert score(f"{metric}-32", longer, example) == 1
    assert score(metric, longer, example) < 1
    assert score(f"{metric}-32", start, example) == score(metric, start, example) == 1
    assert score(f"{metric}-32", " ".join(words[8:]), example) < 1
    # Punctuation is no word to rouge-score but belongs to one here.
    assert score(f"{metric}-32", "- " * 8 + start, example) < 1
    # The reference is never cut.
    assert score(f"{metric}-32", longer, Example("e", "prompt", longer)) < 1


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
@pytest.mark.parametrize(("task", "column"), [("xsum", "summary"), ("cnndm", "highlights")])
def test_real_references_with_themselves_score_1(task: str, column: str) -> None:
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / task / "test.jsonl"
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    examples = [Example("e", "prompt", row[column]) for row in rows][:60]
    for metric in ROUGES:
        assert all(score(metric, e.reference or "", e) == 1 for e in examples)
    short = [e for e in examples if len((e.reference or "").split()) <= 32]
    assert short
    assert all(score("rouge2-32", e.reference or "", e) == 1 for e in short)
    long = [e for e in examples if e not in short]
    assert all(score("rouge2-32", e.reference or "", e) < 1 for e in long)
