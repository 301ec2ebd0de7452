"""The rounds of a text that vLLM with specbench's plugin tells, checked: they may be anything."""

from __future__ import annotations

from typing import Any

from specbench.decoding.records import RoundRecord, RoundReport, read_report
from specbench.errors import require
from specbench.serving.client import described

MOST_ROUNDS, MOST_NUMBERS = 2**16, 2**10  # of a text; of a round
LARGEST = 2**31  # number


def read_rounds(
    value: Any, output_tokens: int, vocabulary: int | None = None
) -> tuple[RoundRecord, ...]:
    """Return the rounds of a text of so many tokens, the first of which has no round.

    Raises:
        UsageError: The value is no list of rounds, or a number of a round is out of range.
    """
    require(
        isinstance(value, list) and len(value) <= MOST_ROUNDS and all(map(_is_row, value)),
        f"the server tells the rounds {described(value)}, which are none",
    )
    rounds: list[RoundRecord] = []
    left = output_tokens - 1
    for report in map(read_report, value):
        if left <= 0:
            break  # what was drafted after the end
        fault = _fault(report, vocabulary or LARGEST) or report.fault()
        require(fault is None, f"the server tells a round in which {fault}")
        rounds.append(report.record(min(report.accepted + 1, left)))
        left -= rounds[-1].emitted
    return tuple(rounds)


def _is_row(row: Any) -> bool:
    """Return whether a value has the form of one row of ``verify``'s report."""
    return (
        isinstance(row, list)
        and len(row) <= MOST_NUMBERS
        and len(row) % 6 == 2
        and len(row) > 8
        and all(type(number) in (int, float) and abs(number) < LARGEST for number in row)
    )


def _fault(report: RoundReport, vocabulary: int) -> str | None:
    """Describe a count or a token that cannot be, or return None."""
    drafts = len(report.drafted)
    if not 0 <= report.accepted <= report.proposed <= drafts:
        return f"{report.accepted} of {report.proposed} of {drafts} drafts are accepted"
    if not all(0 <= token < vocabulary for token in report.drafted):
        return f"a draft is no token of the {vocabulary}"
    return None
