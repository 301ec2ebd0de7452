"""Compare sampled rounds of the real loop with their exact laws.

Many texts are sampled from each of a few real prompts, and whole outputs with an end token, a stop
string and a limit from two of them. Two plain forward passes over each text give p and q at every
position; the closed forms of ``methods.laws`` give the laws that follow from them. Each kind of
draw is tested separately, so that a failure names the part: drafts must follow the drafter's q,
acceptance the rule, corrections the residual, and bonus tokens p.

Every draw is also compared with the random number that decides it. The random numbers of a text
are known, so p and q of plain passes determine each draft, each acceptance, and each correction or
bonus token. This detects far smaller faults than a statistical test does, and draws that are
correct one by one but not independent. Faults of the random numbers themselves are left to the
statistical tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.heads.bind import BoundMethod
from specbench.decoding.records import Generation
from specbench.engine.passes import MAX_NUMBERS
from specbench.methods.laws import normalised
from specbench.validation import findings, texts
from specbench.validation.draws import Counts, Numbers, Stream
from specbench.validation.laws import Laws, farther, laws_at
from specbench.validation.outputs import BLOCKS, ends_rightly, outputs_of

IMPOSSIBLE = 2.0  # distance of a draw that no random number gives


def distances(method: BoundMethod, tokens: texts.Tokens, laws: Laws, numbers: Tensor) -> Tensor:
    """Return how far random numbers are from those that give the tokens of K texts.

    ``numbers`` ``[K, S, rounds, 2 N + 1]`` are S alternatives for each text. The result, ``[K T,
    S]``, is the largest distance over the draws of a token; 0 if all of them agree.
    """
    rounds = tokens.round[:, None, :, None].expand(-1, numbers.shape[1], -1, numbers.shape[-1])
    numbers = numbers.gather(2, rounds).transpose(1, 2).flatten(0, 1)
    tokens = tokens.flatten()
    position = tokens.position[:, None, None].expand(-1, numbers.shape[1], 1)
    n = numbers.shape[-1] // 2
    for_draft = numbers.gather(-1, position)[..., 0]
    for_acceptance = numbers.gather(-1, position + n)[..., 0]
    corrected, final = tokens.kind == texts.CORRECTED, tokens.kind == texts.TARGET
    judged, joint = tokens.judged, method.joint
    largest, law = torch.zeros_like(for_draft), laws.at.p
    if method.rule is not None:
        drafted = tokens.drafted[judged]
        largest[judged] = _outside(laws.at.q[judged], drafted, for_draft[judged])
        verdict = method.rule(laws.positions.part(judged), drafted)
        law = law.index_put((judged,), verdict.residual.double())
        final = final | (corrected & (tokens.position == 0) if joint else corrected)
    if judged.any() and not joint:
        acceptance = laws.acceptance(tokens.drafted)
        accept = verdict.accept.double() if acceptance is None else acceptance[judged]
        above = for_acceptance[judged] - accept[:, None]
        above = torch.where(corrected[judged][:, None], -above, above)
        largest[judged] = torch.maximum(largest[judged], above.clamp_min(0))
    at_end = _outside(law[final], tokens.tokens[final], numbers[final][..., -1])
    largest[final] = torch.maximum(largest[final], at_end)
    if method.control is None:  # drafting must not stop earlier
        largest[(tokens.kind == texts.TARGET) & (tokens.proposed != texts.NOTHING)] = IMPOSSIBLE
    largest[tokens.kind == texts.VOID] = torch.nan
    return largest


def _outside(law: Tensor, drawn: Tensor, numbers: Tensor) -> Tensor:
    """Return how far numbers ``[R, S]`` are outside the interval of a draw from laws ``[R, V]``."""
    cumulative = law.cumsum(-1)
    mass, end = law.gather(-1, drawn[:, None]), cumulative.gather(-1, drawn[:, None])
    whole = cumulative[:, -1:]
    outside = torch.maximum((end - mass) / whole - numbers, numbers - end / whole).clamp_min(0)
    return torch.where(mass > 0, outside, IMPOSSIBLE)


TESTS = 6  # of a row, with a p-value: of outputs and of the five streams of draws
NEED_DRAWS = {"next token", "outputs", "tokens"}  # which every method has
NEED_LAW = {"next token", "outputs", "tokens", "corrections", "probabilities"}
STREAMS = ("tokens", "drafts", "acceptance", "corrections", "bonus tokens")
# These shares of numbers may be off, because rounding may decide whether a token is inside top-p or
# beyond a rule's threshold. It rarely decides a draw as well, and never an ending.
EXCEPTIONS = {"endings": 0.0, "replays": 0.001, "probabilities": 0.01, "weights": 0.01}
Tests = dict[str, Any]


class Case(NamedTuple):
    """What is sampled in one row of the table."""

    label: str
    # A setup and its prompts, once for each of the method's heads, which may depend on the task.
    groups: Sequence[tuple[texts.Setup, Sequence[texts.Context]]]

    @property
    def whole(self) -> bool:
        """Whether texts are whole outputs."""
        return self.groups[0][0].ends.whole

    @property
    def by_rounds(self) -> bool:
        """Whether the law of its outputs is enumerated round by round."""
        return self.whole and self.groups[0][0].method.method in BLOCKS

    @property
    def first(self) -> str:
        """The name of the first comparison."""
        return "outputs" if self.whole else "next token"

    @property
    def subject(self) -> str:
        """A description of the row."""
        sampling = self.groups[0][0].sampling
        parts = [f"T={sampling.temperature:g}"]
        parts += [f"top-k {sampling.top_k}"] if sampling.top_k is not None else []
        parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p is not None else []
        parts += [f"min-p {sampling.min_p:g}"] if sampling.min_p is not None else []
        return ", ".join([self.label, " ".join(parts), *([findings.WHOLE] * self.whole)])


def check_rounds(case: Case, alpha: float, *, exact: bool = True) -> list[findings.Finding]:
    """Sample rounds or whole outputs of a method and compare them with the laws.

    ``alpha`` is the probability of a false alarm of one test. Without ``exact``, the dtype is too
    coarse for comparing probabilities.
    """
    seed = case.groups[0][0].seed
    tests: Tests = {  # by the names in ``COMPARED``
        case.first: Counts(seed),
        **{name: Stream(seed) for name in STREAMS},
        **{name: Numbers(exceptions) for name, exceptions in EXCEPTIONS.items()},
    }
    for setup, contexts in case.groups:
        for context, generations in zip(contexts, texts.sample(setup, contexts), strict=True):
            _compare_tokens(setup, context, generations, tests)
            if case.whole:
                # The control is the reason why the previous output ended.
                right = [ends_rightly(setup.pair, setup.ends, text) for text in generations]
                reasons = [text.stopped_by for text in generations]
                other = [reason != reasons[i - 1] for i, reason in enumerate(reasons)]
                tests["endings"].add(1 - torch.tensor(right).float(), torch.tensor(other).float())
            if setup.method.rule is None or setup.method.law is not None or case.by_rounds:
                law, outputs = outputs_of(setup, context, generations)
                tests[case.first].add(law.law, law.wrong, outputs)
    return list(_findings(case, tests, alpha, exact))


def _compare_tokens(
    setup: texts.Setup, context: texts.Context, generations: Sequence[Generation], tests: Tests
) -> None:
    """Compare each token of a prompt's texts."""
    target = setup.pair.target
    all_tokens = texts.tokens_of(generations, context.prompt, setup.ends, setup.propose)
    numbers = texts.random_numbers(setup, context, int(all_tokens.round.max()) + 1)
    # Memory holds about ten tensors of the size of a part's laws at once.
    size = 10 * all_tokens.tokens.shape[1] * target.vocabulary
    for rows in torch.arange(setup.texts).split(max(1, MAX_NUMBERS // size)):
        tokens = all_tokens.part(rows, target.device)
        whole = [[*context.prompt, *text] for text in tokens.tokens.tolist()]
        laws = laws_at(setup, whole, tokens.position, tokens.proposed.flatten())
        compare_draws(setup.method, tokens.flatten(), laws, tests)
        compare_numbers(setup.method, tokens, laws, tests)
        # The control: the random numbers of another text.
        alternatives = torch.stack((numbers[rows], numbers[rows - 1]), 1).to(target.device)
        tests["replays"].add(*distances(setup.method, tokens, laws, alternatives).T)


def compare_draws(method: BoundMethod, tokens: texts.Tokens, laws: Laws, tests: Tests) -> None:
    """Compare draws with their laws; ``tokens`` are flat."""
    next_law, split = laws.at, laws.split
    kind, judged = tokens.kind, tokens.judged
    bonus, corrected, real = kind == texts.TARGET, kind == texts.CORRECTED, kind != texts.VOID
    if split is not None:
        law = torch.where(bonus[:, None], next_law.p, split.accepted + split.replaced)
        wrong = farther(law, next_law.p, next_law.q)
        tests["tokens"].add(law[real], wrong[real], tokens.tokens[real])
    if method.rule is None:
        return
    tests["bonus tokens"].add(next_law.p[bonus], next_law.q[bonus], tokens.tokens[bonus])
    if method.joint:
        judged &= tokens.position == 0
    tests["drafts"].add(next_law.q[judged], next_law.p[judged], tokens.drafted[judged])
    if method.joint:
        return
    accept = laws.acceptance(tokens.drafted)
    if accept is None:  # the mean over drafts, which the rule reported before the draw
        accept = tokens.expected.to(next_law.p)
    accept = accept[judged, None].clamp(0, 1)
    decisions = torch.cat((accept, 1 - accept), 1)
    always = torch.tensor([1.0, 0.0], dtype=accept.dtype, device=accept.device)
    tests["acceptance"].add(decisions, always.expand_as(decisions), corrected[judged].long())
    if split is not None:
        residual = normalised(split.replaced[corrected])
        tests["corrections"].add(residual, next_law.q[corrected], tokens.tokens[corrected])


def compare_numbers(method: BoundMethod, tokens: texts.Tokens, laws: Laws, tests: Tests) -> None:
    """Compare reported numbers; the control is the correct number of the previous position."""
    single = (tokens.position == 0) if method.joint else tokens.judged
    expected = torch.where(single, tokens.expected, nan)
    probabilities = None if laws.split is None else laws.split.accepted.sum(-1)
    for numbers, reported, correct in (
        (tests["probabilities"], expected, probabilities),
        (tests["weights"], tokens.weight, laws.weight),
    ):
        if correct is not None:
            correct = correct.view(tokens.kind.shape)
            numbers.add((reported - correct).abs(), (reported - correct.roll(1, -1)).abs())


def _findings(case: Case, tests: Tests, alpha: float, exact: bool) -> Iterator[findings.Finding]:
    """Yield a finding of each comparison that has draws."""
    lawless = any(setup.method.rule and not setup.method.law for setup, _ in case.groups)
    for finding in findings.findings_of(findings.LAW, case.subject, tests, alpha):
        name, verdict = finding.name, finding.verdict
        if lawless and name in NEED_LAW and not (case.by_rounds and name == case.first):
            yield findings.Finding(
                findings.LAW, case.subject, name, findings.NO_LAW, f"{case.label} has no law"
            )
        elif not finding.facts["draws"] and name not in NEED_DRAWS:
            continue
        elif EXCEPTIONS.get(name) and not exact:
            yield replace(finding, verdict=findings.REPORT)
        elif verdict == findings.FAILED:
            yield replace(finding, sentence=f"{findings.COMPARED[name][1]} ({finding.sentence})")
        else:
            yield finding
