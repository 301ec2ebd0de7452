"""Names, defaults, ranges and errors of methods; their parameters in the columns of tables."""

import math
from functools import partial
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.methods import METHODS, get_method
from specbench.methods.registry import PAPER, PARAMETER_COLUMNS, from_columns, to_columns
from specbench.methods.speccascade import DEFERRAL_RULES

from ..told import refusals


def test_every_name_finds_its_rule_defaults_are_permitted_and_values_converted():
    for name, method in METHODS.items():
        rule = get_method(name).rule
        assert (rule is None) == (name == "autoregressive")
        assert rule is None or rule.__name__ == name.replace("-", "_")
        defaults = method.resolve({})
        assert method.resolve({k: v for k, v in defaults.items() if v is not None}) == defaults
    assert tuple(name for name in METHODS if name in PAPER) == PAPER
    assert sorted(get_method("speccascade").parameters[0].choices) == sorted(DEFERRAL_RULES)
    for rule in DEFERRAL_RULES:
        assert isinstance(get_method("speccascade").resolve({"rule": rule})["alpha"], float)
    for name, values, resolved in RESOLVED:
        assert get_method(name).resolve(values) == resolved


RESOLVED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("static", {"weight": 0}, {"weight": 0.0}), ("static", {"weight": "0.25"}, {"weight": 0.25})),
    *(("static", {"weight": None}, {"weight": 0.5}), ("sd", {"weight": None}, {})),
    ("speccascade", {"alpha": -3}, {"rule": "token-v3", "alpha": -3.0}),
    ("speccascade", {"alpha": 7, "rule": "opt"}, {"rule": "opt", "alpha": 7.0}),
    ("diversed", {"head": "some/folder"}, {"head": "some/folder"}),
]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("static", {"weight": weight}) for weight in (1.5, "half", float("nan"))),
    ("lossy", {"lenience": 0}),
    *(("speccascade", {"rule": "chow", "alpha": -0.5}), ("speccascade", {"alpha": 1.5})),
    ("speccascade", {"rule": "opt", "alpha": float("inf")}),
    *(("speccascade", {"rule": "token-v4"}), ("speccascade", {"lenience": 0.5})),
    ("sd", {"weight": 0.5}),
]


def test_what_is_not_permitted_is_refused_in_one_sentence(stored):
    """An unknown method suggests the nearest."""
    calls = [partial(get_method(name).resolve, values) for name, values in REFUSED]
    names = ("diverse", "SD", "speccascades")
    stored(refusals(*calls, *(partial(get_method, name) for name in names)))
    with pytest.raises(UsageError, match=r"^unknown method `xyz`; choose one of `autoregressive`"):
        get_method("xyz")


def test_columns_hold_all_parameters_and_a_text_is_read_back_or_refused():
    for parameters in (
        *({}, {"weight": 0.3}, {"keep": 10.0, "margin": 0.1}),
        {"rule": "opt", "alpha": -1.0, "form": "ratio", "ratio": 1 / 3},
    ):
        columns = to_columns(parameters)
        assert tuple(columns) == PARAMETER_COLUMNS
        blanks = {name: math.nan if value is None else value for name, value in columns.items()}
        for row in (columns, blanks):
            assert from_columns(row) == pytest.approx(parameters)
    for text in ("1e3", "nan", "inf", "007", "top"):
        assert from_columns(to_columns({"mode": text})) == {"mode": text}
    for text in ("two words", "a=b"):
        with pytest.raises(UsageError, match="mode cannot be"):
            to_columns({"mode": text})
