"""ROUGE against n-grams and subsequences counted by hand."""

import json
import os
from pathlib import Path

import pytest

from specbench.tasks.example import Example
from specbench.tasks.metrics import score

ROUGES = ("rouge1", "rouge2", "rougeL")


@pytest.mark.parametrize(
    ("metric", "text", "reference", "expected"),
    [
        # 3 shared bigrams (the cat, on the, the mat): 3 of 4 and 3 of 5.
        ("rouge2", "the cat on the mat", "the cat sat on the mat", 2 * 3 / (4 + 5)),
        # A bigram counts with its smaller frequency: a b twice, b a once; 3 of 5 and 3 of 3.
        ("rouge2", "a b a b a b", "a b a b", 2 * 3 / (5 + 3)),
        ("rouge2", "The CAT, sat!", "the cat sat", 1.0),
        ("rouge2", "dogs running home", "dog runs home", 1.0),  # equal stems
        ("rouge2", "the cat", "cat the", 0.0),
        ("rouge2", "cat", "cat", 0.0),
        ("rouge2", "", "the cat", 0.0),
        ("rouge1", "the cat sat on the mat", "the mat the cat sat on", 1.0),
        # All but on the, mat the.
        ("rouge2", "the cat sat on the mat", "the mat the cat sat on", 2 * 4 / (5 + 5)),
        # The cat sat on.
        ("rougeL", "the cat sat on the mat", "the mat the cat sat on", 2 * 4 / (6 + 6)),
        ("rougeL", "the cat\nsat on\nthe mat", "the cat sat on the mat", 1.0),
    ],
)
def test_f1_by_hand(metric: str, text: str, reference: str, expected: float) -> None:
    found = score(metric, text, Example("e", "prompt", reference))
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ROUGES)
def test_only_the_first_32_words_of_the_text_count(metric: str) -> None:
    words = [f"w{i}" for i in range(40)]
    example = Example("e", "prompt", " ".join(words[:32]))
    start, longer = " ".join(words[:32]), "  \n".join(words)
    assert score(f"{metric}-32", longer, example) == 1
    assert score(metric, longer, example) < 1
    assert score(f"{metric}-32", start, example) == score(metric, start, example) == 1
    assert score(f"{metric}-32", " ".join(words[8:]), example) < 1
    # Punctuation is not a word in rouge-score but counts as one here.
    assert score(f"{metric}-32", "- " * 8 + start, example) < 1
    # The reference is never cut.
    assert score(f"{metric}-32", longer, Example("e", "prompt", longer)) < 1


@pytest.mark.skipif("SPECBENCH_TEST_DATA" not in os.environ, reason="needs the real files")
@pytest.mark.parametrize(("task", "column"), [("xsum", "summary"), ("cnndm", "highlights")])
def test_real_references_with_themselves_score_1(task: str, column: str) -> None:
    path = Path(os.environ["SPECBENCH_TEST_DATA"]) / task / "test.jsonl"
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    examples = [Example("e", "prompt", row[column]) for row in rows][:60]
    lengths = [len(row[column].split()) for row in rows][:60]
    assert min(lengths) <= 32
    for example, length in zip(examples, lengths, strict=True):
        text = example.reference or ""
        assert all(score(metric, text, example) == 1 for metric in ROUGES)
        assert (score("rouge2-32", text, example) == 1) == (length <= 32)
