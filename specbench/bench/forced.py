"""Forced acceptance: every drafted token is accepted with one probability, whatever models say.

What is forced is the decision alone. The rule is computed all the same, so that a round costs what
it costs, and time can be drawn against acceptance for a pair that nobody trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.generation import utils

from specbench.decoding.round import Verify
from specbench.methods import Positions, Verdict

DECISION = "_speculative_sampling"  # the function of Transformers that accepts drafts


class CannotForceError(Exception):
    """This version of Transformers decides elsewhere."""


def forced(verify: Verify, rate: float) -> Verify:
    """Return the rule with another acceptance.

    Args:
        verify: The rule, with its parameters bound.
        rate: Probability of accepting a drafted token.
    """

    def constantly(at: Positions, x: Tensor) -> Verdict:
        verdict = verify(at, x)
        # Made of the rule's own number, which a compiler would otherwise not compute any more.
        return verdict._replace(accept=verdict.accept.clamp(rate, rate))

    return constantly


@contextmanager
def forced_in_transformers(
    rate: float | None, chances: Sequence[Sequence[float]]
) -> Iterator[None]:
    """Force the acceptance of Transformers' assisted generation while the context lasts.

    Args:
        rate: Probability of accepting a drafted token; None forces nothing.
        chances: Uniform numbers of every round, one per drafted token; those of specbench's own
            loop, so that both accept the same numbers of drafts.

    Raises:
        CannotForceError: There is nothing to take hold of.
    """
    if rate is None:
        yield
        return
    decide: Callable[..., Any] | None = getattr(utils, DECISION, None)
    if decide is None:
        raise CannotForceError(f"this version of Transformers has no {DECISION} to be replaced")
    setattr(utils, DECISION, _constantly(decide, rate, iter(chances)))
    try:
        yield
    finally:
        setattr(utils, DECISION, decide)


def _constantly(decide: Callable[..., Any], rate: float, chances: Iterator[Sequence[float]]) -> Any:
    def constantly(ids: Tensor, logits: Tensor, drafted: int, *rest: Any, **options: Any) -> Any:
        tokens, _ = decide(ids, logits, drafted, *rest, **options)
        chance, kept = next(chances), 0
        while kept < drafted and chance[kept] < rate:
            kept += 1
        drafts = ids[:, ids.shape[1] - drafted :]
        return torch.cat((drafts[:, :kept], tokens[:, -1:]), -1), kept

    return constantly
