"""pass@k: the chance that at least one of k programs passes (Chen et al., arXiv 2107.03374)."""

from __future__ import annotations

from math import comb

# The k that are shown where there are as many repeats; that of all repeats is shown beside them.
BUDGETS = (2, 5, 10, 20, 50, 100)


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """Return the unbiased estimate: the share of all subsets of k programs with one that passes.

    Args:
        programs: Programs sampled for one prompt, at least ``k``.
        passed: Those of them that passed.
        k: Size of the subsets.
    """
    return 1 - comb(programs - passed, k) / comb(programs, k)
