"""What a check finds: one finding for each thing that was compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

OK, FAILED, WEAK, REPORT = "ok", "FAILED", "weak", "report"


@dataclass(frozen=True)
class Finding:
    """One thing that was compared.

    Attributes:
        part: Which part of the check: a heading.
        subject: What was decoded, and how.
        name: What of it was compared.
        verdict: ``ok``; ``FAILED``; ``weak`` where the negative control was not refused either, so
            that a fault would not have been seen; ``report`` for what is no verdict.
        says: In one sentence.
        facts: The numbers.
    """

    part: str
    subject: str
    name: str
    verdict: str
    says: str
    facts: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return it in plain values."""
        return asdict(self)
