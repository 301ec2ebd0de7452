"""The rejection of drafts that vLLM gives flattened: its law, mixed batches, and its refusals."""

import sys
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from specbench.decoding import round as rounds
from specbench.errors import UsageError
from specbench.serving.arm import ARGUMENT, ROUNDS
from specbench.serving.vllm.plugin import expand_batch_to_tokens, register
from specbench.serving.vllm.rules import checked_rule, rule_of
from specbench.serving.vllm.step import END, Flattened, reject

VOCABULARY, REQUESTS = 6, 20_000
NO_STATES = torch.zeros(2, 0)
RAW = torch.tensor([[1.0, 0.5, 0.0, -0.5, -1.0, -2.0], [0.0, 1.0, 0.3, -1.0, 0.2, -0.3]])
DRAFT = torch.tensor([[0.0, 1.0, 0.5, -0.5, 0.0, -1.0], [0.5, 0.2, 0.0, 0.1, -0.4, 1.0]])


def decode(rule: str, temperature: float, counts: list[int], *, certain: bool = False, **how: Any):
    """Return the new tokens ``[B, 3]`` of requests with up to two drafts each; 5 is the bonus."""
    torch.manual_seed(1)
    places = torch.tensor([i for count in counts for i in range(count)], dtype=torch.long)
    p_logits, q = RAW[places], (DRAFT / (temperature or 1)).softmax(-1)[places]
    x = q.argmax(-1) if temperature == 0 else q.multinomial(1)[:, 0]
    logits, q = p_logits / (temperature or 1), None if certain else q
    drafts = Flattened(x.int(), q, logits, p_logits, NO_STATES[places], None, counts)
    bonus = torch.full((len(counts), 1), 5, dtype=torch.int32)
    requests: dict[str, Any] = {"rules": [rule] * len(counts), "generators": {}, **how}
    return reject(drafts, bonus, temperatures=[temperature] * len(counts), **requests)[0]


def fit(tokens: torch.Tensor, law: torch.Tensor) -> float:
    """Return the p-value of the first tokens of texts under a law ``[V]``."""
    counts = tokens[:, 0].long().bincount(minlength=VOCABULARY).double()
    return float(chisquare(counts, law.double() / law.double().sum() * counts.sum()).pvalue)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_first_token_has_the_law_of_its_rule(temperature):
    p, q = ((logits[0] / temperature).softmax(-1) for logits in (RAW, DRAFT))
    laws = {"sd": p, "static:weight=0.5": (p + q) / 2, "static:weight=0.2": 0.2 * p + 0.8 * q}
    for rule, law in laws.items():
        tokens = decode(rule, temperature, [2] * REQUESTS)
        assert fit(tokens, law) > 1e-4, rule
        other = q if rule == "sd" else p
        assert fit(tokens, other) < 1e-9, rule  # the test can fail


def test_the_second_token_has_its_law_and_requests_as_many_drafts_as_they_have():
    tokens = decode("sd", 1.0, [2] * REQUESTS)
    assert fit(tokens[tokens[:, 1] != END][:, 1:], RAW[1].softmax(-1)) > 1e-4
    tokens = decode("sd", 1.0, [2] * REQUESTS, certain=True)
    assert fit(tokens, RAW[0].softmax(-1)) > 1e-4
    tokens = decode("sd", 1.0, [0, 1, 2] * 2000)
    none, one, two = tokens[::3], tokens[1::3], tokens[2::3]
    assert (none == torch.tensor([5, END, END])).all()
    assert (one[:, 2] == END).all() and (one[:, 1] == 5).any()
    assert ((one[:, 1] == 5) | (one[:, 1] == END)).all() and (two[:, 2] == 5).any()
    assert fit(torch.cat((one, two)), RAW[0].softmax(-1)) > 1e-4


@pytest.mark.parametrize("rule", ["sd", "gated", "diversed:head=python/python-line"])
def test_requests_are_verified_alone_as_together(rule, monkeypatch):
    counts = [0, 1, 2, 2, 1] * 20
    together = [decode(rule, temperature, counts) for temperature in (0.0, 0.5, 1.0)]
    monkeypatch.setattr(rounds, "CACHED", 1)
    for tokens, temperature in zip(together, (0.0, 0.5, 1.0), strict=True):
        assert decode(rule, temperature, counts).tolist() == tokens.tolist()


def test_one_batch_has_several_rules_and_temperatures():
    counts = [2] * 3
    kinds = ["sd", "static:weight=0", "lossy:lenience=0.5"]
    q = DRAFT.softmax(-1).repeat(3, 1)
    logits = RAW.repeat(3, 1)
    drafts = Flattened(q.argmax(-1).int(), q, logits, logits, NO_STATES.repeat(3, 1), None, counts)
    bonus = torch.full((3, 1), 5, dtype=torch.int32)
    tokens, _ = reject(drafts, bonus, rules=kinds, temperatures=[0.0, 1.0, 0.0], generators={})
    first = q.argmax(-1)[0]
    assert RAW[0].argmax() != first
    assert tokens[0].tolist() == [int(RAW[0].argmax()), END, END]  # sd at temperature 0
    assert tokens[1].tolist() == [*q.argmax(-1)[:2].tolist(), 5]  # all drafts


def test_rules_compare_at_temperature_1_seeds_repeat_and_temperatures_are_expanded():
    near = decode("lossy:lenience=0.5", 0.0, [2])
    assert near[0, 0] == DRAFT[0].argmax()  # half as likely as the target's choice
    assert decode("lossy:lenience=0.7", 0.0, [2])[0, 0] == RAW[0].argmax()

    def seeded():
        return decode("sd", 1.0, [2] * 8, generators={3: torch.Generator().manual_seed(7)})[3]

    assert seeded().tolist() == seeded().tolist()
    drawn = []
    for counts, longest in (([1], 2), ([1, 2], 2), ([1], 0)):  # alone, beside another, without N
        generator = torch.Generator().manual_seed(7)
        decode("sd", 1.0, counts, generators={0: generator}, longest=longest)
        drawn.append(torch.rand(1, generator=generator).item())
    assert drawn[0] == drawn[1] != drawn[2]
    cumulative = torch.tensor([2, 2, 5])
    got = expand_batch_to_tokens(torch.tensor([0.0, 3.0, 0.5]), cumulative, 5, 0, 1)
    assert got.tolist() == [1, 1, 0.5, 0.5, 0.5]


def test_rules_that_cannot_run_in_vllm_are_refused():
    for rule, message in (
        *(("sdd", "did you mean `sd`?"), ("autoregressive", "no verification rule")),
        *(("sd-adaptive", "no verification rule"), ("cooled", "changes how drafts are drawn")),
        *(("diversed", "needs a head"), ("diversed:head=none", "none")),
        *(("static:weight=2", "weight cannot be 2"), ("static:weight", "is not NAME=VALUE")),
    ):
        with pytest.raises(UsageError, match=message):
            rule_of(rule)


def test_a_request_chooses_a_rule_but_no_file():
    default = ["static:weight=0.5", "sd"]
    assert checked_rule(None, default) == default[0]
    assert checked_rule({ARGUMENT: "sd"}, default) == "sd"
    assert checked_rule({ARGUMENT: "diversed:head=python/python-line"}, default)
    linear = "diversed:head=mini/mini-math"
    assert checked_rule({ARGUMENT: linear}, [*default, linear]) == linear
    assert checked_rule({ARGUMENT: "static"}, default) == default[0]
    refused = ("my_rules.py:geometric", "diversed:head=/tmp", "diversed:head=mini/..", 3, linear)
    for rule in refused:
        with pytest.raises(UsageError):
            checked_rule({ARGUMENT: rule}, default)
    with pytest.raises(UsageError, match="at most 64"):
        checked_rule({ROUNDS: "k" * 65}, default)
    assert rule_of("specbench/docs/my_rules.py:geometric:share=0.7") is not None  # of the server


def test_without_the_variable_vllm_is_not_even_imported(monkeypatch):
    monkeypatch.delenv("SPECBENCH_VLLM_RULE", raising=False)
    register()
    assert "vllm" not in sys.modules
