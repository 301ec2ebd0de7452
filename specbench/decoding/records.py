"""What decoding a sample leaves behind: raw counts, to be reduced later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
        rejected: The drafted token that was rejected, None where none was.
        agreed: Of each accepted token, whether it is the target's likeliest one.
        expected: Acceptance probability, before drawing, of each position judged: the accepted ones
            and the first rejected one.
        weights: Weight on the target at these positions, empty for rules without one.
    """

    proposed: int
    accepted: int
    emitted: int
    rejected: int | None = None
    agreed: tuple[bool, ...] = ()
    expected: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass
class Generation:
    """A decoded sample.

    Where texts are decoded side by side, a round's time is shared evenly among those that are on
    their way, so that the times of all texts add up to the time that passed.

    Attributes:
        token_ids: Output tokens without the end token.
        text: The tokens decoded, cut before a stop string.
        prompt_tokens: Length of the prompt.
        output_tokens: Tokens emitted, the end token included.
        stopped_by: End token, length limit or stop string.
        prefill_seconds: Reading the prompt, with both models.
        decode_seconds: Its share of all rounds.
        draft_seconds: Of that, drafting.
        verify_seconds: Of that, the target's passes over the drafts.
        accept_seconds: Of that, judging drafts and drawing tokens.
        latency_seconds: From the start of reading its prompt to its end, whoever else was served.
        rounds: One record a round.
    """

    token_ids: list[int]
    text: str
    prompt_tokens: int
    output_tokens: int
    stopped_by: StopReason
    prefill_seconds: float
    decode_seconds: float
    draft_seconds: float
    verify_seconds: float
    accept_seconds: float
    latency_seconds: float
    rounds: list[RoundRecord] = field(default_factory=list)


class Report(NamedTuple):
    """What the host hears of one text's round.

    Attributes:
        length: Tokens of the text now, as the device counts them.
        accepted: Drafts accepted.
        proposed: Drafts that were up for judgement; those after them are void.
        fresh: Tokens chosen, n + 1 of them; those after the accepted ones and one more are void.
        drafted: The n drafts.
        agreed: Of each, whether it is the target's likeliest token.
        expected: Of each, the acceptance probability before drawing.
        weights: Of each, the weight on the target; empty for rules without one.
    """

    length: int
    accepted: int
    proposed: int
    fresh: list[int]
    drafted: list[int]
    agreed: list[bool]
    expected: list[float]
    weights: list[float]

    def record(self, kept: int) -> RoundRecord:
        """Count the round of a text that took in so many of its tokens before it ended."""
        whole = kept == self.accepted + 1
        accepted = self.accepted if whole else kept
        judged = min(self.accepted + 1, self.proposed) if whole else kept
        return RoundRecord(
            proposed=self.proposed if whole else kept,
            accepted=accepted,
            emitted=kept,
            rejected=self.drafted[accepted] if whole and accepted < self.proposed else None,
            agreed=tuple(self.agreed[:accepted]),
            expected=tuple(self.expected[:judged]),
            weights=tuple(self.weights[:judged]),
        )


def read_report(row: Sequence[float]) -> Report:
    """Take apart one row of ``Round.report``.

    Its numbers may be floats of 32 bits, which hold tokens and lengths up to 2^24 exactly.

    Args:
        row: Length, accepted, proposed, n + 1 fresh tokens, n drafts, n agreements, n expectations
            and n weights, which are not numbers for rules without them.
    """
    n = (len(row) - 4) // 5
    fresh = row[3 : 4 + n]
    drafted, agreed, expected, weights = (row[4 + k * n : 4 + (k + 1) * n] for k in range(1, 5))
    return Report(
        length=int(row[0]),
        accepted=int(row[1]),
        proposed=int(row[2]),
        fresh=[int(token) for token in fresh],
        drafted=[int(token) for token in drafted],
        agreed=[bool(one) for one in agreed],
        expected=list(expected),
        weights=[weight for weight in weights if weight == weight],
    )
