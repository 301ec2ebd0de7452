"""Which records of a run are priced."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

from specbench.pricing.scores import COLUMNS, OF_TARGET, is_scored, target_texts


def test_a_limit_counts_prompts_with_all_their_repeats() -> None:
    names = product(("sd", "static"), "abc", (0, 1))
    records: list[dict[str, Any]] = [
        {"task": "t", "method": method, "sample_id": name, "repeat": repeat, "token_ids": [1]}
        for method, name, repeat in names
    ]
    chosen = [(r["sample_id"], r["repeat"]) for r in target_texts(records, ["t"], limit=2)]
    assert chosen == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *[("p", column) for column in (["a", 0.5], [0.5], [math.nan, 0.5], [-1, 0.5], None, 5)],
        *[("q", column) for column in ([5, 0.5], [[0.5], [0.5, 0.1]], [[0.5], [0.5]])],
        *[("rank_q", column) for column in ([-5, 1], [1, 10**400], [True, True])],
        ("entropy_p", [-1, 0]),
        ("tv", [math.nan, 0.5]),
    ],
)
def test_scores_of_other_numbers_are_computed_again(name: str, numbers: Any) -> None:
    scores = {column: [0.5, 0.5] for column in COLUMNS}
    of_head = {n: c if n in OF_TARGET else [c] * 2 for n, c in scores.items()}
    assert is_scored(scores, 2) and is_scored(of_head, 2, 2)
    assert not is_scored(scores | {name: numbers}, 2)
    assert not is_scored(None, 2) and not is_scored(of_head, 2) and not is_scored(scores, 2, 2)
