"""Greedy texts beside those without speculation."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from specbench.analysis.verdicts.remarks import greedy_texts
from specbench.experiment import runner
from specbench.experiment.rounding import END, Lead, compare_greedy
from specbench.runs.configuration import Environment
from specbench.runs.run import read_run

from .runs import executed, plan_of


def test_a_lead_is_that_of_the_likeliest_token():
    for tokens, margin, behind in (
        *(((0, 1), 0.2, 0.4055), ((0, 2), 0.2, 1.0986), ((0, END), 0.2, 1.0986)),
        ((END, 2), 0.2, 1.0986),
    ):
        logits = torch.tensor([0.6, 0.4, 0.2, 0.2]).log().log_softmax(-1)
        lead = Lead.of(logits, tokens, [3, 9])
        assert lead.behind == pytest.approx(behind, abs=1e-3)
        assert lead.margin == pytest.approx(margin / 1.4, abs=1e-3)
        assert Lead.of(logits, (0, END), []).behind > 1e6


GREEDY = {"temperature": 0.0, "seed": 0}


def texts(*tokens: list[int]) -> list[dict[str, Any]]:
    return [{"token_ids": ids, "stopped_by": "eos", "text": str(ids)} for ids in tokens]


@pytest.mark.parametrize(
    ("other", "equal", "forks"),
    [
        (texts([1, 2, 3], [4]), 2, []),
        (texts([1, 2, 9], [4]), 1, [((1, 2), (3, 9))]),
        (texts([1, 2], [4, 5]), 0, [((1, 2), (3, END)), ((4,), (END, 5))]),
        ([{"token_ids": [], "stopped_by": "eos", "text": "[1, 2, 3]"}], 1, []),  # of a server
        ([{"token_ids": [], "stopped_by": "eos", "text": "other"}], 0, []),
    ],
)
def test_texts_are_compared_with_those_of_the_target_alone(other, equal, forks):
    plan = plan_of(["sd", "autoregressive", "typical"], **GREEDY)
    made = []
    for cell, of_cell in enumerate((texts([1, 2, 3], [4]), texts([1, 2, 3], [4]), other)):
        number = (1, 0, 2)[cell]
        for example, text in enumerate(of_cell):
            step = plan.step((0, 0, example, number))
            made.append(plan.identify(step, "eager").filled(**text))
    strict, lossy = compare_greedy(plan, made, "eager")
    assert (strict.method, strict.lossless, strict.texts, strict.equal) == ("sd", True, 2, 2)
    assert (lossy.lossless, lossy.texts, lossy.equal) == (False, len(other), equal)
    assert [(fork.shared, fork.tokens) for fork in lossy.forks] == forks
    leads = {fork: Lead(0.03, number) for number, fork in enumerate(lossy.forks)}
    assert lossy.describe(leads, 0.5)["beyond"] == max(0, len(lossy.forks) - 1)


def sentences_on(folder: Path, *cells: dict[str, Any]) -> list[str]:
    values = {"task": "t", "method": "sd", "alone": "autoregressive", "lossless": True}
    values |= {"texts": 20, "equal": 17, "forks": 3, "margins": [], "beyond": 0}
    run = read_run(folder, required=False)
    texts = [values | cell for cell in cells]
    run.__dict__["environment"] = Environment.model_validate({"greedy_texts": texts})
    return list(greedy_texts(pd.DataFrame(), run))


def test_a_lossy_rule_is_told_from_rounding(tmp_path, stored):
    """Methods with the same equality share a sentence."""
    far, some = {"margins": [0.5], "beyond": 1, "forks": 1}, {"equal": 17, "margins": [0.1]}
    alone: list[dict[str, Any]] = [
        *({"equal": 20}, {"margins": [0.1, 0.03, 0.01]}, far, {**far, "lossless": False}),
        *({"margins": [0.1], "lossless": False}, {"margins": []}),
    ]
    cells = {"a": some, "b": some, "c": some | {"lossless": False}, "d": {"equal": 0}}
    several = sentences_on(tmp_path, *({"method": name} | c for name, c in cells.items()))
    stored(*(sentence for cell in alone for sentence in sentences_on(tmp_path, cell)), *several)


def test_a_greedy_run_measures_where_texts_part(engine, tmp_path, monkeypatch, make_generation):
    def decode_all(pair, rule, requests, options):
        text = [7, 2, 4]
        if options.draft_length and requests[0].prompt == [3]:
            text[options.draft_length] = 1  # the texts differ there
        yield 0, make_generation(token_ids=text)

    def plain(text, last, hidden):
        assert text.tolist() == [[3, 7, 2]] and last == 2  # prompt and shared tokens
        return torch.tensor([[[0.0, 1.5, 2.0, 0.0, 0.0], [0.0, 1.5, 0.0, 0.0, 9.0]]]), None

    monkeypatch.setattr(runner, "decode_all", decode_all)
    engine.target.plain, engine.eos_ids = plain, frozenset({5})
    plan = plan_of(["sd", "autoregressive"], lengths=[1, 2], **GREEDY)
    executed(plan, tmp_path / "r")
    first, second = read_run(tmp_path / "r").environment.plain()["greedy_texts"]
    assert (first["method"], second["method"]) == ("sd with N = 1", "sd with N = 2")
    for compared in (first, second):
        assert (compared["equal"], compared["texts"], compared["forks"]) == (2, 3, 1)
    # Half a logit is rounding in a half precision, and 7.5 are not.
    assert (first["beyond"], second["beyond"]) == (0, 1)
    assert first["margins"] == [pytest.approx(0.193, abs=0.01)]
    assert second["margins"] == [pytest.approx(0.999, abs=0.001)]
    executed(plan_of(["sd", "autoregressive"]), tmp_path / "sampled")
    assert not read_run(tmp_path / "sampled").environment.greedy_texts
