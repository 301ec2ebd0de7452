"""Texts decoded together equal texts decoded alone."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from specbench.decoding import round as rounds
from specbench.decoding.heads.head import Head
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.methods import Rule
from specbench.methods.ensembles import diversed, static
from specbench.methods.exact import block
from specbench.methods.mentored import mentored
from specbench.methods.speccascade import speccascade
from specbench.methods.strict import lossy, sd

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from .helpers import GREEDY, run, run_all, said, with_eos

LENGTHS = (7, 1, 30, 2, 12, 5, 21)
REQUESTS = [Request(random_prompt(length), f"sample {length}") for length in LENGTHS]


def side_by_side(pair: LoadedPair, rule: Rule | None, batch_size: int, **changes: Any):
    return run_all(pair, rule, REQUESTS, batch_size=batch_size, **changes)


def rules(pair: LoadedPair) -> dict[str, Rule | None]:
    head = Head("linear", (pair.target.hidden_size, pair.draft.hidden_size), 0.6)
    return {
        **{"autoregressive": None, "sd": sd, "lossy": partial(lossy, lenience=0.5)},
        "speccascade": partial(speccascade, rule="token-v3", alpha=0.5),
        **{"static": partial(static, weight=0.4), "diversed": partial(diversed, head=head.weigh)},
        **{"block": block, "mentored": partial(mentored, budget=0.1)},
    }


def rules_of(family: str) -> dict[str, Rule | None]:
    """All rules for one family; for others those that read different outputs of the models."""
    every = rules(tiny_pair(family))
    basic = ("autoregressive", "sd", "diversed")
    return every if family == FAMILIES[0] else {name: every[name] for name in basic}


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY], ids=["T=1", "T=0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_does_not_depend_on_its_neighbours(family, sampling):
    pair = tiny_pair(family)
    settings: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 12}
    for name, rule in rules_of(family).items():
        alone = [said(run(pair, list(r.prompt), rule, r.key, **settings)) for r in REQUESTS]
        # Fewer rows than texts, so texts leave and join at different times.
        for size in (3, 20) if name == "sd" else (3,):
            assert [said(g) for g in side_by_side(pair, rule, size, **settings)] == alone, name


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.7, top_k=9), Sampling(), GREEDY], ids=str
)
def test_texts_judged_one_by_one_equal_texts_judged_together(sampling, monkeypatch):
    pair, judged = tiny_pair("llama"), set()

    def texts(rule):
        def counted(at, x):
            assert rule is not None
            judged.add((len(x) // at.n, at.p is at.p1))
            return rule(at, x)

        side = side_by_side(pair, rule and counted, 3, sampling=sampling, max_new_tokens=12)
        return [said(generation) for generation in side]

    together = {name: texts(rule) for name, rule in rules(pair).items()}
    assert {rows for rows, _ in judged} == {3}
    monkeypatch.setattr(rounds, "CACHED", 1)
    assert {name: texts(rule) for name, rule in rules(pair).items()} == together
    # Without processing, a rule still gets one tensor twice, which it reads once.
    assert judged == {(rows, sampling == Sampling()) for rows in (1, 3)}


@pytest.mark.parametrize("n", [1, 7, 15])
def test_texts_that_end_at_different_times(n):
    plain = tiny_pair("llama")
    ends = {token for g in side_by_side(plain, sd, 3) for token in g.token_ids[4:5]}
    pair = with_eos(plain, *list(ends)[:3])
    together = side_by_side(pair, sd, 3, draft_length=n)
    alone = [run(pair, list(r.prompt), sd, sample_key=r.key, draft_length=n) for r in REQUESTS]
    assert [said(g) for g in together] == [said(g) for g in alone]
    assert {g.stopped_by for g in together} == {"eos", "length"}


def test_joining_texts_and_the_consumer_do_not_count_in_another_texts_latency(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("specbench.decoding.loop.now", lambda device: clock[0])
    monkeypatch.setattr("specbench.decoding.loop.perf_counter", lambda: clock[0])
    pair = replace(tiny_pair("llama"), eos_ids=frozenset())
    read = pair.target.prefill

    def prefill(prompt, row=0):
        clock[0] += 1.0
        read(prompt, row)

    monkeypatch.setattr(pair.target, "prefill", prefill)
    generations = side_by_side(pair, None, 2, max_new_tokens=4)
    # Two texts start; a text that joins waits only for the one that joins with it.
    assert [g.latency_seconds for g in generations] == [2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]
    options = DecodeOptions(Sampling(), 0, 4, batch_size=2)
    for _, generation in decode_all(pair, None, REQUESTS, options):
        clock[0] += 100.0
        assert generation.latency_seconds < 3


def test_another_seed_or_key_gives_another_sample():
    decode = partial(run, tiny_pair("llama"), random_prompt(4), sd)
    outputs = [decode(seed=seed, sample_key=key) for seed in (0, 1) for key in ("a", "b")]
    assert len({tuple(output.token_ids) for output in outputs}) == len(outputs)
