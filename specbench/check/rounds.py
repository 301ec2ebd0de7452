"""Compare sampled rounds of the real loop with their exact laws.

Many texts are sampled from each of a few real prompts. Two plain forward passes over each text give
p and q at every position; the closed forms of ``methods.laws`` give the laws that follow from them.
Each kind of draw is tested separately, so that a failure names the part: drafts must follow q,
acceptance the rule, corrections the residual, and bonus tokens p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.check.draws import Counts, Outcome, Stream
from specbench.check.findings import FAILED, OK, REPORT, WEAK, Finding
from specbench.check.passes import MAX_NUMBERS, plain_pass, processed
from specbench.check.texts import CORRECTED, OWN, Context, SampleOptions, Tokens, sample, tokens_of
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.heads.bind import BoundMethod
from specbench.methods import Positions
from specbench.methods.laws import JOINT, Next, Split, normalised, parameters_of
from specbench.plugins import place, user_code
from specbench.table import Column, Table, drop_empty

LAW = "law"  # name of this part of the check
NEXT, TOKENS, DRAFTS = "next token", "tokens", "drafts"
ACCEPTANCE, CORRECTIONS, BONUS = "acceptance", "corrections", "bonus tokens"
PROBABILITIES, WEIGHTS = "probabilities", "weights"
STREAMS = (TOKENS, DRAFTS, ACCEPTANCE, CORRECTIONS, BONUS)
TESTS = (NEXT, *STREAMS)

COMPARED = {  # heading, and the meaning of a failure
    NEXT: ("next\ntoken", "the token after the prompt does not follow the method's law"),
    TOKENS: ("tokens", "tokens along the text do not follow the method's law"),
    DRAFTS: ("drafts", "drafted tokens do not follow the q that verification receives"),
    ACCEPTANCE: ("ac-\ncepted", "drafts are not accepted with the rule's probability"),
    CORRECTIONS: ("cor-\nrected", "tokens that replace rejected drafts do not follow the residual"),
    BONUS: ("bonus", "tokens after drafts that were all accepted do not follow p"),
    PROBABILITIES: (
        "proba-\nbilities",
        "acceptance probabilities differ from those of plain forward passes: check positions, "
        "cache slots and the processing of logits",
    ),
    WEIGHTS: ("weights", "weights are not the head's for the hidden states that predict the token"),
}
NEED_LAW = (NEXT, TOKENS, CORRECTIONS, PROBABILITIES)
NO_LAW = "no law"  # verdict on what a rule without a law leaves untested
WITHOUT_LAW = (
    f"{NO_LAW}: not tested, because the rule has no exact law; add one with @rule(law=...). "
    "Without it, acceptance is compared with the probabilities that the rule reported (`expected`)."
)
SMALLEST_SHARE = (
    "Smallest share: of draws from a wrong law that is detected with 99 % probability, in the "
    "least sensitive row; for probabilities and weights, the tolerance."
)

TOLERANCE = 1e-3  # for reported probabilities and weights
# This share may be off by more, because rounding may decide whether a token is inside top-p or
# beyond a rule's threshold.
EXCEPTIONS = 0.01


class Laws(NamedTuple):
    """The laws at K positions, derived from p and q; see ``methods.laws``."""

    at: Next
    split: Split | None  # None if the method has no law
    weight: Tensor | None


@dataclass
class Errors:
    """Errors of the numbers that the loop reported."""

    count: int = 0
    off: int = 0
    control: int = 0
    largest: float = 0.0

    def add(self, reported: Tensor, correct: Tensor) -> None:
        """Compare numbers ``[K, T]`` with the correct ones; NaN marks numbers not reported."""
        known = ~reported.isnan()
        error = (reported - correct).abs()[known]
        # The control: each number against the correct one of the previous position.
        moved = (reported - correct.roll(1, -1)).abs()[known]
        self.count += int(known.sum())
        self.off += int((error > TOLERANCE).sum())
        self.control += int((moved > TOLERANCE).sum())
        self.largest = max(self.largest, float(error.max()) if error.numel() else 0.0)


def check_rounds(
    pair: LoadedPair,
    label: str,
    methods: Sequence[tuple[Context, BoundMethod]],
    sampling: Sampling,
    how: SampleOptions,
) -> list[Finding]:
    """Sample a method on several prompts, each with its bound method, and compare with the laws."""
    streams = {name: Stream(how.seed) for name in STREAMS}
    first, errors = Counts(how.seed), {PROBABILITIES: Errors(), WEIGHTS: Errors()}
    for context, method in methods:
        few = how._replace(texts=how.texts // len(methods))
        found = tokens_of(sample(pair, method, context, sampling, few))
        # Memory holds about ten tensors of the size of a part's laws at once.
        numbers = 10 * found.tokens.shape[1] * pair.target.vocabulary
        for rows in torch.arange(few.texts).split(max(1, MAX_NUMBERS // numbers)):
            part = Tokens(*(column[rows].to(pair.target.device) for column in found))
            # The law of a bonus token, which has no draft, is not used.
            position = part.place.clamp_max(how.draft_length - 1)
            laws = laws_at(pair, context, method, sampling, part.tokens, position)
            _compare(method, part, laws, streams, errors)
        # The first tokens of all texts of a prompt have the same law.
        seen = found.tokens[:, 0]
        laws = laws_at(pair, context, method, sampling, found.tokens[:1, :1], found.place[:1, :1])
        if laws.split is not None:
            law = laws.split.kept + laws.split.replaced
            first.add(law[0], farther(law, laws.at)[0], seen)
    subject = f"{label}, {describe(sampling)}"
    lawless = any(method.rule and not method.law for _, method in methods)
    untested = NEED_LAW if lawless else ()
    tests: dict[str, Counts | Stream] = {NEXT: first, **streams}
    outcomes = {name: test.outcome(how.alpha) for name, test in tests.items()}
    return [
        *(
            _tested(subject, name, outcome, how.alpha)
            for name, outcome in outcomes.items()
            if (outcome.draws or name in (NEXT, TOKENS)) and name not in untested
        ),
        *(Finding(LAW, subject, name, NO_LAW, f"{label} has no law") for name in untested),
        *(_reported(subject, name, e, how.exact) for name, e in errors.items() if e.count),
    ]


def describe(sampling: Sampling) -> str:
    """Return a short description of the sampling."""
    parts = [f"T={sampling.temperature:g}"]
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k is not None else []
    parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p is not None else []
    parts += [f"min-p {sampling.min_p:g}"] if sampling.min_p is not None else []
    return " ".join(parts)


def laws_at(
    pair: LoadedPair,
    context: Context,
    method: BoundMethod,
    sampling: Sampling,
    tokens: Tensor,
    position: Tensor,
) -> Laws:
    """Return the laws at all tokens ``[K, T]`` of a prompt's texts, flattened row by row.

    ``position`` ``[K, T]`` is the index of each token within its round, from 0.
    """
    sampling = method.sampling(sampling)
    texts = [[*context.prompt, *text] for text in tokens.tolist()]
    forward = partial(plain_pass, texts=texts, last=tokens.shape[1], hidden=method.head is not None)
    target, draft = forward(pair.target), forward(pair.draft)
    p_logits, q_logits = (found.logits.flatten(0, 1) for found in (target, draft))
    p, q = (processed(logits, sampling) for logits in (p_logits, q_logits))
    p1, q1 = (logits.double().softmax(-1) for logits in (p_logits, q_logits))
    at = Next(p, q, p1, q1, position.flatten().to(p.device))
    if method.rule is None:
        return Laws(at, Split(torch.zeros_like(at.p), at.p), None)
    weight = None
    if method.head is not None:
        h_p, h_q = (found.hidden.flatten(0, 1) for found in (target, draft))
        p, q, p1, q1 = (part.float() for part in at[:4])
        weight = method.head.weigh(Positions(p, q, p1, q1, h_p, h_q, greedy=False)).double()
    return Laws(at, _split(method, at, weight), weight)


def _split(method: BoundMethod, at: Next, weight: Tensor | None) -> Split | None:
    """Return the law of a method at K positions; the user's own law may be wrong.

    Raises:
        UsageError: It raises, or does not return a mass for every token.
    """
    if method.law is None:
        return None
    with user_code(method.law, f"the law of {method.method}"):
        kept, replaced = method.law(at, **parameters_of(dict(method.parameters), weight))
        sound = kept.shape == replaced.shape == at.p.shape and not (kept + replaced).isnan().any()
    if not sound:
        where = place(f"the law {method.law.__name__} of {method.method}", method.law)
        raise UsageError(f"{where} must return two tensors like p without NaN: correct it")
    return Split(kept, replaced)


def farther(law: Tensor, at: Next) -> Tensor:
    """Return the wrong law: row by row, whichever of p and q is farther from the law."""
    to_p, to_q = ((law - other).abs().sum(-1, keepdim=True) for other in (at.p, at.q))
    return torch.where(to_q >= to_p, at.q, at.p)


def _compare(
    method: BoundMethod,
    found: Tokens,
    laws: Laws,
    streams: Mapping[str, Stream],
    errors: Mapping[str, Errors],
) -> None:
    """Add texts of one prompt to the streams of draws and to the errors."""
    at, split, weight = laws
    flat = Tokens(*(column.flatten() for column in found))
    own, judged = flat.kind == OWN, flat.kind != OWN
    if split is not None:
        law = torch.where(own[:, None], at.p, split.kept + split.replaced)
        streams[TOKENS].add(law, farther(law, at), flat.tokens)
    if method.rule is None:
        return
    streams[BONUS].add(at.p[own], at.q[own], flat.tokens[own])
    joint = method.method in JOINT
    if joint:
        judged &= flat.place == 0
    streams[DRAFTS].add(at.q[judged], at.p[judged], flat.drafted[judged])
    shape, corrected = found.kind.shape, flat.kind == CORRECTED
    if weight is not None:
        errors[WEIGHTS].add(found.weight, weight.view(shape))
    if split is None:  # the mean over drafts, which the rule reported before the draw
        accept = flat.expected[judged][:, None].to(at.p)
    else:
        expected = torch.where(judged, flat.expected, torch.nan)
        errors[PROBABILITIES].add(expected.view(shape), split.kept.sum(-1).view(shape))
        if joint:
            return
        # A draft with q = 0 has no acceptance probability; the test of drafts above covers it.
        ratio = torch.where(at.q > 0, split.kept / at.q, 1)[judged]
        accept = ratio.gather(-1, flat.drafted[judged][:, None])
        residual = normalised(split.replaced[corrected])
        streams[CORRECTIONS].add(residual, at.q[corrected], flat.tokens[corrected])
    accept = accept.clamp(0, 1)
    always = torch.tensor([1.0, 0.0], dtype=accept.dtype, device=accept.device)
    decisions = torch.cat((accept, 1 - accept), 1)
    streams[ACCEPTANCE].add(decisions, always.expand_as(decisions), corrected[judged].long())


def _tested(subject: str, name: str, outcome: Outcome, alpha: float) -> Finding:
    verdict, says = OK, f"{outcome.draws:,} draws, p = {outcome.p_value:.2g}"
    if outcome.p_value < alpha:
        verdict, says = FAILED, f"{COMPARED[name][1]} ({says})"
    elif outcome.control >= alpha:
        verdict = WEAK
        says = f"a wrong law would also pass ({says}, control {outcome.control:.2g})"
    return Finding(LAW, subject, name, verdict, says, outcome._asdict() | {"alpha": alpha})


def _reported(subject: str, name: str, found: Errors, exact: bool) -> Finding:
    says = f"{found.off:,} of {found.count:,} positions are off by more than {TOLERANCE:g}"
    verdict, most = OK if exact else REPORT, EXCEPTIONS * found.count
    if exact and found.off > most:
        verdict = FAILED
        says = f"{COMPARED[name][1]} ({says}, at most by {found.largest:.2g})"
    elif exact and found.control <= most:
        verdict = WEAK
        says = f"the numbers of the previous positions would also pass ({says})"
    facts: dict[str, Any] = {
        "positions": found.count,
        "off": found.off,
        "control": found.control,
        "largest_error": found.largest,
        "tolerance": TOLERANCE,
    }
    return Finding(LAW, subject, name, verdict, says, facts)


def rounds_table(findings: Sequence[Finding]) -> Table:
    """Return the verdicts on sampled rounds, one row per method and sampling."""
    verdicts: dict[str, dict[str, str]] = {}
    for finding in findings:
        verdicts.setdefault(finding.subject, {})[finding.name] = finding.verdict
    rows = []
    for subject, found in verdicts.items():
        method, _, sampling = subject.rpartition(", T=")
        rows.append([method, sampling.split()[0], *(found.get(name, "") for name in COMPARED)])
    rows.append(["smallest share", "", *(_smallest_share(findings, name) for name in COMPARED)])
    columns = [Column(name) for name in ("method", "T", *(head for head, _ in COMPARED.values()))]
    title = "Sampled rounds against their exact laws"
    notes = [SMALLEST_SHARE]
    if any(finding.verdict == NO_LAW for finding in findings):
        notes.append(WITHOUT_LAW)
    return drop_empty(Table(title, columns, rows, notes=notes, stub=2))


def _smallest_share(findings: Sequence[Finding], name: str) -> str:
    """Return the smallest fault that every row detects; blank if some row detects none."""
    facts = [f.facts for f in findings if f.name == name and f.verdict != NO_LAW]
    if name in (PROBABILITIES, WEIGHTS):
        return f"{TOLERANCE:g}" if facts else ""
    shares = [known["share"] for known in facts]
    return f"{max(shares):.0%}" if shares and None not in shares else ""
