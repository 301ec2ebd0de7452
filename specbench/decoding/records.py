"""Records of decoded samples: raw counts, to be reduced later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import isfinite
from typing import Any, Literal, NamedTuple

StopReason = Literal["eos", "length", "stop"]


@dataclass(frozen=True)
class RoundRecord:
    """One round: drafts proposed, drafts accepted, tokens emitted.

    If the output ends inside the round, all counts stop there, since drafts after the end are not
    judged. ``proposed`` is then smaller than the draft length.
    """

    proposed: int  # drafted tokens proposed to the target
    accepted: int  # drafted tokens accepted before the first rejection
    emitted: int  # tokens added to the output, including the end token
    rejected: int | None = None  # drafted token at the first rejection; None without one
    # whether each accepted token is the target's argmax
    agreed: tuple[bool, ...] = ()
    # acceptance probability, before the draw, at each judged position: the accepted drafts and
    # the first rejected one
    expected: tuple[float, ...] = ()
    # weight on the target at these positions; empty for rules without one
    weights: tuple[float, ...] = ()
    # log p and log of the law of each emitted token; empty unless recorded
    laws: tuple[tuple[float, ...], ...] = ()
    zero_p: int = 0  # emitted tokens that the target would never emit, since their p is 0


@dataclass
class Generation:
    """A decoded sample.

    The time of a round is split evenly between the texts of a batch, so the times of all texts add
    up to the elapsed time.
    """

    token_ids: list[int]  # output tokens without the end token
    text: str  # the decoded tokens, cut before a stop string
    prompt_tokens: int  # prompt length
    output_tokens: int  # tokens emitted, including the end token
    stopped_by: StopReason  # end token, length limit or stop string
    prefill_seconds: float  # with both models
    decode_seconds: float  # its share of all rounds
    draft_seconds: float  # part of it: drafting; NaN if the parts are unknown
    verify_seconds: float  # part of it: target passes over the drafts
    accept_seconds: float  # part of it: acceptance tests and token draws
    latency_seconds: float  # wall time from the start of prefill to the end of the text
    rounds: list[RoundRecord] = field(default_factory=list)  # one record per round
    shared_rounds: float = 0.0  # its share of its batch's rounds, which all texts add up to
    full_rounds: int = 0  # rounds in which every row of the batch had a text
    full_seconds: float = 0.0  # its share of these


NO_WEIGHT = -1024.0  # in place of all weights of a round, for rules without them
ROUNDING = 1e-3  # by which a probability may exceed 1


class RoundReport(NamedTuple):
    """One text's round, as read from the device."""

    length: int  # tokens of the text now, as counted on the device
    accepted: int
    proposed: int  # drafts proposed to the target; later ones are void
    new_tokens: list[int]  # [n + 1]; only the first accepted + 1 are valid
    # least number and sum of the distribution that the last token was drawn from: the residual
    # after a rejection, else p
    source: tuple[float, float]
    # of the target and of the draft: NaN if the logits are not finite, else without meaning
    logits: tuple[float, float]
    drafted: list[int]  # [n]
    agreed: list[bool]  # [n] whether a draft is the target's argmax
    accept: list[float]  # [n] probability of accepting the draft
    expected: list[float]  # [n] acceptance probability before the draw
    weights: list[float]  # [n] weight on the target; empty for rules without one
    has_zero_p: list[bool]  # [n + 1] whether p is 0 at a new token

    def fault(self) -> str | None:
        """Describe a number of this round that is not finite or out of range; None without one."""
        for model, softmax in zip(("target", "draft"), self.logits, strict=True):
            if not isfinite(softmax):
                return f"the {model}'s logits are not finite; try another --dtype"
        rejected = self.accepted < self.proposed
        judged = self.accepted + rejected
        for name, values in (
            ("weight", self.weights),
            ("accept", self.accept),
            ("expected", self.expected),
        ):
            for position, value in enumerate(values[:judged]):
                if not 0 <= value <= 1 + ROUNDING:
                    return f"`{name}` of draft {position + 1} is {value:g}, not from 0 to 1"
        least, total = self.source
        if least >= 0 and abs(total - 1) <= ROUNDING:
            return None
        name = f"`residual` of draft {judged}" if rejected else "the target's distribution p"
        return f"{name} has {least:g} as its least number and sums to {total:g}, not to 1"

    def record(self, emitted: int, laws: Sequence[Sequence[float]] = ()) -> RoundRecord:
        """Return the record of a round that emitted so many tokens before the text's end."""
        whole = emitted == self.accepted + 1
        accepted = self.accepted if whole else emitted
        judged = min(self.accepted + 1, self.proposed) if whole else emitted
        return RoundRecord(
            proposed=self.proposed if whole else emitted,
            accepted=accepted,
            emitted=emitted,
            rejected=self.drafted[accepted] if whole and accepted < self.proposed else None,
            agreed=tuple(self.agreed[:accepted]),
            expected=tuple(self.expected[:judged]),
            weights=tuple(self.weights[:judged]),
            laws=tuple(map(tuple, laws[:emitted])),
            zero_p=sum(self.has_zero_p[:emitted]),
        )


#: The columns of ``StepOutput.report`` in order: how many each has for every draft, and besides.
#: Every field of ``RoundReport`` is one; a round without drafts has only the columns besides.
REPORT = {
    **{"length": (0, 1), "accepted": (0, 1), "proposed": (0, 1), "new_tokens": (1, 1)},
    **{"source": (0, 2), "logits": (0, 2), "drafted": (1, 0), "agreed": (1, 0), "accept": (1, 0)},
    **{"expected": (1, 0), "weights": (1, 0), "has_zero_p": (1, 1)},
}


@cache
def report_columns(count: int) -> dict[str, slice]:
    """Return which of so many columns of ``StepOutput.report`` hold each field of a report."""
    each, besides = map(sum, zip(*REPORT.values(), strict=True))
    drafts = (count - besides) // each
    ends = [*accumulate(each * drafts + besides for each, besides in REPORT.values())]
    return dict(zip(REPORT, map(slice, [0, *ends], ends), strict=False))


def read_report(row: Sequence[float]) -> RoundReport:
    """Parse one row of ``StepOutput.report``.

    The numbers may be float32, which represents tokens and lengths exactly up to 2^24. Weights are
    ``NO_WEIGHT`` for rules without them.
    """
    at: dict[str, Any] = {name: row[of] for name, of in report_columns(len(row)).items()}
    [length], [accepted], [proposed] = at["length"], at["accepted"], at["proposed"]
    return RoundReport(
        int(length),
        int(accepted),
        int(proposed),
        new_tokens=[*map(int, at["new_tokens"])],
        source=tuple(at["source"]),
        logits=tuple(at["logits"]),
        drafted=[*map(int, at["drafted"])],
        agreed=[*map(bool, at["agreed"])],
        accept=[*at["accept"]],
        expected=[*at["expected"]],
        weights=[] if {*at["weights"]} == {NO_WEIGHT} else [*at["weights"]],
        has_zero_p=[*map(bool, at["has_zero_p"])],
    )
