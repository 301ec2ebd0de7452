"""Compare sampled rounds of the real loop with their exact laws.

Many texts are sampled from each of a few real prompts, and whole outputs with an end token, a stop
string and a limit from two of them. Two plain forward passes over each text give p and q at every
position; the closed forms of ``methods.laws`` give the laws that follow from them. Each kind of
draw is tested separately, so that a failure names the part: drafts must follow the drafter's q,
acceptance the rule, corrections the residual, and bonus tokens p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Tensor

from specbench.check.draws import POWER, Counts, Outcome, Stream
from specbench.check.findings import FAILED, OK, REPORT, WEAK, Finding
from specbench.check.laws import Laws, farther, laws_at
from specbench.check.outputs import (
    RARE,
    ends_rightly,
    enumerate_outputs,
    next_token,
    stop_reason,
)
from specbench.check.passes import MAX_NUMBERS
from specbench.check.replays import distances
from specbench.check.texts import (
    ACCEPTED,
    CORRECTED,
    OWN,
    ROUNDS,
    VOID,
    Context,
    Ends,
    SampleOptions,
    Tokens,
    random_numbers,
    sample,
    tokens_of,
)
from specbench.decoding.drafting import Drafter
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.heads.bind import BoundMethod
from specbench.methods.laws import JOINT, normalised
from specbench.table import Column, Table, drop_empty

LAW = "law"  # name of this part of the check
NEXT, TOKENS, DRAFTS = "next token", "tokens", "drafts"
ACCEPTANCE, CORRECTIONS, BONUS = "acceptance", "corrections", "bonus tokens"
PROBABILITIES, WEIGHTS = "probabilities", "weights"
OUTPUTS, ENDINGS, REPLAYS = "outputs", "endings", "replays"
STREAMS = (TOKENS, DRAFTS, ACCEPTANCE, CORRECTIONS, BONUS)
TESTS = (NEXT, *STREAMS)  # of one row; OUTPUTS takes the place of NEXT if there are ends

COMPARED = {  # heading, and the meaning of a failure
    NEXT: ("next\ntoken", "the token after the prompt does not follow the method's law"),
    OUTPUTS: ("out-\nputs", "whole outputs do not follow the method's law"),
    ENDINGS: ("ends", "outputs do not end at the first end token, stop string or limit"),
    TOKENS: ("tokens", "tokens along the text do not follow the method's law"),
    DRAFTS: ("drafts", "drafted tokens do not follow the q that verification receives"),
    ACCEPTANCE: ("ac-\ncepted", "drafts are not accepted with the rule's probability"),
    CORRECTIONS: ("cor-\nrected", "tokens that replace rejected drafts do not follow the residual"),
    BONUS: ("bonus", "tokens after drafts that were all accepted do not follow p"),
    REPLAYS: (
        "re-\nplays",
        "drafts, acceptance or tokens are not those that their random numbers give: check which "
        "number decides what, and what the drafter proposes",
    ),
    PROBABILITIES: (
        "proba-\nbilities",
        "acceptance probabilities differ from those of plain forward passes: check positions, "
        "cache slots and the processing of logits",
    ),
    WEIGHTS: ("weights", "weights are not the head's for the hidden states that predict the token"),
}
NEED_LAW = (NEXT, OUTPUTS, TOKENS, CORRECTIONS, PROBABILITIES)
NO_LAW = "no law"  # verdict on what a rule without a law leaves untested
WITHOUT_LAW = (
    f"{NO_LAW}: not tested, because the rule has no exact law; add one with @rule(law=...). "
    "Without it, acceptance is compared with the probabilities that the rule reported (`expected`)."
)
SMALLEST_SHARE = (
    "Smallest share: of wrong draws, ends or numbers that is detected with 99 % probability, in "
    "the least sensitive row. Numbers are wrong if they are off by more than 0.001."
)
WHOLE = "whole outputs"

TOLERANCE = 1e-3  # for probabilities, weights and random numbers
# These shares may be off by more, because rounding may decide whether a token is inside top-p or
# beyond a rule's threshold. It rarely decides a draw as well.
EXCEPTIONS = {PROBABILITIES: 0.01, WEIGHTS: 0.01, REPLAYS: 0.001}


@dataclass
class Deviations:
    """Numbers that must agree with plain passes up to rounding."""

    exceptions: float  # share that may be off
    count: int = 0
    off: int = 0
    control: int = 0
    largest: float = 0.0

    def add(self, error: Tensor, control: Tensor) -> None:
        """Add errors and those of a negative control; both are NaN where there is no number."""
        error, control = (part[~part.isnan()] for part in (error, control))
        self.count += error.numel()
        self.off += int((error > TOLERANCE).sum())
        self.control += int((control > TOLERANCE).sum())
        self.largest = max(self.largest, float(error.max()) if error.numel() else 0.0)

    @property
    def allowed(self) -> int:
        """The most numbers that may be off."""
        return max(1, int(self.exceptions * self.count))

    @property
    def share(self) -> float | None:
        """The smallest share of wrong numbers that is detected with probability ``POWER``."""

        def missing(share: float) -> float:
            return float(binom.sf(self.allowed, self.count, share)) - POWER

        return float(brentq(missing, 0, 1)) if self.count > self.allowed else None


@dataclass
class Endings:
    """How outputs ended."""

    count: int = 0
    wrong: int = 0
    early: int = 0  # by their end token or stop string
    inside: int = 0  # of these, with an accepted draft

    def add(self, pair: LoadedPair, ends: Ends, generations: Sequence[Generation]) -> None:
        """Add the outputs of a prompt."""
        self.count += len(generations)
        self.wrong += sum(not ends_rightly(pair, ends, text) for text in generations)
        early = [text.rounds[-1] for text in generations if text.stopped_by != "length"]
        self.early += len(early)
        self.inside += sum(record.accepted == record.emitted for record in early)


Groups = Sequence[tuple[BoundMethod, Sequence[Context]]]
"""A method and its prompts, once for each of its heads, which may depend on the task."""


class Case(NamedTuple):
    """What is sampled in one row of the table."""

    label: str
    methods: Groups
    drafter: Drafter
    sampling: Sampling
    ends: Ends | None = None  # of whole outputs; None samples whole rounds

    @property
    def subject(self) -> str:
        """A description of the row."""
        whole = [WHOLE] if self.ends else []
        return ", ".join([self.label, describe(self.sampling), *whole])


def check_rounds(pair: LoadedPair, case: Case, how: SampleOptions) -> list[Finding]:
    """Sample rounds or whole outputs of a method and compare them with the laws."""
    streams = {name: Stream(how.seed) for name in STREAMS}
    counts, endings = Counts(how.seed), Endings()
    deviations = {name: Deviations(share) for name, share in EXCEPTIONS.items()}
    ends = case.ends or Ends(ROUNDS * (how.draft_length + 1) + 1)
    until = case.ends or Ends(limit=1)  # of the outputs whose law is enumerated
    for method, contexts in case.methods:
        n = how.draft_length if method.rule else 0
        batch = sample(pair, method, contexts, case.sampling, how, ends, case.drafter)
        for context, generations in zip(contexts, batch, strict=True):
            texts = tokens_of(
                generations, context.prompt, ends, case.drafter, n, pair.target.vocabulary
            )
            numbers = random_numbers(context, how, int(texts.round.max()) + 1, n)
            # Memory holds about ten tensors of the size of a part's laws at once.
            size = 10 * texts.tokens.shape[1] * pair.target.vocabulary
            for rows in torch.arange(how.texts).split(max(1, MAX_NUMBERS // size)):
                part = Tokens(*(column[rows].to(pair.target.device) for column in texts))
                laws = laws_at(
                    pair,
                    method,
                    case.sampling,
                    [[*context.prompt, *text] for text in part.tokens.tolist()],
                    part.place.clamp_max(max(n - 1, 0)),  # a bonus token has no draft
                    case.drafter,
                    part.proposed.flatten(),
                )
                _compare(method, part, laws, streams, deviations)
                # The control: the random numbers of another text.
                alternatives = torch.stack((numbers[rows], numbers[rows - 1]), 1)
                _replay(method, part, laws, alternatives.to(pair.target.device), deviations)
            endings.add(pair, ends, generations)
            if method.rule is None or method.law is not None:
                law = enumerate_outputs(
                    partial(next_token, pair, context, method, case.drafter, case.sampling, n),
                    RARE / how.texts,
                    lambda output: stop_reason(pair, until, output) is None,
                )
                outputs = [tuple(ends.output(text)[: until.limit]) for text in generations]
                counts.add(law.law, law.wrong, torch.tensor([law.cell(each) for each in outputs]))
    lawless = any(method.rule and not method.law for method, _ in case.methods)
    name, unused = (OUTPUTS, NEXT) if case.ends else (NEXT, OUTPUTS)
    untested = [test for test in NEED_LAW if test != unused] if lawless else []
    tests: dict[str, Counts | Stream] = {name: counts, **streams}
    outcomes = {test: tests[test].outcome(how.alpha) for test in tests if test not in untested}
    return [
        *(
            _tested(case.subject, test, outcome, how.alpha)
            for test, outcome in outcomes.items()
            if outcome.draws or test in (name, TOKENS)
        ),
        *([_ended(case.subject, endings)] if case.ends else []),
        *(
            Finding(LAW, case.subject, test, NO_LAW, f"{case.label} has no law")
            for test in untested
        ),
        *(
            _reported(case.subject, test, deviation, how.exact)
            for test, deviation in deviations.items()
            if deviation.count
        ),
    ]


def describe(sampling: Sampling) -> str:
    """Return a short description of the sampling."""
    parts = [f"T={sampling.temperature:g}"]
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k is not None else []
    parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p is not None else []
    parts += [f"min-p {sampling.min_p:g}"] if sampling.min_p is not None else []
    return " ".join(parts)


def _compare(
    method: BoundMethod,
    texts: Tokens,
    laws: Laws,
    streams: Mapping[str, Stream],
    deviations: Mapping[str, Deviations],
) -> None:
    """Add texts of one prompt to the streams of draws and to the deviations."""
    at, split, weight = laws[:3]
    flat, shape = texts.flatten(), texts.kind.shape
    own, corrected = flat.kind == OWN, flat.kind == CORRECTED
    judged = (flat.kind == ACCEPTED) | corrected
    if split is not None:
        real = flat.kind != VOID
        law = torch.where(own[:, None], at.p, split.kept + split.replaced)
        streams[TOKENS].add(law[real], farther(law, at)[real], flat.tokens[real])
    if method.rule is None:
        return
    streams[BONUS].add(at.p[own], at.q[own], flat.tokens[own])
    joint = method.method in JOINT
    if joint:
        judged &= flat.place == 0
    streams[DRAFTS].add(at.q[judged], at.p[judged], flat.drafted[judged])
    if weight is not None:
        _add(deviations[WEIGHTS], texts.weight, weight.view(shape))
    if split is None:  # the mean over drafts, which the rule reported before the draw
        accept = flat.expected[judged][:, None].to(at.p)
    else:
        expected = torch.where(judged, flat.expected, torch.nan)
        _add(deviations[PROBABILITIES], expected.view(shape), split.kept.sum(-1).view(shape))
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


def _add(deviations: Deviations, reported: Tensor, correct: Tensor) -> None:
    """Add numbers ``[K, T]``; the control is the correct number of the previous position."""
    deviations.add((reported - correct).abs(), (reported - correct.roll(1, -1)).abs())


def _replay(
    method: BoundMethod,
    texts: Tokens,
    laws: Laws,
    numbers: Tensor,
    deviations: Mapping[str, Deviations],
) -> None:
    """Compare texts with their random numbers ``[K, 2, rounds, 2 N + 1]`` and those of others."""
    rounds = texts.round[:, None, :, None].expand(-1, 2, -1, numbers.shape[-1])
    each_token = numbers.gather(2, rounds).transpose(1, 2).flatten(0, 1)
    error = distances(method, texts.flatten(), laws, each_token)
    error[texts.kind.flatten() == VOID] = torch.nan
    deviations[REPLAYS].add(*error.T)


def _tested(subject: str, name: str, outcome: Outcome, alpha: float) -> Finding:
    verdict, sentence = OK, f"{outcome.draws:,} draws, p = {outcome.p_value:.2g}"
    if outcome.p_value < alpha:
        verdict, sentence = FAILED, f"{COMPARED[name][1]} ({sentence})"
    elif outcome.control >= alpha:
        verdict = WEAK
        sentence = f"a wrong law would also pass ({sentence}, control {outcome.control:.2g})"
    return Finding(LAW, subject, name, verdict, sentence, outcome._asdict() | {"alpha": alpha})


def _ended(subject: str, endings: Endings) -> Finding:
    rarest = min(endings.early, endings.count - endings.early)
    verdict = OK if rarest else WEAK
    sentence = (
        f"{endings.early:,} of {endings.count:,} outputs end before their limit, "
        f"{endings.inside:,} with an accepted draft"
    )
    if endings.wrong:
        verdict = FAILED
        sentence = f"{COMPARED[ENDINGS][1]} ({endings.wrong:,} of {endings.count:,})"
    share = 1 - (1 - POWER) ** (1 / rarest) if rarest else None
    return Finding(LAW, subject, ENDINGS, verdict, sentence, vars(endings) | {"share": share})


def _reported(subject: str, name: str, deviations: Deviations, exact: bool) -> Finding:
    count, off = deviations.count, deviations.off
    sentence = f"{off:,} of {count:,} positions are off by more than {TOLERANCE:g}"
    verdict = OK if exact else REPORT
    if exact and off > deviations.allowed:
        verdict = FAILED
        sentence = f"{COMPARED[name][1]} ({sentence}, at most by {deviations.largest:.2g})"
    elif exact and deviations.control <= deviations.allowed:
        verdict = WEAK
        sentence = f"the negative control would also pass ({sentence})"
    facts: dict[str, Any] = {
        "positions": count,
        "off": off,
        "control": deviations.control,
        "largest_error": deviations.largest,
        "tolerance": TOLERANCE,
        "share": deviations.share,
    }
    return Finding(LAW, subject, name, verdict, sentence, facts)


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
    shown = [_facts(findings, name) for name in COMPARED]
    for title, summary in (
        ("fewest draws", _fewest_draws),
        ("smallest p", _smallest_p),
        ("smallest share", _smallest_share),
    ):
        rows.append([title, "", *(summary(facts) if facts else "" for facts in shown)])
    columns = [
        Column(name) for name in ("method", "texts", *(head for head, _ in COMPARED.values()))
    ]
    title = "Sampled rounds against their exact laws"
    notes = [SMALLEST_SHARE]
    if any(finding.verdict == NO_LAW for finding in findings):
        notes.append(WITHOUT_LAW)
    return drop_empty(Table(title, columns, rows, notes=notes, stub=2))


def _facts(findings: Sequence[Finding], name: str) -> list[dict[str, Any]]:
    """Return the facts of one comparison; whole outputs count if nothing else shows it."""
    tested = [f for f in findings if f.name == name and f.verdict != NO_LAW]
    rounds = [f.facts for f in tested if not f.subject.endswith(WHOLE)]
    return rounds or [f.facts for f in tested]


def _fewest_draws(facts: Sequence[dict[str, Any]]) -> str:
    numbers = ("draws", "positions", "count")
    return f"{min(next(f[name] for name in numbers if name in f) for f in facts):,}"


def _smallest_p(facts: Sequence[dict[str, Any]]) -> str:
    return f"{min(f['p_value'] for f in facts):.2g}" if "p_value" in facts[0] else ""


def _smallest_share(facts: Sequence[dict[str, Any]]) -> str:
    """Return the smallest fault that every row detects; blank if some row detects none."""
    shares = [f["share"] for f in facts]
    return f"{100 * max(shares):.2g}%" if None not in shares else ""
