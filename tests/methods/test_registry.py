"""Names, defaults, ranges and errors of methods; their parameters in the columns of tables."""

import math
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.methods import METHODS, get_method
from specbench.methods.registry import PAPER, PARAMETER_COLUMNS, from_columns, to_columns
from specbench.methods.speccascade import DEFERRAL_RULES


def test_every_name_finds_its_rule_and_its_defaults_are_permitted():
    for name, method in METHODS.items():
        rule = get_method(name).rule
        assert (rule is None) == (name == "autoregressive")
        assert rule is None or rule.__name__ == name.replace("-", "_")
        defaults = method.resolve({})
        assert method.resolve({k: v for k, v in defaults.items() if v is not None}) == defaults
    assert tuple(name for name in METHODS if name in PAPER) == PAPER


def test_every_deferral_rule_has_its_own_alpha():
    assert sorted(get_method("speccascade").parameters[0].choices) == sorted(DEFERRAL_RULES)
    for rule in DEFERRAL_RULES:
        assert isinstance(get_method("speccascade").resolve({"rule": rule})["alpha"], float)


GIVEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("static", {"weight": 0}, {"weight": 0.0}),
    ("static", {"weight": "0.25"}, {"weight": 0.25}),
    ("static", {"weight": None}, {"weight": 0.5}),
    ("sd", {"weight": None}, {}),
    ("speccascade", {"alpha": -3}, {"rule": "token-v3", "alpha": -3.0}),
    ("speccascade", {"alpha": 7, "rule": "opt"}, {"rule": "opt", "alpha": 7.0}),
    ("diversed", {"head": "some/folder"}, {"head": "some/folder"}),
]


def test_given_values_are_converted():
    for name, given, resolved in GIVEN:
        assert get_method(name).resolve(given) == resolved


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("static", {"weight": 1.5}, "weight cannot be 1.5: give a number from 0 to 1"),
    ("static", {"weight": "half"}, "from 0 to 1"),
    ("static", {"weight": float("nan")}, "from 0 to 1"),
    ("lossy", {"lenience": 0}, "above 0 to 1"),
    ("speccascade", {"rule": "chow", "alpha": -0.5}, "with rule chow: give a number from 0 to 1"),
    ("speccascade", {"alpha": 1.5}, "with rule token-v3: give a number up to 1"),
    ("speccascade", {"rule": "opt", "alpha": float("inf")}, "any finite number"),
    ("speccascade", {"rule": "token-v4"}, "one of chow, diff, opt"),
    ("sd", {"weight": 0.5}, "no parameter 'weight': it takes none"),
    ("speccascade", {"lenience": 0.5}, "it takes rule, alpha"),
]


def test_values_that_are_not_permitted_are_refused_in_one_sentence():
    for name, given, said in REFUSED:
        with pytest.raises(UsageError) as error:
            get_method(name).resolve(given)
        assert said in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_method_suggests_the_nearest():
    for name, nearest in (("diverse", "diversed"), ("SD", "sd"), ("speccascades", "speccascade")):
        with pytest.raises(UsageError, match=f"did you mean `{nearest}`"):
            get_method(name)
    with pytest.raises(UsageError, match=r"^unknown method `xyz`; choose one of `autoregressive`"):
        get_method("xyz")


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"weight": 0.3},
        {"keep": 10.0, "margin": 0.1},
        {"rule": "opt", "alpha": -1.0, "form": "ratio", "ratio": 1 / 3},
    ],
)
def test_columns_hold_all_parameters(parameters):
    columns = to_columns(parameters)
    assert tuple(columns) == PARAMETER_COLUMNS
    blanks = {name: math.nan if value is None else value for name, value in columns.items()}
    for row in (columns, blanks):
        assert from_columns(row) == pytest.approx(parameters)


@pytest.mark.parametrize("text", ["two words", "a=b"])
def test_a_text_that_cannot_be_read_back_is_refused(text):
    with pytest.raises(UsageError, match="mode cannot be"):
        to_columns({"mode": text})


@pytest.mark.parametrize("text", ["1e3", "nan", "inf", "007", "top"])
def test_a_text_that_reads_like_a_number_is_read_back(text):
    assert from_columns(to_columns({"mode": text})) == {"mode": text}
