"""When to stop drafting: where another draft would cost more than it is likely to bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Outlook(NamedTuple):
    """What the drafts of B texts so far promise.

    Attributes:
        stop: ``[B]`` drafts that are to be judged.
        going: ``[B]`` whether another one is worth its cost.
        kept: ``[B]`` chance that all drafts so far are accepted.
        tokens: ``[B]`` tokens that the round is expected to bring, its own last one included.
    """

    stop: Tensor
    going: Tensor
    kept: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class DraftControl:
    """Stop a text's drafting where its next draft lowers the expected tokens per time.

    The chance that a draft is accepted is taken to be the draft model's confidence, its largest
    probability. After i drafts a round is expected to bring E tokens in the time 1 + i c, in units
    of a target pass; one more draft adds c to the time, and to the tokens the chance that all of
    them are kept, the next one's confidence taken to be the last one's. It is drafted while

        kept * confidence / c > E / (1 + i c),

    so while the rate still rises. Whether a draft is made depends on what was drawn before it and
    never on its own draw, so the emitted law stays the rule's own: a round may be of any length
    (Leviathan et al. 2023, arXiv:2211.17192).

    Attributes:
        cost: c, the time of one draft step over that of the target's pass; above 0.
    """

    cost: float

    def begin(self, going: Tensor) -> Outlook:
        """Return the outlook before the first draft, which is always made.

        Args:
            going: ``[B]`` whether there is a text at all.
        """
        one = torch.ones(len(going), device=going.device)
        return Outlook(torch.zeros_like(going, dtype=torch.long), going, one, one)

    def after(self, outlook: Outlook, q: Tensor, drafted: int) -> Outlook:
        """Return the outlook after one more draft.

        Args:
            outlook: The one before it.
            q: ``[B, V]`` what it was drawn from.
            drafted: Drafts so far, this one included.
        """
        confidence = q.amax(-1)
        kept = torch.where(outlook.going, outlook.kept * confidence, outlook.kept)
        tokens = torch.where(outlook.going, outlook.tokens + kept, outlook.tokens)
        rate = tokens / (1 + drafted * self.cost)
        return Outlook(
            stop=outlook.stop + outlook.going,
            going=outlook.going & (kept * confidence > self.cost * rate),
            kept=kept,
            tokens=tokens,
        )


def rehearsals(control: DraftControl | None, draft_length: int, static: bool) -> list[Always]:
    """Return what meets every length of a control's rounds, which its own first texts may not.

    Args:
        control: The control; None drafts all tokens.
        draft_length: Most drafts of a round, N.
        static: Whether the engine makes each length ready when it is first met.
    """
    if control is None or not static:
        return []
    return [Always(control.cost, drafts) for drafts in range(1, draft_length + 1)]


@dataclass(frozen=True)
class Always(DraftControl):
    """Draft as many tokens in every round, so that an engine is ready for that number.

    Attributes:
        drafts: How many.
    """

    drafts: int = 1

    def after(self, outlook: Outlook, q: Tensor, drafted: int) -> Outlook:
        """Return the outlook after one more draft; for the arguments see ``DraftControl``."""
        found = super().after(outlook, q, drafted)
        return found._replace(going=outlook.going & (drafted < self.drafts))
