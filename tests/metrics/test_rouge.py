"""ROUGE-2 against bigrams counted by hand."""

import pytest

from specbench.metrics.rouge import rouge2
from specbench.tasks.example import Example


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
