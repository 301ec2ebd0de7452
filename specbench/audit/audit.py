"""Execute an audit: texts of a decoder against the target's exact distribution in float32.

Greedy texts must consist of the target's first choices up to rounding. Sampled texts are tested
for draws from the draft in four ways: their first tokens and their prefixes by counts in a few
contexts, all their tokens as one stream in which each has the law of its own context, and those
that are probably bonus tokens once more, since they are few. Texts are two rounds long. Half of the
contexts end where the target is unsure, the others a round earlier, so that a bonus token falls
there. Another temperature and filters left on show most where a law has a long tail, so prompts are
also cut off where the log-probability of the next token varies most, and continued by a few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specbench.audit.decoders import Completion, Decoder
from specbench.audit.distortions import Distortions, Filters, Temperature, log_moments
from specbench.audit.spelling import Spelling
from specbench.audit.texts import StoredTexts
from specbench.check.check import CONTEXTS, ShowStep
from specbench.check.draws import MIN_EXPECTED, Counts, Outcome, Stream
from specbench.check.findings import Finding
from specbench.check.greedy import END, TIE, lag
from specbench.check.outputs import Beginning, Output, enumerate_outputs
from specbench.check.passes import MAX_NUMBERS, plain_pass
from specbench.check.texts import LEAD, ROUNDS, Context, extended
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Model
from specbench.errors import UsageError
from specbench.methods.laws import Next

NO_FAULT, FAULT, WEAK = "no fault found", "fault found", "too weak"
FALSE_ALARM = 0.005  # probability for a whole audit, divided evenly among its tests
GREEDY, SAMPLED = "greedy", "sampled"
COUNTED = FIRST, PREFIXES = "first tokens", "prefixes"
STREAMS = TOKENS, BONUS = "tokens", "bonus tokens"
SAMPLER = TEMPERATURE, FILTERS = "temperature", "filters"
LIKELY = 0.5  # probability that a token is a bonus, given those before
GREEDY_TOKENS = 64  # per text
CUT_TOKENS, CUT_SAMPLES = 4, 4  # tokens of a text after a cut prompt; texts per other text
# Spells greedy texts: nearly all probability is on the first choice.
COLD = 0.01


class AuditOptions(NamedTuple):
    """How much an audit decodes, and what it tolerates."""

    samples: int  # texts per temperature, over all contexts
    temperatures: Sequence[float]  # of sampled texts
    draft_length: int  # N
    seed: int
    tie: float = TIE  # logits; greedy texts that differ by less differ by rounding
    text_prompts: bool = False  # prompts must be equal after decoding and encoding


class Laws(NamedTuple):
    """A pair's exact laws of the next token, with one more column for the end of the text."""

    pair: LoadedPair
    temperature: float

    @property
    def end(self) -> int:
        """The column, and the token, of the end."""
        return self.pair.target.vocabulary

    def logs(
        self, model: Model, prompt: Sequence[int], texts: Sequence[Sequence[int]], last: int
    ) -> Tensor:
        """Return log-probabilities ``[K, last, V + 1]`` of the last tokens of K texts."""
        known = [[token if token != self.end else 0 for token in text] for text in texts]
        logits = plain_pass(model, [[*prompt, *text] for text in known], last).logits.double()
        logs = (logits / self.temperature).log_softmax(-1)
        ends = [token for token in self.pair.eos_ids if token < model.vocabulary]
        ending = logs[..., ends].logsumexp(-1, keepdim=True)
        logs[..., ends] = -torch.inf
        return torch.cat((logs, ending), -1)

    def after(self, model: Model, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Return log-probabilities ``[K, V + 1]`` of the token after each of K texts."""
        return self.logs(model, prompt, [[*text, 0] for text in texts], last=1)[:, 0]


def run_audit(
    pair: LoadedPair,
    decoder: Decoder,
    contexts: Sequence[Context],
    how: AuditOptions,
    show_step: ShowStep,
    stored: StoredTexts | None = None,
) -> Iterator[Finding]:
    """Audit a decoder and yield the findings; call ``show_step`` with the name of each step.

    Texts are read from ``stored`` if they are there, and added to it if not.

    Raises:
        UsageError: The decoder does not answer, or its texts cannot be tokens of the pair.
    """
    spelling = Spelling(pair.tokenizer, pair.target.vocabulary, pair.target.vocabulary)
    stored = StoredTexts() if stored is None else stored

    def decoded(
        context: Context, temperature: float, count: int, limit: int, first: int = 0
    ) -> list[list[int]]:
        laws = Laws(pair, temperature or COLD)

        def decode(seed: int, number: int) -> list[list[int]]:
            random = np.random.default_rng(seed)
            texts = decoder.complete(context.prompt, temperature, number, limit, seed)
            return _tokens(laws, spelling, context, texts, limit, random)

        seeds = range(how.seed + first, how.seed + first + count)
        texts = stored.decoded(context.prompt, temperature, limit, seeds, decode)
        for tokens in texts:
            _require_tokens(laws, tokens)
        return texts

    texts = []
    for number, context in enumerate(contexts):
        show_step(f"greedy texts, {number + 1} of {len(contexts)}")
        texts += decoded(context, 0.0, 1, GREEDY_TOKENS)
    yield _greedy(pair, contexts, texts, how.tie)
    chosen = []
    for number, (context, text) in enumerate(zip(contexts[:CONTEXTS], texts, strict=False)):
        known = [token for token in text[:LEAD] if token != pair.target.vocabulary]
        # A round begins with the first token, or after one token of the target's own.
        earlier = (0, how.draft_length, 0, how.draft_length + 1)[number % 4]
        chosen.append(extended(pair, context, known, earlier))
    limit = ROUNDS * (how.draft_length + 1) + 1
    alpha = FALSE_ALARM / (len(COUNTED + STREAMS + SAMPLER) * len(how.temperatures))
    for temperature in how.temperatures:
        laws = Laws(pair, temperature)
        tests: dict[str, Counts | Stream] = {name: Counts(how.seed) for name in COUNTED}
        tests |= {name: Stream(how.seed) for name in STREAMS}
        sampler = Distortions()
        cuts = [cut_prompt(pair, context, temperature, how.text_prompts) for context in contexts]
        # Prompts of a task may begin alike, and the same prompt and seed give the same text twice.
        cut = list({tuple(context.prompt): context for context in cuts}.values())
        for number, context in enumerate(chosen):
            show_step(f"texts at T={temperature:g}, prompt {number + 1} of {len(chosen)}")
            drawn = decoded(context, temperature, max(1, how.samples // len(chosen)), limit)
            _compare(laws, context, drawn, how.draft_length, tests, sampler)
        for number, context in enumerate(cut):
            show_step(f"texts at T={temperature:g}, cut prompt {number + 1} of {len(cut)}")
            count = max(1, CUT_SAMPLES * how.samples // len(cut))
            drawn = decoded(context, temperature, count, CUT_TOKENS, how.samples)
            for law, _, tokens, _ in _positions(laws, context, drawn, [laws.pair.target]):
                sampler.add(law, tokens)
        subject = f"T={temperature:g}"
        for name, test in tests.items():
            yield _tested(subject, name, test.outcome(alpha), alpha)
        yield _temperature(subject, temperature, sampler.temperature(alpha), alpha)
        yield _filters(subject, sampler.filters(alpha), alpha)


def verdict(findings: Sequence[Finding]) -> str:
    """Return the verdict on a decoder.

    An audit is too weak if at some temperature none of its tests would notice texts of the draft.
    """
    if any(finding.verdict == FAULT for finding in findings):
        return FAULT
    strong = {each.subject: False for each in findings if each.part == SAMPLED}
    for each in findings:
        if each.name in COUNTED + STREAMS and each.verdict != WEAK:
            strong[each.subject] = True
    return NO_FAULT if strong and all(strong.values()) else WEAK


def visible_faults(findings: Sequence[Finding]) -> str:
    """Say which faults the tests of sampled texts would have seen."""
    parts: dict[str, list[str]] = {}
    shares: dict[str, float] = {}
    for finding in findings:
        facts, subject = finding.facts, finding.subject
        if finding.part != SAMPLED:
            continue
        faults = parts.setdefault(subject, [])
        if (share := facts.get("share")) is not None:
            shares[subject] = min(share, shares.get(subject, 1.0))
        elif finding.name == TEMPERATURE and facts["visible"] < 1:
            faults.append(f"a temperature off by {facts['visible']:.1%}")
        elif finding.name == FILTERS and facts["visible"]:
            faults.append(_listed_filters(facts["visible"]))
    for subject, share in shares.items():
        parts[subject].insert(0, f"{share:.0%} of draws from the draft")
    return "; ".join(
        f"at {subject} it would have seen {', '.join(faults)}"
        for subject, faults in parts.items()
        if faults
    )


def cut_prompt(
    pair: LoadedPair, context: Context, temperature: float, text_prompts: bool
) -> Context:
    """Cut a prompt off where the log-probability of the next token varies most."""
    prompt = list(context.prompt)
    logits = plain_pass(pair.target, [[*prompt, 0]], last=len(prompt)).logits[0].double()
    _, variance = log_moments((logits / temperature).softmax(-1))
    for end in (variance.argsort(descending=True) + 1).tolist():
        kept = prompt[:end]
        tail = kept[kept[0] == pair.tokenizer.bos_token_id :]
        text = pair.tokenizer.decode(tail)
        if not text_prompts or pair.tokenizer.encode(text, add_special_tokens=False) == tail:
            return Context(context.name, kept)
    return context


def _tokens(
    laws: Laws,
    spelling: Spelling,
    context: Context,
    found: Sequence[Completion],
    limit: int,
    random: np.random.Generator,
) -> list[list[int]]:
    """Return the tokens of completions, with the end as a token."""
    if any(text.tokens is None for text in found):

        def log_laws(texts: Sequence[Sequence[int]]) -> Any:
            length = max(map(len, texts)) + 1
            padded = [[*text, *(0 for _ in range(length - len(text)))] for text in texts]
            return laws.logs(laws.pair.target, context.prompt, padded, length).cpu().numpy()

        spelled = spelling.tokens(found, limit, log_laws, random)
    else:
        ends = laws.pair.eos_ids
        spelled = [list(takewhile(lambda t: t not in ends, text.tokens or ())) for text in found]
    for tokens, text in zip(spelled, found, strict=True):
        _require_tokens(laws, tokens, laws.end)
        if text.ended or len(tokens) < len(text.tokens or ()):
            tokens.append(laws.end)
        elif len(tokens) < limit:
            raise UsageError(
                f"the decoder stopped after {len(tokens)} of {limit} tokens after {context.name} "
                "without ending the text: give it a longer context, or shorter --prompts"
            )
    return spelled


def _require_tokens(laws: Laws, tokens: Sequence[int], limit: int | None = None) -> None:
    """Refuse tokens that the target does not have; by default its end is permitted."""
    if tokens and max(tokens) >= (laws.end + 1 if limit is None else limit):
        raise UsageError(
            f"the decoder returns token {max(tokens)}, but the target has {laws.end}: give the "
            "--pair or --target that it runs"
        )


def _greedy(
    pair: LoadedPair, contexts: Sequence[Context], texts: Sequence[list[int]], tie: float
) -> Finding:
    """Compare greedy texts with the target's first choices, each after the text's own tokens."""
    forks: list[dict[str, Any]] = []
    unlike = 0
    for context, tokens in zip(contexts, texts, strict=True):
        text = [END if token == pair.target.vocabulary else token for token in tokens]
        found = lag(pair.target, context, text, pair.eos_ids)
        # Only where the draft's first choice differs is a wrong acceptance visible.
        unlike += int(lag(pair.draft, context, text, pair.eos_ids).wrong.sum())
        if (behind := found.behind.max()) > 0:
            at = int((found.behind > 0).nonzero()[0])
            place = {"prompt": context.name, "position": at, "margin": float(found.margin[at])}
            forks.append(place | {"behind": float(behind)})
    wrong = [fork for fork in forks if fork["behind"] > tie]
    sentence = f"{len(forks)} of {len(texts)} texts fork ({len(forks) / len(texts):.0%})"
    if forks:
        first = max(forks, key=lambda fork: float(fork["behind"]))
        kind = f"{len(wrong)} by more than rounding" if wrong else "all by rounding"
        sentence += (
            f", {kind}; the worst at token {first['position']} of {first['prompt']}, where the "
            f"margin is {first['margin']:.2g}"
        )
    if not unlike:
        sentence += "; the draft never differs, so accepting every draft would also pass"
    facts = {"texts": len(texts), "tokens": sum(map(len, texts)), "draft_unlike": unlike}
    said = FAULT if wrong else NO_FAULT if unlike else WEAK
    return Finding(
        GREEDY, "T=0", "first choices", said, sentence, facts | {"forks": forks, "tie": tie}
    )


def _compare(
    laws: Laws,
    context: Context,
    drawn: Sequence[list[int]],
    draft_length: int,
    tests: dict[str, Any],
    sampler: Distortions,
) -> None:
    """Add the texts of one context to the tests; the wrong law is the draft's."""
    target, draft = laws.pair.target, laws.pair.draft
    p, q = (partial(laws.after, model, context.prompt) for model in (target, draft))
    first = torch.tensor([tokens[0] for tokens in drawn])
    tests[FIRST].add(p([[]]).exp()[0], q([[]]).exp()[0], first)
    tests[PREFIXES].add(*_prefixes(laws, context, drawn))
    for law, wrong, tokens, bonus in _positions(
        laws, context, drawn, (target, draft), draft_length
    ):
        tests[TOKENS].add(law, wrong, tokens)
        tests[BONUS].add(law[bonus], wrong[bonus], tokens[bonus])
        sampler.add(law, tokens)


def _positions(
    laws: Laws,
    context: Context,
    drawn: Sequence[list[int]],
    models: Sequence[Model],
    draft_length: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield the laws ``[K, V + 1]`` by the first and last model, the tokens, and the bonus tokens.

    Without a draft length no token is a bonus token.
    """
    length = max(map(len, drawn))
    numbers = 10 * length * (laws.end + 1)
    padded = torch.tensor([tokens + [laws.end] * (length - len(tokens)) for tokens in drawn])
    real = torch.tensor([[at < len(tokens) for at in range(length)] for tokens in drawn])
    device = models[0].device
    for rows in torch.arange(len(drawn)).split(max(1, MAX_NUMBERS // numbers)):
        texts, seen = padded[rows].to(device), real[rows].to(device)
        laws_of = [
            laws.logs(model, context.prompt, texts.tolist(), length).exp() for model in models
        ]
        law, wrong = laws_of[0], laws_of[-1]
        bonus = torch.zeros_like(seen)
        if draft_length is not None:
            bonus = _bonus(law, wrong, texts, draft_length)
        yield law[seen], wrong[seen], texts[seen], bonus[seen]


def _bonus(p: Tensor, q: Tensor, tokens: Tensor, draft_length: int) -> Tensor:
    """Return ``[K, T]`` whether a token probably follows N accepted drafts of its round.

    It depends only on the tokens before, so the law of such a token is still p. A token x that
    was judged is an accepted draft with probability min(1, q(x) / p(x)). The first round begins
    with the first token or, if reading the prompt gives a token, with the second.
    """
    own_p, own_q = (law.gather(-1, tokens[..., None])[..., 0] for law in (p, q))
    kept = (own_q / own_p).clamp_max(1).nan_to_num(0)
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for start in (0, draft_length):
        place = torch.zeros(len(tokens), draft_length + 1, dtype=p.dtype, device=p.device)
        place[:, start] = 1  # probability of each place in the round
        for at in range(tokens.shape[1]):
            found[:, at] |= place[:, -1] >= LIKELY
            going = place[:, :-1] * kept[:, at, None]
            place = torch.cat((1 - going.sum(1, keepdim=True), going), 1)
    return found


def _prefixes(
    laws: Laws, context: Context, drawn: Sequence[list[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the law of prefixes ``[C]``, the wrong law, and the prefix of each text.

    A prefix grows by a token as long as enough texts are expected to have it, so every text has
    exactly one of the C prefixes.
    """
    models, limit = (laws.pair.target, laws.pair.draft), max(map(len, drawn))

    def after(beginnings: Sequence[Beginning]) -> tuple[Tensor, Tensor, Next]:
        texts = [text for text, _ in beginnings]
        p, q = (laws.after(model, context.prompt, texts).exp().cpu() for model in models)
        return torch.zeros_like(p), p, Next(p, q, p, q, torch.zeros(len(p)), greedy=False)

    def goes_on(prefix: Output) -> bool:
        return prefix[-1] != laws.end and len(prefix) < limit

    law = enumerate_outputs(after, 2 * MIN_EXPECTED / len(drawn), goes_on)
    return law.law, law.wrong, torch.tensor([law.cell(tuple(tokens)) for tokens in drawn])


def _tested(subject: str, name: str, outcome: Outcome, alpha: float) -> Finding:
    sentence = f"{outcome.draws:,} draws, p = {outcome.p_value:.2g}"
    said = NO_FAULT
    if outcome.p_value < alpha:
        said = FAULT
    elif outcome.control >= alpha or outcome.share is None:
        said, sentence = WEAK, f"{sentence}; texts of the draft alone would hardly be noticed"
    if outcome.share is not None:
        sentence += f"; notices {outcome.share:.0%} of wrong draws"
    return Finding(SAMPLED, subject, name, said, sentence, outcome._asdict() | {"alpha": alpha})


def _temperature(subject: str, temperature: float, outcome: Temperature, alpha: float) -> Finding:
    sentence = f"{outcome.draws:,} draws, p = {outcome.p_value:.2g}; notices {outcome.visible:.1%}"
    said = NO_FAULT if outcome.visible < 1 else WEAK
    if outcome.p_value < alpha:
        said = FAULT
        low, high = (
            temperature * (1 + outcome.estimate + sign * 1.96 * outcome.error) for sign in (-1, 1)
        )
        sentence += f"; the texts look like T={low:.3g} to {high:.3g}"
    return Finding(
        SAMPLED, subject, TEMPERATURE, said, sentence, outcome._asdict() | {"alpha": alpha}
    )


def _filters(subject: str, outcome: Filters, alpha: float) -> Finding:
    sentence = f"{outcome.draws:,} draws, p = {outcome.p_value:.2g}"
    said = NO_FAULT if outcome.visible else WEAK
    if outcome.visible:
        sentence += f"; notices {_listed_filters(outcome.visible)}"
    if outcome.p_value < alpha:
        said = FAULT
        kind, value = outcome.likeliest
        sentence += (
            f"; {outcome.seen} of {outcome.expected:.1f} expected tokens are beyond {kind} "
            f"{value:g}: is a filter on?"
        )
    return Finding(SAMPLED, subject, FILTERS, said, sentence, outcome._asdict() | {"alpha": alpha})


def _listed_filters(visible: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {value:g}" for kind, value in visible.items())
