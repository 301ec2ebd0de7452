"""Findings: one verdict per comparison, with a sentence and the numbers behind it; their tables.

In verifications, a finding states the differences between what a run records and what follows from
something else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

from specbench.analysis.tables.table import Column, Table, condensed, percent
from specbench.runs.labels import method_label

OK, FAILED, WEAK, REPORT, SKIPPED = "ok", "FAILED", "weak", "report", "not checked"
INCOMPLETE = "incomplete"
#: Of words in a terminal.
STYLES = {FAILED: "bold red", WEAK: "yellow", SKIPPED: "yellow", INCOMPLETE: "yellow"}
ROUNDING = 1e-9  # relative difference of equal numbers; sums may be added in another order
Record = Mapping[str, Any]


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


def conclusion(findings: Sequence[Finding], claim: str, fault: str) -> str:
    """Return one sentence on findings of which none failed, so that a claim holds without a fault.

    It names the methods whose law is unknown, so that nothing is shown of what they emit.
    """
    sound, weak = (sum(f.verdict == verdict for f in findings) for verdict in (OK, WEAK))
    if not sound:
        return f"nothing is shown: no comparison could have seen a {fault}"
    unseen = f"; {weak} could not have seen one, so try more --samples" if weak else ""
    emitted = [(f.subject.rpartition(", T=")[0], f.verdict) for f in findings if f.name in EMITTED]
    lawless = dict.fromkeys(method for method, verdict in emitted if verdict == NO_LAW)
    untested = [name for name in lawless if (name, OK) not in emitted]
    answer = f"{claim}: no {fault} found in {sound + weak} comparisons{unseen}"
    if untested:
        answer += f"; what {', '.join(untested)} emits was not tested, exact or not: add the law "
        answer += "with @rule(law=...)"
    return answer


def findings_table(findings: Iterable[Finding], title: str = "") -> Table:
    """Return a table with one row per finding."""
    columns = [Column(name, align="left") for name in ("check", "of", "verdict", "found")]
    return Table(title, columns, [[f.name, f.subject, f.verdict, f.sentence] for f in findings])


LAW = "law"  # name of this part of the check
EMITTED = ("next token", "outputs")  # comparisons that show what a method emits
COMPARED = {  # heading, and the meaning of a failure
    "next token": ("next\ntoken", "the token after the prompt does not follow the method's law"),
    "outputs": ("out-\nputs", "whole outputs do not follow the method's law"),
    "endings": ("ends", "outputs do not end at the first end token, stop string or limit"),
    "tokens": ("tokens", "tokens along the text do not follow the method's law"),
    "drafts": ("drafts", "drafted tokens do not follow the q that verification receives"),
    "acceptance": ("ac-\ncepted", "drafts are not accepted with the rule's probability"),
    "corrections": (
        "cor-\nrected",
        "tokens that replace rejected drafts do not follow the residual",
    ),
    "bonus tokens": ("bonus", "tokens after drafts that were all accepted do not follow p"),
    "replays": (
        "re-\nplays",
        "drafts, acceptance or tokens are not those that their random numbers give: check which "
        "number decides what, and what the drafter proposes",
    ),
    "probabilities": (
        "proba-\nbilities",
        "acceptance probabilities differ from those of plain forward passes: check the law of a "
        "rule of your own, else positions, cache slots and the processing of logits",
    ),
    "weights": (
        "weights",
        "weights are not the head's for the hidden states that predict the token",
    ),
}
NO_LAW = "no law"  # verdict on what a rule without a law leaves untested
WITHOUT_LAW = (
    f"{NO_LAW}: not tested, because the rule has no exact law; add one with @rule(law=...). "
    "Without it, acceptance is compared with the probabilities that the rule reported (`expected`)."
)
SMALLEST_SHARE = (
    "Smallest share: of wrong draws, ends or numbers that is detected with 99 % probability by an "
    "estimate (of acceptance, simulated, with 70 % or more), in the least sensitive row. Numbers "
    "are wrong if they are off by more than 0.001."
)
WHOLE = "whole outputs"
SUMMARIES = ("fewest draws", "smallest p", "smallest share")


def rounds_table(findings: Sequence[Finding]) -> Table:
    """Return the verdicts on sampled rounds, one row per method and sampling.

    The last rows summarise the rows above: those of whole outputs only where there are no others.
    """
    verdicts: dict[str, dict[str, str]] = {}
    for finding in findings:
        verdicts.setdefault(finding.subject, {})[finding.name] = finding.verdict
    rows = []
    for subject, by_name in verdicts.items():
        method, _, sampling = subject.rpartition(", T=")
        texts = "whole" if sampling.endswith(WHOLE) else f"T={sampling.split()[0]}"
        rows.append([method, texts, *(by_name.get(name, "") for name in COMPARED)])
    summaries = zip(*(_summary(findings, name) for name in COMPARED), strict=True)
    rows += [[title, "", *cells] for title, cells in zip(SUMMARIES, summaries, strict=True)]
    columns = [
        Column(name) for name in ("method", "texts", *(head for head, _ in COMPARED.values()))
    ]
    levels = sorted({f.facts["alpha"] for f in findings if "alpha" in f.facts})
    notes = [f"Smallest p: a row fails below {level:.1g}." for level in levels[-1:]]
    notes.append(SMALLEST_SHARE)
    if any(finding.verdict == NO_LAW for finding in findings):
        notes.append(WITHOUT_LAW)
    title = "Sampled rounds against their exact laws"
    return condensed(Table(title, columns, rows, notes=notes, stub=2))


def _summary(findings: Sequence[Finding], name: str) -> tuple[str, str, str]:
    """Return the ``SUMMARIES`` of one comparison.

    The share is the smallest that every row detects, and blank if some row detects none.
    """
    tested = [f for f in findings if f.name == name and f.verdict != NO_LAW]
    rounds = [f.facts for f in tested if not f.subject.endswith(WHOLE)]
    facts: list[dict[str, Any]] = rounds or [f.facts for f in tested]
    if not facts:
        return "", "", ""
    p_values = [row["p_value"] for row in facts if "p_value" in row]
    shares = [row["share"] for row in facts]
    return (
        f"{min(row['draws'] for row in facts):,}",
        f"{min(p_values):.2g}" if p_values else "",
        percent(max(shares), ".2g") if None not in shares else "",
    )


def difference(recorded: Any, derived: Any, within: float = 0.0) -> str:
    """Return the first place where two plain values differ, with both; empty if they are equal.

    Objects are compared by their common keys. Numbers are equal up to rounding, or up to an
    absolute difference ``within``.
    """
    if isinstance(recorded, Mapping) and isinstance(derived, Mapping):
        for name in (name for name in derived if name in recorded):
            if text := difference(recorded[name], derived[name], within):
                return f"{name}{text}" if text[0] in " [" else f"{name}.{text}"
        return ""
    if isinstance(recorded, list) and isinstance(derived, list):
        for index, pair in enumerate(zip(recorded, derived, strict=False)):
            if text := difference(*pair, within):
                return f"[{index}]{text}"
        same_length = len(recorded) == len(derived)
        return "" if same_length else f" has length {len(recorded)}, not {len(derived)}"
    if isinstance(recorded, int | float) and isinstance(derived, int | float):
        same = math.isclose(recorded, derived, rel_tol=ROUNDING, abs_tol=within)
        return "" if same else f" is {recorded:.12g}, not {derived:.12g}"
    if isinstance(recorded, str) and isinstance(derived, str) and recorded != derived:
        first = next(
            index for index in count() if recorded[index : index + 1] != derived[index : index + 1]
        )
        index = max(first - 10, 0)
        start = f"[{index}:]" if index else ""
        return f"{start} is {recorded[index : index + 30]!r}, not {derived[index : index + 30]!r}"
    return "" if recorded == derived else f" is {recorded!r}, not {derived!r}"


def finding(name: str, subject: str, differences: Iterable[tuple[Record, str]]) -> Finding:
    """Return the finding of a check of many samples, which names the first one that differs."""
    return finding_of(name, subject, [f"{named(row)}: {text}" for row, text in differences if text])


def finding_of(name: str, subject: str, faults: Collection[str]) -> Finding:
    """Return the finding of a check with these faults, which quotes the first."""
    if not faults:
        return Finding("", subject, name, OK, "")
    more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
    return Finding("", subject, name, FAILED, next(iter(faults)) + more)


def named(row: Record) -> str:
    """Return the name of a sample, or of a row of the summary."""
    values = {name: None if value == "" else value for name, value in row.items()}
    whole = {n: f"{v:g}" if isinstance(v, float) else v for n, v in values.items()}
    length, turn, repeat = (
        f"{noun} {whole[name]}" if values.get(name) else ""
        for name, noun in (("draft_length", "N ="), ("turn", "turn"), ("repeat", "repeat"))
    )
    last = values.get("sample_id") or values.get("metric")
    method = values["method"] and method_label(values)  # a row may be cut
    parts = [values["task"], method, length, last, turn, repeat]
    return ", ".join(filter(None, parts))
