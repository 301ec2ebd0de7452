"""Audits of a small server: planted faults are lossy, a correct server never is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.serving.client import Client
from specbench.serving.server import Completion, Server
from specbench.validation import audit as auditing
from specbench.validation.audit import (
    COUNTED,
    CUT_SAMPLES,
    CUT_TOKENS,
    FAULT,
    FILTERS,
    NO_FAULT,
    SAMPLER,
    STREAMS,
    TEMPERATURE,
    TOKENS,
    TOO_WEAK,
    AuditOptions,
    StoredTexts,
    run_audit,
    verdict,
    visible_faults,
)
from specbench.validation.audited import EndedLaws, Spelling
from specbench.validation.findings import FAILED, OK, WEAK, Finding
from specbench.validation.texts import Context

from .toy import (
    BONUS_FROM_Q,
    DRAFT_LENGTH,
    END,
    FAULTS,
    PIECES,
    Table,
    serving,
    speculate,
    spell,
    toy,
)

CONTEXTS = [Context(f"p{token}", [8, token]) for token in range(4)]


class Local:
    """The server's loop without the server; it returns the tokens, or only their text."""

    def __init__(self, fault: str = "", as_text: bool = False) -> None:
        self.fault, self.as_text = fault, as_text

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        seeds = range(seed, seed + count)
        texts = [speculate(prompt, temperature, limit, n, self.fault) for n in seeds]
        if self.as_text:
            return [Completion(spell(tokens), None, tokens[-1] == END) for tokens in texts]
        return [Completion("", tokens, tokens[-1] == END) for tokens in texts]


def audit(
    decoder: object,
    samples: int,
    *,
    pair: LoadedPair | None = None,
    contexts: Sequence[Context] = CONTEXTS,
    stored: StoredTexts | None = None,
    **changes: Any,
) -> list[Finding]:
    """Audit with the options ``changes``, by default at two temperatures."""
    options = AuditOptions(samples, (1.0, 0.7), DRAFT_LENGTH, 0)._replace(**changes)
    given = (pair or toy(), decoder, contexts, options, lambda text: None, stored)
    return list(run_audit(*given))  # type: ignore[arg-type]


def failed(findings: list[Finding]) -> set[str]:
    return {f"{f.name} {f.subject}" for f in findings if f.verdict == FAILED}


def test_a_correct_server_is_lossless_and_the_power_is_named():
    with serving() as url:
        findings = audit(Server(url, Client(requests=2)), 96)
    assert verdict(findings) == NO_FAULT, findings
    assert [f.name for f in findings] == ["first choices", *2 * [*COUNTED, *STREAMS, *SAMPLER]]
    tokens = next(f for f in findings if f.name == TOKENS)
    assert 0.05 < tokens.facts["share"] < 0.7
    assert f"notices {100 * tokens.facts['share']:.0f} % of wrong draws" in tokens.sentence


def test_a_correct_server_is_never_fault():
    assert FAULT not in [verdict(audit(Local(), 96, seed=1000 * seed)) for seed in range(20)]


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_lossy(fault, as_text):
    findings = audit(Local(fault, as_text), 128)
    assert verdict(findings) == FAULT, findings
    if fault == "temperature":  # nothing is wrong at T = 1
        assert all("T=0.7" in name for name in failed(findings))


class Distorted(Local):
    """Draws from the target itself with a filter on, or at another temperature."""

    def __init__(self, heat: float = 1.0, least: float = 0.0) -> None:
        self.heat, self.least = heat, least

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        laws = [toy().target.law(t, self.heat * temperature).copy() for t in range(END + 1)]  # type: ignore[attr-defined]
        for law in laws:
            law[law < self.least * law.max()] = 0
        edges = [np.cumsum(law / law.sum()) for law in laws]
        texts = []
        for number in range(seed, seed + count):
            random, tokens = np.random.default_rng((number, *prompt)), [prompt[-1]]
            while len(tokens) <= limit and (len(tokens) == 1 or tokens[-1] != END):
                tokens.append(int(np.searchsorted(edges[tokens[-1]], random.random(), "right")))
            texts.append(Completion("", tokens[1:], tokens[-1] == END))
        return texts


@pytest.mark.parametrize(
    ("fault", "name"),
    [({"heat": 1.2}, TEMPERATURE), ({"heat": 1 / 1.2}, TEMPERATURE), ({"least": 0.05}, FILTERS)],
)
def test_another_temperature_and_a_filter_are_found(fault, name):
    findings = audit(Distorted(**fault), 512)
    assert f"{name} T=1" in failed(findings)
    (finding,) = [f for f in findings if f.name == name and f.subject == "T=1"]
    assert ("the texts look like T=" in finding.sentence) == (name == TEMPERATURE)
    assert ("is a filter on?" in finding.sentence) == (name == FILTERS)


def test_one_weak_test_does_not_make_an_audit_weak():
    findings = audit(Local(), 96)
    assert any(f.verdict == WEAK for f in findings)
    assert verdict(findings) == NO_FAULT
    assert "at T=1 it would have seen" in visible_faults(findings)


def test_a_stored_text_is_not_decoded_again(tmp_path):
    class Counting(Local):
        texts = 0

        def complete(self, *how):
            self.texts += how[2]
            if self.texts > self.most:
                raise KeyboardInterrupt
            return super().complete(*how)

    path = tmp_path / "texts.jsonl"
    decoder = Counting()

    def run(most):
        decoder.most = most
        return audit(decoder, 96, temperature=(1.0,), stored=StoredTexts(path))

    with pytest.raises(KeyboardInterrupt):
        run(100)
    stored, path_size = len(StoredTexts(path)), path.stat().st_size
    assert 50 < stored <= 100
    with path.open("r+b") as file:  # a torn line
        file.truncate(path_size - 3)
    readable = len(StoredTexts(path))
    assert 0 < readable < stored
    decoder.texts = 0
    findings = run(np.inf)
    assert decoder.texts == 4 + 96 + CUT_SAMPLES * 96 - readable
    assert findings == audit(Local(), 96, temperature=(1.0,))


def test_a_fault_of_bonus_tokens_alone_is_fault(monkeypatch):
    """They are few, and none of them is among the first tokens, or after a cut prompt."""
    monkeypatch.setattr(auditing, "CUT_SAMPLES", 0)
    faults = failed(audit(Local(BONUS_FROM_Q), 4096))
    assert {"bonus tokens T=1", "bonus tokens T=0.7"} <= faults
    assert not {"first tokens T=1", "first tokens T=0.7"} & faults


def test_no_seed_is_decoded_twice():
    """Equal random numbers would count as independent ones, also after different prompts."""
    asked: list[tuple[float, int]] = []

    class Noting(Local):
        def complete(self, prompt, *how):
            temperature, count, _, seed = how
            asked.extend((temperature, number) for number in range(seed, seed + count))
            return super().complete(prompt, *how)

    audit(Noting(), 16)
    sampled = [key for key in asked if key[0]]
    assert len(sampled) == len(set(sampled))


def test_few_samples_are_too_weak():
    findings = audit(Local(), 8)
    assert verdict(findings) == TOO_WEAK
    assert any("would hardly be noticed" in finding.sentence for finding in findings)


def test_a_fork_by_rounding_is_not_fault():
    """A text that takes the second choice is lossy unless the logits tie."""

    class Second(Local):
        def complete(self, prompt, *how):
            if how[0]:
                return super().complete(prompt, *how)  # type: ignore[arg-type]
            tokens = [int(toy().target.logits[prompt[-1]].argsort()[-2])]  # type: ignore[attr-defined]
            while len(tokens) < how[2] and tokens[-1] != END:
                tokens.append(int(toy().target.logits[tokens[-1]].argmax()))  # type: ignore[attr-defined]
            return [Completion("", tokens, tokens[-1] == END)]

    for tie, expected in ((1e-3, FAILED), (10.0, OK)):
        first, *_ = audit(Second(), 8, temperature=(1.0,), tie=tie)
        assert first.verdict == expected
        assert first.sentence.startswith("4 of 4 texts fork (100 %)")
        assert {fork["position"] for fork in first.facts["forks"]} == {0}
        logits = np.sort(toy().target.logits[0])  # type: ignore[attr-defined]
        assert first.facts["forks"][0]["margin"] == pytest.approx(logits[-1] - logits[-2], abs=1e-5)


@pytest.mark.parametrize("token", [END + 1, 10**30])
def test_tokens_beyond_the_vocabulary_are_refused(token):
    class Odd(Local):
        def complete(self, *how):
            return [Completion("", [0, token], True)]

    with pytest.raises(UsageError, match=f"returns token {token}, but the target has {END + 1}"):
        audit(Odd(), 16)


def test_a_text_is_spelled_with_the_probabilities_of_its_spellings():
    """`abc` and an end: the tokens are drawn from their exact distribution given the text."""
    laws = EndedLaws(toy(), 3.0)
    spellings = [["abc"], ["ab", "c"], ["a", "bc"], ["a", "b", "c"]]
    tokens = [[PIECES.index(piece) for piece in pieces] for pieces in spellings]
    weights = []
    for spelled in tokens:
        logs = laws.logs(toy().target, [8], [[*spelled, END + 1]], len(spelled) + 1)[0]
        weights.append(float(logs[range(len(spelled) + 1), [*spelled, END + 1]].sum().exp()))
    spelling = Spelling(toy().tokenizer, len(PIECES))
    texts = [Completion("abc", None, ended=True)] * 4000

    along = partial(laws.along, [8])
    drawn = spelling.tokens(texts, 7, along, np.random.default_rng(0))
    counts = Counter(map(tuple, drawn))
    seen = [counts[tuple(spelled)] for spelled in tokens]
    assert sum(seen) == 4000 and min(seen) > 20
    assert chisquare(seen, 4000 * np.array(weights) / sum(weights)).pvalue > 1e-4
    # Without an end, a text of two tokens has only two spellings.
    cut = spelling.tokens([Completion("abc", None, False)] * 50, 2, along, np.random.default_rng(0))
    assert {len(spelled) for spelled in cut} == {2}
    with pytest.raises(UsageError, match="cannot spell the server's text 'xyz'"):
        spelling.tokens([Completion("xyz", None, False)], 3, along, np.random.default_rng(0))
    with pytest.raises(UsageError, match="has 1,000,000 characters, but 3 tokens"):
        spelling.tokens([Completion("a" * 10**6, None, False)], 3, along, np.random.default_rng(0))


def test_the_passes_that_spell_a_text_grow_with_its_length():
    """A rare token is possible at each position, so there are as many spellings as positions."""
    logits = np.full((END + 1, END + 1), -50.0)
    logits[:, PIECES.index("ab")] = 0
    logits[:, PIECES.index("a")] = -10
    logits[PIECES.index("a"), PIECES.index("b")] = 5
    passes: Counter[int] = Counter()

    class Counting(Table):
        def plain(self, tokens, last, hidden):
            passes[draft_length] += len(tokens)
            return super().plain(tokens, last, hidden)

    class Speaking(Local):
        def complete(self, *how):
            _, _, count, limit, _ = how
            return count * [Completion("ab" * (limit // 2), None, ended=True)]

    pair = replace(toy(), target=Counting(logits))  # type: ignore[arg-type]
    for draft_length in (15, 31):
        options = {"temperature": (1.0,), "draft_length": draft_length}
        audit(Speaking(), 1, pair=pair, contexts=CONTEXTS[:1], **options)
    assert passes[31] < 2.5 * passes[15]


def test_prompts_are_cut_where_the_next_token_varies_most_at_each_temperature():
    prompt, cut = [8, 0, 1, 2, 3, 4, 5, 6, 7], {}

    class Noting(Local):
        def complete(self, prompt, *how):
            temperature, _, limit, _ = how
            if limit == CUT_TOKENS:
                cut[temperature] = prompt[-1]
            return super().complete(prompt, *how)

    def variance(token, temperature):
        law = toy().target.law(token, temperature)  # type: ignore[attr-defined]
        return float(law @ np.log(law) ** 2 - (law @ np.log(law)) ** 2)

    temperatures = (1.0, 0.3)
    audit(Noting(), 8, contexts=[Context("p", prompt)], temperature=temperatures)
    assert cut == {t: max(prompt, key=lambda token: variance(token, t)) for t in temperatures}
    assert len(set(cut.values())) == 2
