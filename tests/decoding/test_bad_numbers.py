"""A rule that misbehaves only after its trial is noticed in the round in which it does."""

import ctypes
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from specbench.decoding.records import RoundReport
from specbench.decoding.sampling import Sampling
from specbench.errors import SpecbenchError
from specbench.methods import Positions, Verdict
from specbench.methods.strict import sd
from specbench.methods.typical import typical

from ..engine.tiny import random_prompt, tiny_pair
from .helpers import GREEDY, run

NAN, INF = float("nan"), float("inf")


def from_the_third_round(change: Callable[[Verdict], Verdict]) -> Callable[..., Verdict]:
    calls: list[int] = []

    def late(at: Positions, x: Tensor) -> Verdict:
        calls.append(1)
        return sd(at, x) if len(calls) < 3 else change(sd(at, x))

    return late


def replaced(name: str, value: float) -> Callable[[Verdict], Verdict]:
    def change(verdict: Verdict) -> Verdict:
        # No draft is accepted, so that the residual is used.
        verdict = verdict._replace(accept=torch.zeros_like(verdict.accept))
        like = verdict.accept if name == "weight" else getattr(verdict, name)
        return verdict._replace(**{name: torch.full_like(like, value)})

    return change


def one_infinite(logits: Tensor) -> Tensor:
    logits[..., 1] = INF
    return logits


def raised(error: BaseException) -> Callable[[Verdict], Verdict]:
    def change(verdict: Verdict) -> Verdict:
        raise error

    return change


def test_a_number_out_of_range_names_rule_quantity_and_value():
    for name, value in (
        *(("accept", value) for value in (NAN, -1.5, 1.5, INF)),
        *(("expected", value) for value in (NAN, -0.1, INF)),
        *(("residual", value) for value in (NAN, -0.1, 0.0, 1.0, INF)),
        *(("weight", value) for value in (NAN, 1.5, -1)),
    ):
        with pytest.raises(SpecbenchError) as error:
            run(tiny_pair("llama"), random_prompt(6), from_the_third_round(replaced(name, value)))
        message = str(error.value)
        assert "late (test_bad_numbers.py, line" in message and "in round 3" in message
        assert f"`{name}` of draft 1" in message and f"{value:g}" in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda verdict: sys.exit(0), "SystemExit: 0"),
        (raised(GeneratorExit()), "GeneratorExit"),
        (raised(StopIteration("end")), "StopIteration: end"),
        (raised(IndexError("99")), "IndexError: 99"),
        (lambda verdict: None, "NoneType"),
        (lambda verdict: verdict._replace(residual=verdict.residual[:, :1]), "shape"),
        (lambda verdict: verdict._replace(accept=verdict.accept[:1]), "shape"),
        (lambda verdict: verdict._replace(accept=verdict.accept[:, None]), "`accept` must have"),
        (lambda verdict: verdict._replace(residual=verdict.residual.T), "`residual` must have"),
        (lambda verdict: verdict._replace(expected=None), "`expected` must be a tensor"),
    ],
)
def test_an_error_of_a_rule_is_one_located_sentence(change, named):
    with pytest.raises(SpecbenchError, match=r"late \(test_bad_numbers.py, line \d+\)") as error:
        run(tiny_pair("llama"), random_prompt(6), from_the_third_round(change))
    assert named in str(error.value)


def test_ctrl_c_in_a_rule_is_not_an_error_of_the_rule():
    with pytest.raises(KeyboardInterrupt):
        run(tiny_pair("llama"), random_prompt(6), from_the_third_round(raised(KeyboardInterrupt())))


def test_numbers_that_are_not_used_may_be_undefined():
    """After the first rejection a rule may divide by zero."""
    used = ([1, 2], (0.0, 1.0), (0.1, 0.1), [7, 8], [True, True])
    report = RoundReport(
        9, 1, 2, *used, accept=[1.0, 0.5], expected=[1.0, 0.5], weights=[], has_zero_p=[]
    )
    assert report.fault() is None
    rejected = report._replace(accepted=0, accept=[0.5, NAN], expected=[0.5, NAN])
    assert rejected.fault() is None
    assert "draft 2" in str(rejected._replace(accepted=1).fault())
    assert "`residual`" in str(report._replace(source=(-0.5, 1.0)).fault())
    assert "the target's" in str(report._replace(accepted=2, source=(NAN, NAN)).fault())


@pytest.mark.parametrize("model", ["target", "draft"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(temperature=0.7, top_k=5)])
@pytest.mark.parametrize("change", [lambda x: x * NAN, lambda x: x.fill_(-INF), one_infinite])
def test_logits_that_are_not_finite_are_named(monkeypatch, model, sampling, change):
    """At temperature 0 the argmax of NaNs is a token like any other."""
    pair = tiny_pair("llama")
    runner, rule = getattr(pair, model), partial(typical, epsilon=0.09, delta=0.3)
    read, calls = runner.read, []

    def late(*arguments, **options):
        calls.append(1)
        hidden, logits = read(*arguments, **options)
        return hidden, logits if len(calls) < 3 else change(logits.clone())

    monkeypatch.setattr(runner, "read", late)
    with pytest.raises(SpecbenchError, match=f"the {model}'s logits are not finite"):
        run(pair, random_prompt(6), rule, max_new_tokens=40, sampling=sampling)


def through_numpy(array):
    array[:] = 0


@pytest.mark.parametrize(
    ("write", "fault"),
    [
        *(
            (write, "RuntimeError: Inplace update")
            for write in (
                *(lambda at, x: at.p.mul_(0.5), lambda at, x: at.p[:, 3:4].zero_()),
                *(lambda at, x: at.q.copy_(at.p), lambda at, x: torch.div(at.p1, 2, out=at.p1)),
                *(lambda at, x: at.h_p.relu_(), lambda at, x: x.zero_()),
            )
        ),
        # Aliases without a version.
        (lambda at, x: through_numpy(at.p.numpy()), "writes to `p`"),
        (lambda at, x: through_numpy(np.asarray(at.q)[1:, 3:]), "writes to `q`"),
        (lambda at, x: torch.from_numpy(x.detach().numpy()).fill_(5), "writes to `x`"),
        (lambda at, x: ctypes.memset(at.p.data_ptr(), 0, 8), "writes to `p`"),
    ],
)
def test_a_rule_that_writes_to_its_inputs_only_later_is_noticed(write, fault):
    calls: list[int] = []

    def late(at, x):
        calls.append(1)
        if len(calls) == 3:
            write(at, x)
        return sd(at, x)

    with pytest.raises(SpecbenchError, match=f"late .*{fault}"):
        run(tiny_pair("llama"), random_prompt(6), late)
    assert len(calls) == 3
