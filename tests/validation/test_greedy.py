"""Greedy texts: a tie passes, a wrong token fails; and acceptance is as expected."""

from dataclasses import replace
from typing import Any

import torch

from specbench.decoding.drafters.registry import MODEL, parse_drafter
from specbench.engine.pair import LoadedPair
from specbench.experiment.rounding import END
from specbench.validation import greedy
from specbench.validation.findings import FAILED, OK, REPORT, WEAK
from specbench.validation.greedy import check_greedy, divergence, lag
from specbench.validation.texts import Context, decode_one

from ..decoding.helpers import own_draft
from ..engine import tiny

LIMIT = 32
CONTEXTS = [Context(f"task/{n}", tiny.random_prompt(n)) for n in (5, 9)]


def twins(text: list[int]) -> tuple[LoadedPair, int, int]:
    """Return a pair whose target has two equally good tokens after a text, and these tokens."""
    model: Any = tiny.build(tiny.config("llama"))
    best = int(tiny.own_logits(model, text)[-1].argmax())
    other = (best + 1) % tiny.VOCABULARY
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[other] = head[best]
    return tiny.pair_of(model, tiny.blurred(model, noise=0.01)), best, other


def verdicts(pair: LoadedPair, strict: bool = True) -> list[str]:
    return [finding.verdict for finding in check_greedy(pair, CONTEXTS, 3, LIMIT, strict=strict)]


def test_correct_decoding_and_ties_pass_and_a_worse_token_or_an_early_end_does_not():
    assert verdicts(tiny.tiny_pair("llama")) == [OK, OK]
    assert verdicts(tiny.tiny_pair("llama"), strict=False) == [REPORT, REPORT]
    assert verdicts(own_draft(tiny.tiny_pair("llama"))) == [OK, WEAK]
    pair, best, other = twins([*CONTEXTS[0].prompt, 7])
    tie = divergence(pair, CONTEXTS[0], [7, best, 3], [7, other, 5])
    assert (tie["position"], tie["tie"]) == (1, True) and tie["margin"] < greedy.TIE
    right = tiny.tiny_pair("llama")
    text = decode_one(right, CONTEXTS[0], 4).token_ids
    worse = divergence(right, CONTEXTS[0], text, [*text[:2], (text[2] + 1) % tiny.VOCABULARY, 0])
    assert (worse["position"], worse["tie"]) == (2, False) and worse["behind"] > greedy.TIE
    pair = replace(tiny.tiny_pair("llama"), eos_ids=frozenset({3}))
    text = decode_one(tiny.tiny_pair("llama"), CONTEXTS[0], 4).token_ids
    difference = divergence(pair, CONTEXTS[0], text, [*text[:2], END])
    assert (difference["position"], difference["tie"]) == (2, False)
    without = divergence(tiny.tiny_pair("llama"), CONTEXTS[0], text, text[:2])
    assert (without["position"], without["tie"]) == (2, False)


def test_a_fault_fails_with_its_position(monkeypatch):
    def wrong(*options, **how):
        text = decode_one(*options, **how)
        if how:
            text.token_ids[6] = (text.token_ids[6] + 1) % tiny.VOCABULARY
        return text

    monkeypatch.setattr(greedy, "decode_one", wrong)
    plain, equal = check_greedy(tiny.tiny_pair("llama"), CONTEXTS, 3, LIMIT, strict=True)
    assert (plain.verdict, equal.verdict) == (OK, FAILED)
    assert "0 of 2 texts equal" in equal.sentence
    assert "apart (median), and 2 of these differences are more than rounding" in equal.sentence
    assert "the first at token 6 of task/5" in equal.sentence


def test_every_drafter_is_compared_and_lag_measured_from_the_first_choice():
    drafters = [MODEL, parse_drafter("prompt-lookup")]
    pair = tiny.tiny_pair("llama")
    findings = check_greedy(pair, CONTEXTS, 3, LIMIT, strict=True, drafters=drafters)
    subjects = ["T=0, float32", "T=0, float32", "T=0, float32, prompt-lookup"]
    assert [finding.subject for finding in findings] == subjects
    rejected = [finding.facts["rejected"] for finding in findings[1:]]
    assert rejected[0] != rejected[1]
    pair = tiny.tiny_pair("llama")
    text = decode_one(pair, CONTEXTS[1], 5).token_ids
    worse = [*text[:4], (text[4] + 1) % tiny.VOCABULARY]
    target_lag = lag(pair.target, CONTEXTS[1], worse, frozenset())
    assert target_lag.behind[:4].max() <= greedy.TIE
    assert target_lag.behind[4] >= target_lag.margin[4] - 1e-6 > 0
