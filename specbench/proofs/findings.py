"""Findings of a check, one per comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specbench.table import Column, Table

OK, FAILED, WEAK, REPORT, SKIPPED = "ok", "FAILED", "weak", "report", "not checked"


@dataclass(frozen=True)
class Finding:
    """One comparison.

    The verdict is ``ok``, ``FAILED``, ``weak`` (the negative control passed too, so a fault would
    not have been detected), ``report`` (reported without a verdict) or ``not checked``.
    """

    part: str  # part of the check
    subject: str  # method or model, and settings
    name: str  # what was compared
    verdict: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


def findings_table(findings: Iterable[Finding], title: str = "") -> Table:
    """Return a table with one row per finding."""
    columns = [Column(name, align="left") for name in ("check", "of", "verdict", "found")]
    return Table(title, columns, [[f.name, f.subject, f.verdict, f.sentence] for f in findings])
