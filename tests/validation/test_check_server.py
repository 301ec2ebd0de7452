"""Checks of a small server: planted faults are found, and a correct server has none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from specbench.errors import UsageError
from specbench.serving.server import Completion
from specbench.validation import server as checking
from specbench.validation.findings import FAILED, WEAK, Finding, failures
from specbench.validation.texts import Context

from .toy import BONUS_FROM_Q, DRAFT_LENGTH, END, FAULTS, speculate, toy

CONTEXTS = [Context(f"p{token}", [8, token]) for token in range(4)]


class Local:
    """The server's loop without the server."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        seeds = range(seed, seed + count)
        texts = [speculate(prompt, temperature, limit, n, self.fault) for n in seeds]
        return [Completion(tokens, tokens[-1] == END) for tokens in texts]


def check(
    complete: checking.Complete,
    samples: int,
    contexts: Sequence[Context] = CONTEXTS,
    **changes: Any,
) -> list[Finding]:
    server = checking.TextsOfServer(
        toy(), complete, DRAFT_LENGTH, samples, (1.0, 0.7), seed=0, tie=1e-3
    )
    return list(checking.check_server(server._replace(**changes), contexts, lambda text: None))


def failed(findings: list[Finding]) -> set[str]:
    return {f"{f.name} {f.subject}" for f in findings if f.verdict == FAILED}


def test_a_correct_server_is_lossless_and_its_power_is_named_whatever_one_test_lacks():
    checks = [check(Local().complete, 96, seed=1000 * seed) for seed in range(20)]
    findings = checks[0]
    assert not failures(findings) and not checking.too_weak(findings), findings
    assert [f.name for f in findings] == [
        "first choices",
        *2 * [*checking.COUNTED, *checking.STREAMS, *checking.SAMPLER],
    ]
    tokens = next(f for f in findings if f.name == checking.TOKENS)
    assert 0.05 < tokens.facts["share"] < 0.7
    assert f"notices {100 * tokens.facts['share']:.0f} % of wrong draws" in tokens.sentence
    assert not any(map(failures, checks))
    assert any(f.verdict == WEAK for f in checks[0]) and not checking.too_weak(checks[0])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    findings = check(Local(fault).complete, 128)
    assert failures(findings), findings
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
            texts.append(Completion(tokens[1:], tokens[-1] == END))
        return texts


def test_another_temperature_and_a_filter_are_found():
    for fault, name in (
        ({"heat": 1.2}, checking.TEMPERATURE),
        ({"heat": 1 / 1.2}, checking.TEMPERATURE),
        ({"least": 0.05}, checking.FILTERS),
    ):
        findings = check(Distorted(**fault).complete, 512)
        assert f"{name} T=1" in failed(findings)
        (finding,) = [f for f in findings if f.name == name and f.subject == "T=1"]
        assert ("the texts look like T=" in finding.sentence) == (name == checking.TEMPERATURE)
        assert ("is a filter on?" in finding.sentence) == (name == checking.FILTERS)


def test_a_fault_of_bonus_tokens_alone_is_found_and_few_samples_are_too_weak(monkeypatch):
    """They are few, and none of them is among the first tokens, or after a cut prompt."""
    monkeypatch.setattr(checking, "CUT_SAMPLES", 0)
    faults = failed(check(Local(BONUS_FROM_Q).complete, 4096))
    assert {"bonus tokens T=1", "bonus tokens T=0.7"} <= faults
    assert not {"first tokens T=1", "first tokens T=0.7"} & faults
    findings = check(Local().complete, 8)
    assert checking.too_weak(findings) and not failures(findings)
    assert any("would hardly be noticed" in finding.sentence for finding in findings)


def test_no_seed_is_decoded_twice():
    """Equal random numbers would count as independent ones, also after different prompts."""
    asked: list[tuple[float, int]] = []

    class Noting(Local):
        def complete(self, prompt, *how):
            temperature, count, _, seed = how
            asked.extend((temperature, number) for number in range(seed, seed + count))
            return super().complete(prompt, *how)

    check(Noting().complete, 16)
    sampled = [key for key in asked if key[0]]
    assert len(sampled) == len(set(sampled))


def test_a_fork_by_rounding_is_no_fault():
    """A text that takes the second choice has a fault unless the logits tie; the draft ties too."""

    class Second(Local):
        def complete(self, prompt, *how):
            if how[0]:
                return super().complete(prompt, *how)  # type: ignore[arg-type]
            tokens = [int(toy().target.logits[prompt[-1]].argsort()[-2])]  # type: ignore[attr-defined]
            while len(tokens) < how[2] and tokens[-1] != END:
                tokens.append(int(toy().target.logits[tokens[-1]].argmax()))  # type: ignore[attr-defined]
            return [Completion(tokens, tokens[-1] == END)]

    for tie, expected, words in (
        (1e-3, FAILED, "4 of 4 texts contain a token that is not the target's first choice"),
        (10.0, WEAK, "all the target's first choice up to rounding, at most"),
    ):
        first, *_ = check(Second().complete, 8, temperatures=(1.0,), tie=tie)
        assert first.verdict == expected and words in first.sentence
        assert {fork["position"] for fork in first.facts["forks"]} == {0}
        logits = np.sort(toy().target.logits[0])  # type: ignore[attr-defined]
        assert first.facts["forks"][0]["margin"] == pytest.approx(logits[-1] - logits[-2], abs=1e-5)


def test_tokens_beyond_the_vocabulary_and_a_text_that_stops_without_an_end_are_refused():
    for token, ended, message in (
        (END + 1, True, f"returns token {END + 1}, but the target has {END + 1}"),
        (10**30, True, f"returns token {10**30}, but the target has {END + 1}"),
        (1, False, "stopped after 2 of 64 tokens after p0 without ending"),
    ):
        completion = Completion([0, token], ended)
        with pytest.raises(UsageError, match=message):
            check(lambda *how, text=completion: [text], 16)


def test_prompts_are_cut_where_the_next_token_varies_most_at_each_temperature():
    prompt, cut = [8, 0, 1, 2, 3, 4, 5, 6, 7], {}

    class Noting(Local):
        def complete(self, prompt, *how):
            temperature, _, limit, _ = how
            if limit == checking.CUT_TOKENS:
                cut[temperature] = prompt[-1]
            return super().complete(prompt, *how)

    def variance(token, temperature):
        law = toy().target.law(token, temperature)  # type: ignore[attr-defined]
        return float(law @ np.log(law) ** 2 - (law @ np.log(law)) ** 2)

    temperatures = (1.0, 0.3)
    check(Noting().complete, 8, [Context("p", prompt)], temperatures=temperatures)
    assert cut == {t: max(prompt, key=lambda token: variance(token, t)) for t in temperatures}
    assert len(set(cut.values())) == 2
