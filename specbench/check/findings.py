"""What a check finds: one finding for each comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, FAILED, WEAK, REPORT = "ok", "FAILED", "weak", "report"


@dataclass(frozen=True)
class Finding:
    """One comparison.

    The verdict is ``ok``; ``FAILED``; ``weak`` where the negative control passed as well, so that a
    fault would not have been detected; ``report`` where there is no verdict.
    """

    part: str  # of the check
    subject: str  # what was decoded, and how
    name: str  # what of it was compared
    verdict: str
    says: str
    facts: dict[str, Any] = field(default_factory=dict)
