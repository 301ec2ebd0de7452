"""The page about a run: every method once, and the sweep as a front to stand above."""

from specbench.analysis.digest import digest
from specbench.analysis.summary import summarise


def _rows(samples):
    lines = digest(samples, summarise(samples)).splitlines()
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}


def test_a_sweep_becomes_the_front_and_the_distance_above_it(samples):
    rows = _rows(samples)
    assert not any(label.startswith("static w=") for label in rows)
    assert "static front at the acceptance of diversed" in rows
    assert (
        rows["**diversed above the static front**"].count("**+")
        + rows["**diversed above the static front**"].count("**-")
        == samples["task"].nunique()
    )


def test_one_static_weight_is_a_method_among_others(make):
    samples = make(
        {"method": "autoregressive", "draft_length": 0, "proposed": 0},
        {"method": "static", "weight": 0.5},
    )
    rows = _rows(samples)
    assert list(rows)[1:] == ["autoregressive", "static w=0.5"]
    assert "100.0" in rows["static w=0.5"]
    assert "60%" in rows["static w=0.5"]
    assert "1.00×" in rows["static w=0.5"]


def test_each_draft_length_has_a_table(make):
    samples = make(*({"draft_length": n} for n in (3, 7)))
    text = digest(samples, summarise(samples))
    assert [f"N = {n}," in text for n in (3, 5, 7)] == [True, False, True]


def test_prompts_without_a_metric_still_have_acceptance_and_speed(make):
    samples = make({"quality": None, "quality_metric": None})
    assert "60%" in _rows(samples)["sd"]
