"""How figures and quality metrics are shown."""

from specbench.runs.shown import shown, shown_score


def test_a_metric_with_the_name_of_a_figure_is_shown_as_a_score() -> None:
    assert shown("length_ratio").heading == "tokens, ratio"
    assert shown_score("length_ratio").heading == "length_ratio"
    assert shown_score("accuracy") == shown("accuracy")
    assert shown_score("accuracy").number({"accuracy": 0.5}) == "50.0"
