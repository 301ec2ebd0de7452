"""Which records of a run are priced."""

from __future__ import annotations

from itertools import product
from typing import Any

from specbench.price.records import target_texts


def test_a_limit_counts_prompts_with_all_their_repeats() -> None:
    names = product(("sd", "static"), "abc", (0, 1))
    records: list[dict[str, Any]] = [
        {"task": "t", "method": method, "sample_id": name, "repeat": repeat, "token_ids": [1]}
        for method, name, repeat in names
    ]
    chosen = [(r["sample_id"], r["repeat"]) for r in target_texts(records, ["t"], limit=2)]
    assert chosen == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
