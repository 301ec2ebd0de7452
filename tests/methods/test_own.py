"""The trial of a rule on random positions finds mistakes, and only those."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from specbench.errors import UsageError
from specbench.methods import METHODS, Positions, Verdict, maximal_coupling, pick
from specbench.methods.method import BOTH_MODELS, Method, Parameter
from specbench.methods.own import try_rule

SIZES = (11, 6, 3)


def attempt(rule: Callable[..., Any], /, **values: Any) -> None:
    method = Method("mine.py:rule", "", "mine.py", rule, digest="0")
    try_rule(method, partial(rule, **values), SIZES, torch.device("cpu"), torch.bfloat16)


def test_every_rule_of_the_package_passes() -> None:
    def head(at: Positions) -> torch.Tensor:
        assert at.h_p.shape == (4, 6) and at.h_q.shape == (4, 3) and at.h_q.dtype == torch.bfloat16
        return at.p.new_full((4,), 0.3)

    for method in METHODS.values():
        rule, values = method.load(), {} if method.control else method.resolve({})
        values = {name: value for name, value in values.items() if name not in BOTH_MODELS}
        if rule is not None:
            attempt(rule, **({**values, "head": head} if "head" in values else values))


def good(at: Positions, x: torch.Tensor) -> Verdict:
    return maximal_coupling(at, x, at.p)


def unused_residual(at: Positions, x: torch.Tensor) -> Verdict:
    """Divide 0 by 0 where p equals q, so that no draft is rejected."""
    rest = (at.p - at.q).clamp_min(0)
    return good(at, x)._replace(residual=rest / rest.sum(-1, keepdim=True))


def test_a_residual_that_is_never_used_may_be_undefined() -> None:
    attempt(unused_residual)


WRONG: dict[str, tuple[Callable[[Positions, torch.Tensor], Any], str]] = {
    "nothing": (lambda at, x: None, "NoneType"),
    "a tuple": (lambda at, x: tuple(good(at, x)), "tuple"),
    "raises": (lambda at, x: at.p[99], "IndexError"),
    "accept of every token": (lambda at, x: good(at, x)._replace(accept=at.p), "`accept`"),
    "accept above 1": (lambda at, x: good(at, x)._replace(accept=3 * pick(at.q, x)), "`accept`"),
    "a number": (lambda at, x: good(at, x)._replace(expected=0.5), "`expected`"),
    "NaN": (lambda at, x: good(at, x)._replace(expected=at.p[:, 0] / 0 - at.p[:, 0] / 0), "NaN"),
    "residual of one row": (lambda at, x: good(at, x)._replace(residual=at.p[:1]), "`residual`"),
    "half a residual": (lambda at, x: good(at, x)._replace(residual=at.p / 2), "sum to 1"),
    "negative residual": (lambda at, x: good(at, x)._replace(residual=at.p - at.q), "`residual`"),
    "weights of all": (lambda at, x: good(at, x)._replace(weight=at.p), "`weight`"),
    "wrong when greedy": (
        lambda at, x: good(at, x)._replace(residual=at.p * (1 - at.greedy)),
        "at temperature 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_verdict_is_one_located_sentence(name: str) -> None:
    rule, named = WRONG[name]
    with pytest.raises(UsageError) as error:
        attempt(rule)
    message = str(error.value)
    assert "mine.py:rule" in message and "line" in message and named in message
    assert "\n" not in message


def test_whole_numbers_are_checked_and_passed_as_such() -> None:
    keep = Parameter("keep", 2, "", int, ge=1)
    assert [keep.check(value) for value in (3, 3.0, "3")] == [3, 3, 3]
    assert isinstance(keep.check(3.0), int)
    for wrong in (2.5, "2.5", 0, float("inf"), "two", None):
        with pytest.raises(UsageError, match="a whole number from 1"):
            keep.check(wrong)
