"""The trial of a rule on random positions finds mistakes, and only those."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.heads.bind import try_rule
from specbench.errors import UsageError
from specbench.methods import METHODS, Positions, Verdict, maximal_coupling, pick
from specbench.methods.method import BOTH_MODELS, Method, Parameter

RULES = Path(__file__).parents[2] / "specbench" / "docs" / "my_rules.py"
SIZES = (11, 6, 3)


def attempt(rule: Callable[..., Any], /, **values: Any) -> None:
    method = Method("mine.py:rule", "", "mine.py", rule, digest="0")
    try_rule(method, partial(rule, **values), SIZES, torch.device("cpu"), torch.bfloat16)


def test_every_rule_of_the_package_passes():
    def head(at):
        assert at.h_p.shape == (4, 6) and at.h_q.shape == (4, 3) and at.h_q.dtype == torch.bfloat16
        return at.p.new_full((4,), 0.3)

    for method in METHODS.values():
        rule, values = method.rule, {} if method.control else method.resolve({})
        values = {name: value for name, value in values.items() if name not in BOTH_MODELS}
        if rule is not None:
            attempt(rule, **({**values, "head": head} if "head" in values else values))


def good(at: Positions, x: torch.Tensor) -> Verdict:
    return maximal_coupling(at, x, at.p)


def test_a_residual_that_is_never_used_may_be_undefined():
    def rule(at, x):
        rest = (at.p - at.q).clamp_min(0)  # 0 by 0 where p equals q: no draft is rejected
        return good(at, x)._replace(residual=rest / rest.sum(-1, keepdim=True))

    attempt(rule)


WAITING: dict[str, Callable[[Positions], Any]] = {
    "item": lambda at: at.p.max().item(),
    "branch": lambda at: 1 if at.p.sum() > 0 else 0,
    "list": lambda at: at.p.tolist(),
    "boolean index": lambda at: at.p[at.p > 0.5],
    "nothing": lambda at: (at.top[:, None] * at.p).topk(2),
}


@pytest.mark.parametrize("read", WAITING)
def test_a_rule_that_waits_for_the_device_is_noted_once(read, caplog):
    def rule(at, x):
        WAITING[read](at)
        return good(at, x)

    line = rule.__code__.co_firstlineno
    for _ in range(2):
        attempt(rule)
    notes = [record.getMessage() for record in caplog.records]
    assert len(notes) == (read != "nothing")
    assert all(f"(line {line}) needs the value of a tensor (line" in note for note in notes)


def test_an_error_of_the_trial_names_line_and_values():
    def rule(at, x, *, keep):
        at.p.topk(keep)
        return good(at, x)

    line = rule.__code__.co_firstlineno + 1
    with pytest.raises(UsageError, match=rf"rule keep=99 on random positions .*line {line}: "):
        attempt(rule, keep=99)


WRONG: dict[str, tuple[Callable[[Positions, torch.Tensor], Any], str]] = {
    "nothing": (lambda at, x: None, "NoneType"),
    "a tuple": (lambda at, x: tuple(good(at, x)), "tuple"),
    "exits": (lambda at, x: sys.exit(0), "SystemExit: 0"),
    "raises": (lambda at, x: at.p[99], "IndexError"),
    "accept of every token": (lambda at, x: good(at, x)._replace(accept=at.p), "`accept`"),
    "accept above 1": (lambda at, x: good(at, x)._replace(accept=3 * pick(at.q, x)), "`accept`"),
    "a number": (lambda at, x: good(at, x)._replace(expected=0.5), "`expected`"),
    "NaN": (lambda at, x: good(at, x)._replace(expected=at.p[:, 0] / 0 - at.p[:, 0] / 0), "NaN"),
    "residual of one row": (lambda at, x: good(at, x)._replace(residual=at.p[:1]), "`residual`"),
    "half a residual": (lambda at, x: good(at, x)._replace(residual=at.p / 2), "sum to 1"),
    "negative residual": (lambda at, x: good(at, x)._replace(residual=at.p - at.q), "`residual`"),
    "weights of all": (lambda at, x: good(at, x)._replace(weight=at.p), "`weight`"),
    "writes its tokens": (lambda at, x: (good(at, x), x.fill_(5))[0], "writes to `x`"),
    "writes p": (lambda at, x: (good(at, x), at.p.copy_(at.q))[0], "writes to `p`"),
    "wrong when greedy": (
        lambda at, x: good(at, x)._replace(residual=at.p * (1 - at.greedy)),
        "at temperature 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_verdict_is_one_located_sentence(name):
    rule, named = WRONG[name]
    with pytest.raises(UsageError) as error:
        attempt(rule)
    message = str(error.value)
    assert "mine.py:rule" in message and "line" in message and named in message
    assert "\n" not in message


def test_whole_numbers_are_checked_and_passed_as_such():
    keep = Parameter("keep", 2, "", int, ge=1)
    assert [keep.check(value) for value in (3, 3.0, "3")] == [3, 3, 3]
    assert isinstance(keep.check(3.0), int)
    for wrong in (2.5, "2.5", 0, float("inf"), "two", None):
        with pytest.raises(UsageError, match="a whole number from 1"):
            keep.check(wrong)
