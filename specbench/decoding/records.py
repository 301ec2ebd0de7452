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
        fresh: Tokens chosen, N + 1 of them; those after the accepted ones and one more are void.
        drafted: The N drafts.
        agreed: Of each, whether it is the target's likeliest token.
        expected: Of each, the acceptance probability before drawing.
        weights: Of each, the weight on the target; empty for rules without one.
    """

    length: int
    accepted: int
    fresh: list[int]
    drafted: list[int]
    agreed: list[bool]
    expected: list[float]
    weights: list[float]

    def record(self, kept: int) -> RoundRecord:
        """Count the round of a text that took in so many of its tokens before it ended."""
        n = len(self.drafted)
        whole = kept == self.accepted + 1
        accepted = self.accepted if whole else kept
        judged = min(self.accepted + 1, n) if whole else kept
        return RoundRecord(
            proposed=n if whole else kept,
            accepted=accepted,
            emitted=kept,
            rejected=self.drafted[accepted] if whole and accepted < n else None,
            agreed=tuple(self.agreed[:accepted]),
            expected=tuple(self.expected[:judged]),
            weights=tuple(self.weights[:judged]),
        )


def read_report(row: Sequence[float], n: int) -> Report:
    """Take apart one row of ``Round.report``.

    Its numbers may be floats of 32 bits, which hold tokens and lengths up to 2^24 exactly.

    Args:
        row: Length, accepted, N + 1 fresh tokens; where N > 0 also N drafts, N agreements, N
            expectations and perhaps N weights.
        n: Drafted tokens per round, N.
    """
    whole = [int(number) for number in row[: 3 + 3 * n]]
    rest = row[3 + 3 * n :]
    return Report(
        length=whole[0],
        accepted=whole[1],
        fresh=whole[2 : 3 + n],
        drafted=whole[3 + n : 3 + 2 * n],
        agreed=[bool(number) for number in whole[3 + 2 * n :]],
        expected=list(rest[:n]),
        weights=list(rest[n:]),
    )
