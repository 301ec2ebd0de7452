"""Accuracy of worked answers that end in ``#### number``, the answer format of GSM8K."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.tasks.example import Example

MARK = "####"
# Optional sign and dollar in either order, then digits with commas and perhaps decimals. A full
# stop that no digit follows ends the sentence and is no part of the number.
_NUMBER = re.compile(r"\s*([-+]?)\s*\$?\s*([-+]?)((?:[0-9][0-9,]*)?\.[0-9]+|[0-9][0-9,]*)")


def final_number(text: str) -> Decimal | None:
    """Return the number right after the last ``####``, or None where there is none."""
    _, mark, tail = text.rpartition(MARK)
    found = _NUMBER.match(tail) if mark else None
    if not found or (found[1] and found[2]):
        return None
    return Decimal(found[1] + found[2] + found[3].replace(",", ""))


def accuracy(text: str, example: Example) -> float:
    """Return 1 where the final number of the text equals that of the reference, else 0.

    Args:
        text: Generated answer; without a final number it scores 0.
        example: Its reference is a worked answer, or the number alone.

    Raises:
        UsageError: The reference has no number.
    """
    reference = example.reference or ""
    expected = final_number(reference if MARK in reference else MARK + reference)
    if expected is None:
        raise UsageError(
            f"the reference of example `{example.id}` has no number; end it with `{MARK} number`"
        )
    return float(final_number(text) == expected)
