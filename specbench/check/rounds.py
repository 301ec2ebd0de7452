"""Sampled rounds of the real loop against the exact law of everything in them.

Many texts are sampled from each of a few real prompts. Two plain forward passes over each text then
say what p and q were wherever a token was drafted, judged or drawn; the closed forms of ``laws``
say what follows from them. Each kind of draw is tested by itself, so that what fails names the
part: the drafts must follow q, acceptance the rule, corrections the residual, bonus tokens p.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.check.chance import Counts, Outcome, Stream
from specbench.check.emitted import CORRECTED, OWN, Emitted, emitted
from specbench.check.findings import FAILED, OK, REPORT, WEAK, Finding
from specbench.check.passes import MOST_NUMBERS, plain_pass, processed
from specbench.check.texts import Context, Rule, Sampled, describe, sample
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.methods import Positions
from specbench.methods.laws import JOINT, LAWS, Next, normalised, parameters_of

PART = "law"
NEXT, TOKENS, DRAFTS = "next token", "tokens", "drafts"
ACCEPTANCE, CORRECTIONS, BONUS = "acceptance", "corrections", "bonus tokens"
PROBABILITIES, WEIGHTS = "probabilities", "weights"
TESTS = (NEXT, TOKENS, DRAFTS, ACCEPTANCE, CORRECTIONS, BONUS)

# What it means where one of them fails.
MEANING = {
    NEXT: "the token after the prompt does not follow the method's law",
    TOKENS: "tokens along the text do not follow the method's law",
    DRAFTS: "drafted tokens are no draws from q, so verification is told another q than was used",
    ACCEPTANCE: "drafts are not accepted with the rule's probability",
    CORRECTIONS: "tokens in the place of rejected drafts do not follow the residual",
    BONUS: "tokens after drafts that were all accepted do not follow p",
    PROBABILITIES: "acceptance probabilities are not those of plain forward passes: look at "
    "positions, cache slots and the processing of logits",
    WEIGHTS: "weights are not those of the head on the hidden states that predict the token",
}
# A reported probability may be off by so much, and one in so many by more: rounding may decide
# whether a token is inside top-p or beyond a rule's threshold.
TOLERANCE, EXCEPTIONS = 1e-3, 0.01


def check_rounds(
    pair: LoadedPair,
    label: str,
    rules: Sequence[tuple[Context, Rule]],
    sampling: Sampling,
    how: Sampled,
) -> list[Finding]:
    """Sample one method and compare.

    Args:
        pair: The models.
        label: What the method is called.
        rules: The prompts, each with the method as it decodes it.
        sampling: Processing of the logits.
        how: How many rounds, and which.
    """
    streams: dict[str, Stream] = {name: Stream(how.seed) for name in TESTS[1:]}
    first, errors = Counts(how.seed), {PROBABILITIES: Errors(), WEIGHTS: Errors()}
    for context, rule in rules:
        texts = how.texts // len(rules)
        generations = sample(pair, rule, context, texts, sampling, how)
        found = emitted(generations)
        for rows in torch.arange(texts).split(_rows_at_once(pair, found.tokens.shape[1])):
            part = Emitted(*(column[rows].to(pair.target.device) for column in found))
            _compare(pair, context, rule, sampling, part, streams, errors)
        _compare_first(pair, context, rule, sampling, found.tokens[:, 0], first)
    subject = f"{label}, {describe(sampling)}"
    return [
        *_tested(subject, {NEXT: first, **streams}, how.alpha),
        *_compared(subject, errors, how.exact),
    ]


class Laws(NamedTuple):
    """What follows from p and q at K positions."""

    at: Next
    kept: Tensor
    replaced: Tensor
    weight: Tensor | None


def laws_at(
    pair: LoadedPair, context: Context, rule: Rule, sampling: Sampling, tokens: Tensor
) -> Laws:
    """Return the law at every token ``[K, T]`` of texts that follow a prompt, row after row."""
    texts = [[*context.prompt, *text] for text in tokens.tolist()]
    read = partial(plain_pass, texts=texts, last=tokens.shape[1], hidden=rule.head is not None)
    target, draft = read(pair.target), read(pair.draft)
    p_logits, q_logits = (said.logits.flatten(0, 1) for said in (target, draft))
    p, q = (processed(logits, sampling) for logits in (p_logits, q_logits))
    p1, q1 = (logits.double().softmax(-1) for logits in (p_logits, q_logits))
    at = Next(p, q, p1, q1)
    if rule.verify is None:
        return Laws(at, torch.zeros_like(at.p), at.p, None)
    weight = None
    if rule.head is not None:
        h_p, h_q = (said.hidden.flatten(0, 1) for said in (target, draft))
        p, q, p1, q1 = (part.float() for part in at[:4])
        weight = rule.head.weigh(Positions(p, q, p1, q1, h_p, h_q, greedy=False)).double()
    split = LAWS[rule.method](at, **parameters_of(dict(rule.parameters), weight))
    return Laws(at, *split, weight)


def _compare(
    pair: LoadedPair,
    context: Context,
    rule: Rule,
    sampling: Sampling,
    found: Emitted,
    streams: Mapping[str, Stream],
    errors: Mapping[str, Errors],
) -> None:
    """Take in some texts of one prompt."""
    at, kept, replaced, weight = laws_at(pair, context, rule, sampling, found.tokens)
    flat = Emitted(*(column.flatten() for column in found))
    own, judged = flat.kind == OWN, flat.kind != OWN
    law = torch.where(own[:, None], at.p, kept + replaced)
    streams[TOKENS].add(law, farther(law, at.p, at.q), flat.tokens)
    if rule.verify is None:
        return
    streams[BONUS].add(at.p[own], at.q[own], flat.tokens[own])
    joint = rule.method in JOINT
    if joint:
        judged &= flat.place == 0
    streams[DRAFTS].add(at.q[judged], at.p[judged], flat.drafted[judged])
    shape = found.kind.shape
    expected = torch.where(judged, flat.expected, torch.nan)
    errors[PROBABILITIES].add(expected.view(shape), kept.sum(-1).view(shape))
    if joint:
        return
    corrected = flat.kind == CORRECTED
    # A draft that q cannot draw has no acceptance probability; as a draft it was tested above.
    ratio = torch.where(at.q > 0, kept / at.q, 1)[judged]
    accept = ratio.gather(-1, flat.drafted[judged][:, None]).clamp(0, 1)
    always = torch.tensor([1.0, 0.0], dtype=accept.dtype, device=accept.device)
    chance = torch.cat((accept, 1 - accept), 1)
    streams[ACCEPTANCE].add(chance, always.expand_as(chance), corrected[judged].long())
    residual = normalised(replaced[corrected])
    streams[CORRECTIONS].add(residual, at.q[corrected], flat.tokens[corrected])
    if weight is not None:
        errors[WEIGHTS].add(found.weight, weight.view(shape))


def _compare_first(
    pair: LoadedPair, context: Context, rule: Rule, sampling: Sampling, seen: Tensor, first: Counts
) -> None:
    """Take in the first tokens of all texts of one prompt, whose law is the same."""
    at, kept, replaced, _ = laws_at(pair, context, rule, sampling, seen[:1, None])
    law = kept + replaced
    first.add(law[0], farther(law, at.p, at.q)[0], seen)


def farther(law: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return, row by row, whichever of p and q the law is farther from: the wrong law."""
    to_p, to_q = ((law - other).abs().sum(-1, keepdim=True) for other in (p, q))
    return torch.where(to_q >= to_p, q, p)


class Errors:
    """Numbers that the loop reported beside the ones that they should be."""

    def __init__(self) -> None:
        self.count = self.off = self.control = 0
        self.largest = 0.0

    def add(self, reported: Tensor, right: Tensor) -> None:
        """Take in numbers ``[K, T]``; those that are not numbers were not reported."""
        there = ~reported.isnan()
        error = (reported - right).abs()[there]
        # The control: each position's number held against the one of the position before.
        moved = (reported - right.roll(1, -1)).abs()[there]
        self.count += int(there.sum())
        self.off += int((error > TOLERANCE).sum())
        self.control += int((moved > TOLERANCE).sum())
        self.largest = max(self.largest, float(error.max()) if error.numel() else 0.0)

    def verdict(self, exact: bool) -> str:
        """Return what is to be thought of them."""
        if not exact:
            return REPORT
        if self.off > EXCEPTIONS * self.count:
            return FAILED
        return OK if self.control > EXCEPTIONS * self.count else WEAK


def _verdict(outcome: Outcome, alpha: float) -> str:
    if outcome.p_value < alpha:
        return FAILED
    return OK if outcome.control < alpha else WEAK


def _tested(
    subject: str, streams: Mapping[str, Stream | Counts], alpha: float
) -> Iterator[Finding]:
    for name, stream in streams.items():
        outcome = stream.outcome(alpha)
        if outcome.draws == 0 and name not in (NEXT, TOKENS):
            continue
        verdict = _verdict(outcome, alpha)
        tested = f"{outcome.draws:,} draws, p = {outcome.p_value:.2g}"
        if verdict == FAILED:
            says = f"{MEANING[name]} ({tested})"
        elif verdict == WEAK:
            says = f"a wrong law would pass as well ({tested}, control {outcome.control:.2g})"
        else:
            says = tested
        yield Finding(PART, subject, name, verdict, says, outcome._asdict() | {"alpha": alpha})


def _compared(subject: str, errors: Mapping[str, Errors], exact: bool) -> Iterator[Finding]:
    for name, found in errors.items():
        if not found.count:
            continue
        verdict = found.verdict(exact)
        says = f"{found.off:,} of {found.count:,} positions are off by more than {TOLERANCE:g}"
        if verdict == FAILED:
            says = f"{MEANING[name]} ({says}, at most by {found.largest:.2g})"
        elif verdict == WEAK:
            says = f"those of the positions before would pass as well ({says})"
        facts = {
            "positions": found.count,
            "off": found.off,
            "control": found.control,
            "largest_error": found.largest,
            "tolerance": TOLERANCE,
        }
        yield Finding(PART, subject, name, verdict, says, facts)


def _rows_at_once(pair: LoadedPair, tokens: int) -> int:
    """Texts whose laws are in memory at once; there are about ten tensors of their size."""
    return max(1, MOST_NUMBERS // (10 * tokens * pair.target.vocabulary))
