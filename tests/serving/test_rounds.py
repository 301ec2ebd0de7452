"""The rounds that vLLM with specbench's plugin tells, which may be anything."""

from typing import Any

import pytest

from specbench.decoding.records import NO_WEIGHT, RoundRecord
from specbench.errors import UsageError
from specbench.serving.delivered import read_rounds


def row(accepted: int, proposed: int = 2, **changes: Any) -> list[Any]:
    """Return a round of two drafts, 7 and 8, as ``verify`` reports it."""
    values = {
        "counts": [3 + accepted, accepted, proposed],
        "new": [7, 8, 9],
        "checks": [0, 1, 0, 0],
        "drafted": [7, 8],
        "agreed": [1, 0],
        "accept": [1, 0.5],
        "expected": [0.9, 0.4],
        "weights": [NO_WEIGHT, NO_WEIGHT],
    }
    return [number for part in (values | changes).values() for number in part]


def test_rounds_stop_where_the_text_ends() -> None:
    whole, rejected = RoundRecord(2, 2, 3, None, (True, False), (0.9, 0.4)), row(1)
    assert read_rounds([row(2), rejected], 6) == (
        whole,
        RoundRecord(2, 1, 2, 8, (True,), (0.9, 0.4)),
    )
    cut = RoundRecord(1, 1, 1, None, (True,), (0.9,))
    assert read_rounds([row(2), rejected, row(2)], 5) == (whole, cut)
    assert read_rounds([row(2)], 1) == ()


@pytest.mark.parametrize(
    "rounds",
    [
        None,
        {"rounds": []},
        [[]],
        [row(1)[:-1]],
        [[True, *row(1)[1:]]],
        [["1", *row(1)[1:]]],
        [row(1, drafted=[7, 2**40])],
        [row(1, drafted=[7, -1])],
        [row(1, drafted=[7, 500])],
        [row(2, 1)],
        [row(1, 3)],
        [row(-1)],
        [row(1, expected=[0.9, 1.5])],
        [row(1, weights=[0.5, -3])],
        [row(1, checks=[-1, 1, 0, 0])],
    ],
)
def test_what_is_no_round_is_refused(rounds: Any) -> None:
    with pytest.raises(UsageError, match="the server tells"):
        read_rounds(rounds, 9, vocabulary=500)
