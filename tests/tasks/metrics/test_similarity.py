"""Similarity of code: edit similarity, exact match, and whether a completion parses."""

import pytest

from specbench.tasks.example import Example
from specbench.tasks.metrics import score

EXAMPLE = Example("e", "x = ", reference=" f(1)", code_prefix="def g():\n    x =")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(1)\n", 1.0),
        ("", 0.0),
        ("f(2)", 0.75),  # one deletion and one insertion among eight characters
        ("f(1) + 1", 2 * 4 / 12),
    ],
)
def test_edit_similarity_counts_insertions_and_deletions(text: str, expected: float) -> None:
    assert score("edit-similarity", text, EXAMPLE) == pytest.approx(expected)


def test_exact_match_ignores_surrounding_space_only() -> None:
    assert score("exact-match", "f(1) ", EXAMPLE) == 1
    assert score("exact-match", "f( 1)", EXAMPLE) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [(" f(1)\n    return x", 1.0), (" f(1", 0.0), (" 1\n  return x", 0.0), (" \0", 0.0)],
)
def test_a_completion_parses_with_its_prefix(text: str, expected: float) -> None:
    assert score("parses", text, EXAMPLE) == expected
