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
    """

    proposed: int  # drafted tokens that were up for judgement
    accepted: int  # those accepted before the first rejection
    emitted: int  # tokens the round added to the output, the end token included
    rejected: int | None = None  # the drafted token that was rejected, None where none was
    # of each accepted token, whether it is the target's likeliest one
    agreed: tuple[bool, ...] = ()
    # acceptance probability, before drawing, of each position judged: the accepted ones and
    # the first rejected one
    expected: tuple[float, ...] = ()
    # weight on the target at these positions, empty for rules without one
    weights: tuple[float, ...] = ()


@dataclass
class Generation:
    """A decoded sample.

    Texts decoded side by side share the time of a round evenly, so that the times of all texts add
    up to the time that passed.
    """

    token_ids: list[int]  # output tokens without the end token
    text: str  # the tokens decoded, cut before a stop string
    prompt_tokens: int  # length of the prompt
    output_tokens: int  # tokens emitted, the end token included
    stopped_by: StopReason  # end token, length limit or stop string
    prefill_seconds: float  # reading the prompt, with both models
    decode_seconds: float  # its share of all rounds
    draft_seconds: float  # of that, drafting
    verify_seconds: float  # of that, the target's passes over the drafts
    accept_seconds: float  # of that, judging drafts and drawing tokens
    latency_seconds: float  # from the start of its prefill to its end, other texts' time included
    rounds: list[RoundRecord] = field(default_factory=list)  # one record per round


class Report(NamedTuple):
    """What the host hears of one text's round."""

    length: int  # tokens of the text now, as the device counts them
    accepted: int
    proposed: int  # drafts that were up for judgement; those after them are void
    new_tokens: list[int]  # n + 1 of them; those after the accepted ones and one more are void
    drafted: list[int]  # [n]
    agreed: list[bool]  # [n] whether a draft is the target's likeliest token
    expected: list[float]  # [n] acceptance probability before drawing
    weights: list[float]  # [n] weight on the target; empty for rules without one

    def record(self, kept: int) -> RoundRecord:
        """Count the round of a text that took in ``kept`` of its tokens before it ended."""
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
    """Take apart one row of ``StepOutput.report``.

    Its numbers may be floats of 32 bits, which hold tokens and lengths up to 2^24 exactly. Weights
    are NaN for rules without them.
    """
    n = (len(row) - 4) // 5
    length, accepted, proposed, *new_tokens = map(int, row[: 4 + n])
    drafted, agreed, expected, weights = (row[4 + k * n : 4 + (k + 1) * n] for k in range(1, 5))
    return Report(
        length,
        accepted,
        proposed,
        new_tokens,
        drafted=list(map(int, drafted)),
        agreed=list(map(bool, agreed)),
        expected=list(expected),
        weights=[weight for weight in weights if weight == weight],
    )
