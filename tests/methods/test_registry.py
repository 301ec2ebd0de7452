"""Names, defaults, ranges and the messages for what is not permitted."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.methods import METHODS, Method, Parameter, get_method
from specbench.methods.control import DraftControl
from specbench.methods.registry import PAPER
from specbench.methods.speccascade import DEFERRAL_RULES


def test_methods_stand_in_the_order_of_the_tables() -> None:
    paper = ["autoregressive", "sd", "lossy", "speccascade", "static", "diversed"]
    beyond = [
        "sd-adaptive",
        "block",
        "mentored",
        "typical",
        "cactus",
        "sharpened",
        "gated",
        "gated-diversed",
    ]
    assert list(METHODS) == paper + beyond
    assert list(PAPER) == paper


@pytest.mark.parametrize("name", METHODS)
def test_every_name_finds_its_rule(name: str) -> None:
    method = get_method(name)
    rule = method.load()
    assert method.name == name
    assert (rule is None) == (name == "autoregressive")
    named = name.removesuffix("-adaptive") if method.control else name
    assert rule is None or rule.__name__ == named.replace("-", "_")


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("autoregressive", {}),
        ("sd", {}),
        ("lossy", {"lenience": 0.5}),
        ("speccascade", {"rule": "token-v3", "alpha": 0.5}),
        ("static", {"weight": 0.5}),
        ("diversed", {"head": None}),
        ("sd-adaptive", {"cost": 0.1}),
        ("block", {}),
        ("mentored", {"budget": 0.1}),
        ("typical", {"epsilon": 0.09, "delta": 0.3}),
        ("cactus", {"divergence": 0.1}),
        ("sharpened", {"target_temperature": 0.6, "target_min_p": 0.0}),
        ("gated", {"gate": 0.1, "weight": 0.5}),
        ("gated-diversed", {"gate": 0.1, "head": None}),
    ],
)
def test_defaults(name: str, defaults: dict[str, Any]) -> None:
    assert get_method(name).resolve({}) == defaults


def test_every_number_can_be_swept_through_its_own_grid() -> None:
    for method in METHODS.values():
        for parameter in method.parameters:
            assert bool(parameter.grid) == (parameter.kind is float)
            assert [parameter.check(value) for value in parameter.grid] == [*parameter.grid]
            assert list(parameter.grid) == sorted(set(parameter.grid))


@pytest.mark.parametrize("rule", DEFERRAL_RULES)
def test_every_deferral_rule_has_an_alpha_of_its_own(rule: str) -> None:
    resolved = get_method("speccascade").resolve({"rule": rule})
    assert resolved["rule"] == rule
    assert isinstance(resolved["alpha"], float)


def test_the_offered_deferral_rules_are_those_implemented() -> None:
    offered = get_method("speccascade").parameters[0].choices
    assert sorted(offered) == sorted(DEFERRAL_RULES)


@pytest.mark.parametrize(
    ("name", "given", "resolved"),
    [
        ("static", {"weight": 0}, {"weight": 0.0}),
        ("static", {"weight": "0.25"}, {"weight": 0.25}),
        ("static", {"weight": None}, {"weight": 0.5}),
        ("sd", {"weight": None}, {}),
        ("lossy", {"lenience": 1}, {"lenience": 1.0}),
        ("speccascade", {"alpha": -3}, {"rule": "token-v3", "alpha": -3.0}),
        ("speccascade", {"alpha": 7, "rule": "opt"}, {"rule": "opt", "alpha": 7.0}),
        ("speccascade", {"alpha": -1, "rule": "diff"}, {"rule": "diff", "alpha": -1.0}),
        ("diversed", {"head": "some/folder"}, {"head": "some/folder"}),
    ],
)
def test_given_values_are_converted(
    name: str, given: dict[str, Any], resolved: dict[str, Any]
) -> None:
    assert get_method(name).resolve(given) == resolved


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("static", {"weight": 1.5}, "weight cannot be 1.5: give a number from 0 to 1"),
        ("static", {"weight": -0.1}, "weight cannot be -0.1: give a number from 0 to 1"),
        ("static", {"weight": "half"}, "weight cannot be half: give a number from 0 to 1"),
        ("static", {"weight": float("nan")}, "weight cannot be nan: give a number from 0 to 1"),
        ("lossy", {"lenience": 0}, "lenience cannot be 0: give a number above 0 to 1"),
        (
            "speccascade",
            {"rule": "chow", "alpha": -0.5},
            "alpha cannot be -0.5 with rule chow: give a number from 0 to 1",
        ),
        (
            "speccascade",
            {"alpha": 1.5},
            "alpha cannot be 1.5 with rule token-v3: give a number up to 1",
        ),
        (
            "speccascade",
            {"rule": "opt", "alpha": float("inf")},
            "alpha cannot be inf with rule opt: give any finite number",
        ),
        (
            "speccascade",
            {"rule": "token-v4"},
            "rule cannot be token-v4: give one of chow, diff, opt, token-v1, token-v2, token-v3",
        ),
        (
            "sd",
            {"weight": 0.5},
            "method 'sd' has no parameter 'weight': it takes none, leave it out",
        ),
        (
            "speccascade",
            {"lenience": 0.5},
            "method 'speccascade' has no parameter 'lenience': it takes rule, alpha",
        ),
    ],
)
def test_what_is_not_permitted_is_refused_in_one_sentence(
    name: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        get_method(name).resolve(given)
    assert str(error.value) == message


def test_a_required_parameter_must_be_given() -> None:
    budget = Parameter("budget", None, float, "", low=0, required=True)
    method = Method("capped", "", "-", rule=None, parameters=(budget,))
    assert method.resolve({"budget": 2}) == {"budget": 2.0}
    with pytest.raises(UsageError, match="'capped' needs budget: give a number from 0"):
        method.resolve({})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("diverse", "diversed"), ("SD", "sd"), ("speccascades", "speccascade")],
)
def test_an_unknown_method_suggests_the_nearest(name: str, suggestion: str) -> None:
    with pytest.raises(UsageError) as error:
        get_method(name)
    assert str(error.value) == f"unknown method `{name}`; did you mean `{suggestion}`?"


def test_a_far_name_gets_the_list_alone() -> None:
    with pytest.raises(UsageError, match=r"^unknown method `xyz`; choose one of `autoregressive`"):
        get_method("xyz")


def test_the_registry_does_not_import_torch() -> None:
    code = (
        "import sys; import specbench.methods.registry, specbench.methods as m; "
        "m.get_method('static').resolve({}); assert 'torch' not in sys.modules; "
        "m.Verdict; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_method_is_bound_to_its_parameters() -> None:
    rule, control = get_method("static").bind({"weight": 0.25})
    assert isinstance(rule, partial)
    assert (rule.keywords, control) == ({"weight": 0.25}, None)
    rule, control = get_method("sd-adaptive").bind({"cost": 0.25})
    assert (rule, control) == (get_method("sd").load(), DraftControl(0.25))
    assert get_method("autoregressive").bind({}) == (None, None)
