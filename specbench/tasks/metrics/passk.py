"""pass@k: probability that at least one of k programs passes (Chen et al., arXiv:2107.03374)."""

from __future__ import annotations

from math import comb

# Values of k to show, up to the number of repeats, which is also shown.
BUDGETS = (2, 5, 10, 20, 50, 100)


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """Return the unbiased estimate: the fraction of k-subsets with a program that passes.

    Args:
        programs: Number of programs sampled for one prompt, at least ``k``.
        passed: Number of programs that passed.
        k: Size of the subsets.
    """
    return 1 - comb(programs - passed, k) / comb(programs, k)
