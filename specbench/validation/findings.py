"""Findings: one verdict per comparison, with a sentence and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from specbench.runs.table import Column, Table

OK, FAILED, WEAK, REPORT, SKIPPED = "ok", "FAILED", "weak", "report", "not checked"
INCOMPLETE = "incomplete"
#: Of words in a terminal.
STYLES = {FAILED: "bold red", WEAK: "yellow", SKIPPED: "yellow", INCOMPLETE: "yellow"}


@dataclass(frozen=True)
class Finding:
    """One comparison.

    The verdict is ``ok``, ``FAILED``, ``weak`` (the negative control passed too, so a fault would
    not have been detected), ``report`` (reported without a verdict), ``not checked``, or
    ``incomplete`` (samples are missing or failed).
    """

    part: str  # part of the check
    subject: str  # method or model, and settings
    name: str  # what was compared
    verdict: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


class Judgement(NamedTuple):
    """What a test gives: the last fields of a finding."""

    verdict: str
    sentence: str
    facts: dict[str, Any]


class Test(Protocol):
    """Collects draws or numbers, and judges them."""

    def judge(self, alpha: float) -> Judgement:
        """Judge everything added so far, at a probability of a false alarm."""


def judged(failed: bool, weak: bool, sentence: str, facts: dict[str, Any]) -> Judgement:
    """Return a judgement, which is weak if the test would hardly have noticed a fault."""
    return Judgement(FAILED if failed else WEAK if weak else OK, sentence, facts)


def findings_of(
    part: str, subject: str, tests: Mapping[str, Test], alpha: float
) -> Iterable[Finding]:
    """Yield the finding of each test."""
    for name, test in tests.items():
        yield Finding(part, subject, name, *test.judge(alpha))


def failures(findings: Sequence[Finding]) -> str:
    """Return how many comparisons failed, such as "2 of 7"; empty if none did."""
    failed = sum(finding.verdict == FAILED for finding in findings)
    return f"{failed} of {len(findings)}" if failed else ""


def conclusion(findings: Sequence[Finding], shown: str, fault: str) -> str:
    """Return one sentence that answers the question of findings of which none failed.

    Args:
        findings: The findings.
        shown: What no fault means, such as "decoded correctly".
        fault: What was looked for.
    """
    sound, weak = (sum(f.verdict == verdict for f in findings) for verdict in (OK, WEAK))
    if not sound:
        return f"nothing is shown: no comparison could have seen a {fault}"
    unseen = f"; {weak} could not have seen one, so try more --samples" if weak else ""
    return f"{shown}: no {fault} found in {sound + weak} comparisons{unseen}"


def findings_table(findings: Iterable[Finding], title: str = "") -> Table:
    """Return a table with one row per finding."""
    columns = [Column(name, align="left") for name in ("check", "of", "verdict", "found")]
    return Table(title, columns, [[f.name, f.subject, f.verdict, f.sentence] for f in findings])
