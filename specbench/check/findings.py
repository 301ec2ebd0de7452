"""What a check finds, one finding for each comparison, and the tables that show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.table import Column, Table, drop_empty

OK, FAILED, WEAK, REPORT = "ok", "FAILED", "weak", "report"

LAW = "law"  # the part of the check that samples rounds
NEXT, TOKENS, DRAFTS = "next token", "tokens", "drafts"
ACCEPTANCE, CORRECTIONS, BONUS = "acceptance", "corrections", "bonus tokens"
PROBABILITIES, WEIGHTS = "probabilities", "weights"
TOLERANCE = 1e-3  # of reported probabilities and weights

COMPARED = {  # of sampled rounds: heading, and what it means where it fails
    NEXT: ("next\ntoken", "the token after the prompt does not follow the method's law"),
    TOKENS: ("tokens", "tokens along the text do not follow the method's law"),
    DRAFTS: ("drafts", "drafted tokens are no draws from the q that verification is told"),
    ACCEPTANCE: ("ac-\ncepted", "drafts are not accepted with the rule's probability"),
    CORRECTIONS: ("cor-\nrected", "tokens that replace rejected drafts do not follow the residual"),
    BONUS: ("bonus", "tokens after drafts that were all accepted do not follow p"),
    PROBABILITIES: (
        "proba-\nbilities",
        "acceptance probabilities are not those of plain forward passes: look at positions, cache "
        "slots and the processing of logits",
    ),
    WEIGHTS: ("weights", "weights are not the head's on the hidden states that predict the token"),
}
_SHARE = (
    "Smallest share: of draws from a wrong law, detected with 99 % probability, in the least "
    "sensitive row; of probabilities and weights, the tolerance."
)


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


def tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """Yield a table of the sampled rounds and one of all other checks."""
    rounds = [finding for finding in findings if finding.part == LAW]
    if rounds:
        yield _rounds_table(rounds)
    others = [f for f in findings if f.part != LAW]
    columns = [Column(name, align="left") for name in ("check", "of", "verdict", "found")]
    yield Table("Other checks", columns, [[f.name, f.subject, f.verdict, f.says] for f in others])


def _rounds_table(findings: Sequence[Finding]) -> Table:
    verdicts: dict[str, dict[str, str]] = {}
    for finding in findings:
        verdicts.setdefault(finding.subject, {})[finding.name] = finding.verdict
    rows = []
    for subject, found in verdicts.items():
        method, _, sampling = subject.rpartition(", T=")
        row = [method, sampling.partition(" ")[0], *(found.get(name, "") for name in COMPARED)]
        rows.append(row)
    rows.append(["smallest share", "", *(_smallest_share(findings, name) for name in COMPARED)])
    columns = [
        Column("method"),
        Column("T"),
        *(Column(heading) for heading, _ in COMPARED.values()),
    ]
    title = "Sampled rounds against their exact laws"
    return drop_empty(Table(title, columns, rows, notes=[_SHARE], stub=2))


def _smallest_share(findings: Sequence[Finding], name: str) -> str:
    """Return the smallest fault that every row would show; blank where some row shows none."""
    facts = [finding.facts for finding in findings if finding.name == name]
    if name in (PROBABILITIES, WEIGHTS):
        return f"{TOLERANCE:g}" if facts else ""
    shares = [known["share"] for known in facts]
    return f"{max(shares):.0%}" if shares and None not in shares else ""
