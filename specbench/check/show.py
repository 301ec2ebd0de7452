"""What a check found, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from specbench.check.findings import FAILED, WEAK, Finding
from specbench.check.rounds import (
    ACCEPTANCE,
    BONUS,
    CORRECTIONS,
    DRAFTS,
    NEXT,
    PART,
    PROBABILITIES,
    TOKENS,
    TOLERANCE,
    WEIGHTS,
)

_COLUMNS = {
    "next\ntoken": NEXT,
    "\ntokens": TOKENS,
    "\ndrafts": DRAFTS,
    "ac-\ncepted": ACCEPTANCE,
    "cor-\nrected": CORRECTIONS,
    "\nbonus": BONUS,
    "proba-\nbilities": PROBABILITIES,
    "\nweights": WEIGHTS,
}
_STYLES = {FAILED: "bold red", WEAK: "yellow"}


def tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """Return a table of the sampled rounds and one of everything else."""
    rounds = [finding for finding in findings if finding.part == PART]
    if rounds:
        yield _rounds_table(rounds)
    shown = Table(title="The rest", title_justify="left")
    shown.add_column("check", no_wrap=True)
    shown.add_column("verdict")
    shown.add_column("found")
    for finding in findings:
        if finding.part != PART:
            shown.add_row(
                f"{finding.name}\n{finding.subject}", _marked(finding.verdict), finding.says
            )
    yield shown


def failures(findings: Sequence[Finding]) -> list[str]:
    """Return a line for everything that failed."""
    return [f"{f.subject}: {f.name}: {f.says}" for f in findings if f.verdict == FAILED]


def weaknesses(findings: Sequence[Finding]) -> int:
    """Return how many comparisons would not have shown a fault."""
    return sum(finding.verdict == WEAK for finding in findings)


def _rounds_table(findings: Sequence[Finding]) -> Table:
    shown = Table(
        title="Sampled rounds against their exact laws",
        title_justify="left",
        caption="Seen from: were this part of the draws from a wrong law, 99 checks in 100 would "
        "see it, in the least sensitive row; of probabilities and weights, the tolerance.",
        caption_justify="left",
    )
    for header in ("\nmethod", "\nT", *_COLUMNS):
        shown.add_column(header)
    rows: dict[str, dict[str, str]] = {}
    for finding in findings:
        rows.setdefault(finding.subject, {})[finding.name] = _marked(finding.verdict)
    for subject, verdicts in rows.items():
        method, _, sampling = subject.rpartition(", T=")
        shown.add_row(
            method or subject,
            sampling.partition(" ")[0],
            *(verdicts.get(name, "") for name in _COLUMNS.values()),
        )
    shown.add_section()
    shown.add_row("seen from", "", *(_seen_from(findings, name) for name in _COLUMNS.values()))
    return shown


def _seen_from(findings: Sequence[Finding], name: str) -> str:
    """What a fault must amount to; nothing where some row would not show any."""
    facts = [finding.facts for finding in findings if finding.name == name]
    if name in (PROBABILITIES, WEIGHTS):
        return f"{TOLERANCE:g}" if facts else ""
    shares = [known["share"] for known in facts]
    return f"{max(shares):.0%}" if shares and None not in shares else ""


def _marked(verdict: str) -> str:
    style = _STYLES.get(verdict)
    return f"[{style}]{verdict}[/{style}]" if style else verdict
