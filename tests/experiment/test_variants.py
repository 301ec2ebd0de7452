"""What every run measures besides the chosen methods."""

import pytest

from specbench.experiment.cells import method_variants, with_baselines, with_control


@pytest.mark.parametrize("names", [["sd"], ["sd", "typical"], ["static", "autoregressive"]])
def test_drafts_are_compared_with_no_speculation(names: list[str]) -> None:
    chosen = method_variants(names, {})
    methods = [method for method, _ in with_baselines(chosen)]
    assert sorted(methods) == sorted({"autoregressive", *names})
    assert with_baselines(with_baselines(chosen)) == with_baselines(chosen)


@pytest.mark.parametrize(
    ("names", "controlled"),
    [
        (["sd", "typical"], True),
        (["sd", "static", "gated"], True),
        (["sd", "static", "block"], False),  # nothing relaxes the target
        (["sd", "typical", "cooled"], False),  # it has one
        (["sd", "typical", "sharpened"], False),
    ],
)
def test_a_rule_that_relaxes_has_a_control_for_a_lower_temperature(
    names: list[str], controlled: bool
) -> None:
    chosen = method_variants(names, {})
    added = with_control(chosen)[len(chosen) :]
    assert [method for method, _ in added] == ["cooled"] * controlled
    if controlled:
        values = added[0][1]
        assert (values["both_temperature"], values["cooled_weight"]) == (0.5, 1.0)
