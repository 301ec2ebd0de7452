"""pass@k against the enumeration of all subsets."""

from itertools import combinations

import pytest

from specbench.metrics.passk import pass_at_k


@pytest.mark.parametrize("programs", [1, 2, 5, 7])
def test_it_is_the_share_of_subsets_with_a_pass(programs: int) -> None:
    for passed in range(programs + 1):
        results = [True] * passed + [False] * (programs - passed)
        for k in range(1, programs + 1):
            subsets = list(combinations(results, k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(programs, passed, k) == pytest.approx(share, abs=1e-12)


def test_many_programs_keep_their_precision() -> None:
    assert pass_at_k(1000, 1, 100) == pytest.approx(0.1, abs=1e-12)
    assert pass_at_k(1000, 0, 100) == 0
