"""Execute an audit: texts of a decoder against the target's exact distribution in float32.

Greedy texts must consist of the target's first choices up to rounding. Sampled texts are tested
for draws from the draft in four ways: their first tokens and their prefixes by counts in a few
contexts, all their tokens as one stream in which each has the law of its own context, and those
that are probably bonus tokens once more, since they are few. Texts are two rounds long. Half of the
contexts end where the target is unsure, the others a round earlier, so that a bonus token falls
there. Another temperature and filters left on show most where a law has a long tail, so prompts are
also cut off where the log-probability of the next token varies most, and continued by a few tokens.
Texts can be stored on disk, so that an interrupted audit goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from specbench.analysis.output.table import percent
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.experiment.rounding import END
from specbench.files import clear_errors
from specbench.serving.server import Completion
from specbench.validation import draws
from specbench.validation.audited import EndedLaws, Spelling, positions, prefixes
from specbench.validation.check import CONTEXTS, ShowStep
from specbench.validation.findings import OK, WEAK, Finding, failures, findings_of, judged
from specbench.validation.greedy import NEVER_UNLIKE, TIE, first_choices
from specbench.validation.texts import LEAD, Context, after_rounds, extended, laws_along

NO_FAULT, FAULT, TOO_WEAK = "no fault found", "fault found", "too weak"
FALSE_ALARM = 0.005  # probability for a whole audit, divided evenly among its tests
GREEDY, SAMPLED = "greedy", "sampled"
COUNTED = FIRST, PREFIXES = "first tokens", "prefixes"
STREAMS = TOKENS, BONUS = "tokens", "bonus tokens"
SAMPLER = TEMPERATURE, FILTERS = "temperature", "filters"
GREEDY_TOKENS = 64  # per text
CUT_TOKENS, CUT_SAMPLES = 4, 4  # tokens of a text after a cut prompt; texts per other text
# Spells greedy texts: nearly all probability is on the first choice.
COLD = 0.01
TEXTS = "texts.jsonl"
PART = 64  # texts that are decoded between two writes
Texts = list[list[int]]


class Decoder(Protocol):
    """What an audit needs of a decoder."""

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt ``count`` times with other random numbers, by ``limit`` tokens at most.

        Temperature 0 is greedy. All tokens of the vocabulary may be sampled.
        """


class AuditOptions(NamedTuple):
    """How much an audit decodes, and what it tolerates."""

    samples: int  # texts per temperature, over all contexts
    temperature: Sequence[float]  # of sampled texts; each is tested
    draft_length: int  # N
    seed: int
    tie: float = TIE  # logits; greedy texts that differ by less differ by rounding
    text_prompts: bool = False  # prompts must be equal after decoding and encoding


@dataclass(frozen=True)
class AuditedTexts:
    """The texts of a decoder, decoded or read if they are stored."""

    pair: LoadedPair
    decoder: Decoder
    stored: StoredTexts
    seed: int

    @cached_property
    def spelling(self) -> Spelling:
        """The spelling of texts by the pair's tokens."""
        return Spelling(self.pair.tokenizer, self.pair.target.vocabulary)

    def decode(
        self, context: Context, temperature: float, count: int, limit: int, first: int = 0
    ) -> list[list[int]]:
        """Return the tokens of ``count`` texts, with seeds from the audit's plus ``first`` on."""
        laws = EndedLaws(self.pair, temperature or COLD)

        def decode(seed: int, number: int) -> list[list[int]]:
            random = np.random.default_rng(seed)
            texts = self.decoder.complete(context.prompt, temperature, number, limit, seed)
            return _tokens(laws, self.spelling, context, texts, limit, random)

        seeds = range(self.seed + first, self.seed + first + count)
        texts = self.stored.decoded(context.prompt, temperature, limit, seeds, decode)
        for tokens in texts:
            _require_tokens(laws, tokens)
        return texts


def run_audit(
    pair: LoadedPair,
    decoder: Decoder,
    contexts: Sequence[Context],
    options: AuditOptions,
    show_step: ShowStep,
    stored: StoredTexts | None = None,
) -> Iterator[Finding]:
    """Audit a decoder and yield the findings; call ``show_step`` with the name of each step.

    Texts are read from ``stored`` if they are there, and added to it if not.

    Raises:
        UsageError: The decoder does not answer, or its texts cannot be tokens of the pair.
    """
    stored = StoredTexts() if stored is None else stored
    audited = AuditedTexts(pair, decoder, stored, options.seed)
    texts = []
    for number, context in enumerate(contexts):
        show_step(f"greedy texts, {number + 1} of {len(contexts)}")
        texts += audited.decode(context, 0.0, 1, GREEDY_TOKENS)
    yield _greedy(pair, contexts, texts, options.tie)
    unsure = []
    for number, (context, text) in enumerate(zip(contexts[:CONTEXTS], texts, strict=False)):
        answer = [token for token in text[:LEAD] if token != pair.target.vocabulary]
        # A round begins with the first token, or after one token of the target's own.
        earlier = (0, options.draft_length, 0, options.draft_length + 1)[number % 4]
        unsure.append(extended(pair, context, answer, earlier))
    for temperature in options.temperature:
        # Prompts of a task may begin alike, and the same prompt and seed give the same text twice.
        cut: dict[tuple[int, ...], Context] = {}
        for context in contexts:
            shorter = cut_prompt(pair, context, temperature, options.text_prompts)
            cut[tuple(shorter.prompt)] = shorter
        yield from _sampled(audited, unsure, [*cut.values()], temperature, options, show_step)


def most_steps(contexts: int, options: AuditOptions) -> int:
    """Return how many steps an audit has at most; prompts that are cut may be equal."""
    return contexts + len(options.temperature) * (min(contexts, CONTEXTS) + contexts)


def _sampled(
    audited: AuditedTexts,
    unsure: Sequence[Context],
    cut: Sequence[Context],
    temperature: float,
    options: AuditOptions,
    show_step: ShowStep,
) -> Iterator[Finding]:
    """Test texts that are sampled at a temperature after two kinds of prompts."""
    laws, seed = EndedLaws(audited.pair, temperature), options.seed
    tests: dict[str, Any] = {
        **{name: draws.Counts(seed) for name in COUNTED},
        **{name: draws.Stream(seed) for name in STREAMS},
        TEMPERATURE: draws.TemperatureScore(temperature),
        FILTERS: draws.FilteredTails(),
    }
    limit = after_rounds(options.draft_length).limit
    # Equal seeds would give equal random numbers after all prompts, and draws that depend on each
    # other.
    for number, context in enumerate(unsure):
        show_step(f"texts at T={temperature:g}, prompt {number + 1} of {len(unsure)}")
        count = max(1, options.samples // len(unsure))
        texts = audited.decode(context, temperature, count, limit, number * count)
        _compare(laws, context, texts, options.draft_length, tests)
    for number, context in enumerate(cut):
        show_step(f"texts at T={temperature:g}, cut prompt {number + 1} of {len(cut)}")
        count = max(1, CUT_SAMPLES * options.samples // len(cut))
        first = len(unsure) * options.samples + number * count
        texts = audited.decode(context, temperature, count, CUT_TOKENS, first)
        for law, _, tokens, _ in positions(laws, context, texts, [laws.pair.target]):
            for name in SAMPLER:
                tests[name].add(law, tokens)
    alpha = FALSE_ALARM / (len(tests) * len(options.temperature))
    for finding in findings_of(SAMPLED, f"T={temperature:g}", tests, alpha):
        # Here a test must name a visible fault: its control may have failed by chance.
        powerless = finding.verdict == OK and finding.facts.get("share", 1) is None
        yield replace(finding, verdict=WEAK) if powerless else finding


def verdict(findings: Sequence[Finding]) -> str:
    """Return the verdict on a decoder.

    An audit is too weak if at some temperature none of its tests would notice texts of the draft.
    """
    if failures(findings):
        return FAULT
    strong = {finding.subject: False for finding in findings if finding.part == SAMPLED}
    for finding in findings:
        if finding.name in COUNTED + STREAMS and finding.verdict != WEAK:
            strong[finding.subject] = True
    return NO_FAULT if strong and all(strong.values()) else TOO_WEAK


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
            faults.append(f"a temperature off by {percent(facts['visible'], '.1f')}")
        elif finding.name == FILTERS and facts["visible"]:
            faults.append(draws.listed_filters(facts["visible"]))
    for subject, share in shares.items():
        parts[subject].insert(0, f"{percent(share)} of draws from the draft")
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
    sampling = Sampling(temperature=temperature)
    _, variance = draws.log_moments(laws_along(pair.target, [*prompt, 0], len(prompt), sampling))
    for end in (variance.argsort(descending=True) + 1).tolist():
        beginning = prompt[:end]
        tail = beginning[beginning[0] == pair.tokenizer.bos_token_id :]
        text = pair.tokenizer.decode(tail)
        if not text_prompts or pair.tokenizer.encode(text, add_special_tokens=False) == tail:
            return Context(context.name, beginning)
    return context


def _tokens(
    laws: EndedLaws,
    spelling: Spelling,
    context: Context,
    completions: Sequence[Completion],
    limit: int,
    random: np.random.Generator,
) -> list[list[int]]:
    """Return the tokens of completions, with the end as a token."""
    if any(text.tokens is None for text in completions):
        along = partial(laws.along, context.prompt)
        spelled = spelling.tokens(completions, limit, along, random)
    else:
        ends = laws.pair.eos_ids
        spelled = [
            list(takewhile(lambda t: t not in ends, text.tokens or ())) for text in completions
        ]
    for tokens, text in zip(spelled, completions, strict=True):
        _require_tokens(laws, tokens, laws.end)
        if text.ended or len(tokens) < len(text.tokens or ()):
            tokens.append(laws.end)
        elif len(tokens) < limit:
            raise UsageError(
                f"the decoder stopped after {len(tokens)} of {limit} tokens after {context.name} "
                "without ending the text: give it a longer context, or shorter --prompts"
            )
    return spelled


def _require_tokens(laws: EndedLaws, tokens: Sequence[int], limit: int | None = None) -> None:
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
    end = pair.target.vocabulary
    marked = [[END if token == end else token for token in tokens] for tokens in texts]
    choices = first_choices(pair, contexts, marked)
    forks = choices.forks
    wrong = sum(fork["behind"] > tie for fork in forks)
    sentence = f"{len(forks)} of {len(texts)} texts fork ({percent(len(forks) / len(texts))})"
    if forks:
        worst = max(forks, key=lambda fork: float(fork["behind"]))
        kind = f"{wrong} by more than rounding" if wrong else "all by rounding"
        sentence += (
            f", {kind}; the worst at token {worst['position']} of {worst['prompt']}, where the "
            f"margin is {worst['margin']:.2g}"
        )
    if not choices.draft_unlike:
        sentence += f"; {NEVER_UNLIKE}"
    facts = choices._asdict() | {"texts": len(texts), "tie": tie}
    judgement = judged(wrong > 0, not choices.draft_unlike, sentence, facts)
    return Finding(GREEDY, "T=0", "first choices", *judgement)


def _compare(
    laws: EndedLaws,
    context: Context,
    drawn: Sequence[list[int]],
    draft_length: int,
    tests: Mapping[str, Any],
) -> None:
    """Add the texts of one context to the tests; the wrong law is the draft's."""
    target, draft = laws.pair.target, laws.pair.draft
    p, q = laws.after(target, context.prompt, [[]]), laws.after(draft, context.prompt, [[]])
    first = torch.tensor([tokens[0] for tokens in drawn])
    tests[FIRST].add(p.exp()[0], q.exp()[0], first)
    tests[PREFIXES].add(*prefixes(laws, context, drawn))
    for law, wrong, tokens, bonus in positions(laws, context, drawn, (target, draft), draft_length):
        tests[TOKENS].add(law, wrong, tokens)
        tests[BONUS].add(law[bonus], wrong[bonus], tokens[bonus])
        for name in SAMPLER:
            tests[name].add(law, tokens)


class StoredTexts:
    """Tokens of decoded texts by prompt, temperature, length and seed.

    Args:
        path: A file with one line per part; None stores nothing. Damaged lines are ignored, and
            their texts decoded again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._parts: dict[str, Texts] = {}
        if path is not None and path.is_file():
            for line in path.read_bytes().splitlines():
                try:
                    key, texts = json.loads(line)
                    if _are_tokens(texts):
                        self._parts[key] = texts
                except (ValueError, TypeError, RecursionError):
                    continue

    def __len__(self) -> int:
        """Return the number of texts."""
        return sum(map(len, self._parts.values()))

    def decoded(
        self,
        prompt: Sequence[int],
        temperature: float,
        limit: int,
        seeds: Sequence[int],
        decode: Callable[[int, int], Texts],
    ) -> Texts:
        """Return the texts with these seeds; ``decode(seed, count)`` decodes missing ones."""
        texts: Texts = []
        name = sha256(json.dumps(list(prompt)).encode()).hexdigest()[:16]
        for start in range(0, len(seeds), PART):
            part = seeds[start : start + PART]
            key = f"{name} {temperature:g} {limit} {part[0]} {len(part)}"
            if key not in self._parts:
                self._parts[key] = decode(part[0], len(part))
                if self._path is not None:
                    # The first line feed ends a line that was torn.
                    with clear_errors(self._path), self._path.open("a", encoding="utf-8") as file:
                        file.write(f"\n{json.dumps([key, self._parts[key]])}\n")
            texts += self._parts[key]
        return texts


def _are_tokens(texts: object) -> bool:
    return isinstance(texts, list) and all(
        isinstance(text, list) and all(type(token) is int and token >= 0 for token in text)
        for text in texts
    )
