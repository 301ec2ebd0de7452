"""What decoding a sample leaves behind: raw counts, to be reduced later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

StopReason = Literal["eos", "length", "stop"]


@dataclass(frozen=True)
class RoundRecord:
    """One round: drafts proposed, drafts accepted, tokens emitted.

    Where the output ends inside the round, all counts stop there: drafts after the end were never
    judged. ``proposed`` is then smaller than the draft length.

    Attributes:
        proposed: Drafted tokens that were up for judgement.
        accepted: Those accepted before the first rejection.
        emitted: Tokens the round added to the output, the end token included.
        expected: Acceptance probability, before drawing, of each position judged: the accepted ones
            and the first rejected one.
        weights: Weight on the target at these positions, empty for rules without one.
    """

    proposed: int
    accepted: int
    emitted: int
    expected: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass
class Generation:
    """A decoded sample.

    Attributes:
        token_ids: Output tokens without the end token.
        text: The tokens decoded, cut before a stop string.
        prompt_tokens: Length of the prompt.
        output_tokens: Tokens emitted, the end token included.
        rounds: One record a round.
        stopped_by: End token, length limit or stop string.
        prefill_seconds: Reading the prompt, with both models.
        decode_seconds: All rounds.
    """

    token_ids: list[int]
    text: str
    prompt_tokens: int
    output_tokens: int
    stopped_by: StopReason
    prefill_seconds: float
    decode_seconds: float
    rounds: list[RoundRecord] = field(default_factory=list)
