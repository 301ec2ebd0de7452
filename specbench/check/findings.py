"""Findings of a check, one per comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, FAILED, WEAK, REPORT = "ok", "FAILED", "weak", "report"


@dataclass(frozen=True)
class Finding:
    """One comparison.

    The verdict is ``ok``, ``FAILED``, ``weak`` (the negative control passed too, so a fault would
    not have been detected) or ``report`` (reported without a verdict).
    """

    part: str  # part of the check
    subject: str  # method or model, and settings
    name: str  # what was compared
    verdict: str
    says: str
    facts: dict[str, Any] = field(default_factory=dict)
