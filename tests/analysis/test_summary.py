import numpy as np
import pandas as pd
import pytest

from specbench.analysis.frames import CELL, SUMMARY, read_summary
from specbench.analysis.summary import METRICS, summarise, wide
from specbench.errors import UsageError

AUTOREGRESSIVE = {
    "method": "autoregressive",
    "draft_length": 0,
    "proposed": 0,
    "accepted": 0,
    "judged": None,
    "draft_acceptance_rate": None,
    "acceptance_length": None,
    "expected_acceptance": None,
}


def value(summary: pd.DataFrame, metric: str, method: str = "sd") -> float:
    rows = summary[(summary["metric"] == metric) & (summary["method"] == method)]
    (found,) = rows["value"]
    return found


def test_schema_and_order_of_rows(samples):
    summary = summarise(samples)
    cells = samples.drop_duplicates(list(CELL))
    assert list(summary) == list(SUMMARY)
    assert list(summary["metric"]) == [metric.name for metric in METRICS] * len(cells)
    assert list(summary["method"][:: len(METRICS)]) == list(cells["method"])


def test_every_metric_by_hand(make):
    summary = summarise(
        make(
            {
                "sample_id": "a", "quality": 1.0, "output_tokens": 30, "rounds": 10,
                "proposed": 50, "accepted": 20, "judged": 28, "draft_acceptance_rate": 0.4,
                "acceptance_length": 3.0, "expected_acceptance": 0.5, "mean_weight": 0.2,
                "prefill_seconds": 0.5, "decode_seconds": 1.5, "stopped_by": "length",
                "draft_seconds": 0.6, "verify_seconds": 0.6, "accept_seconds": 0.24,
                "latency_seconds": 2.5, "tokens_per_second": 15.0,
            },
            {
                "sample_id": "b", "quality": 0.0, "output_tokens": 10, "rounds": 2,
                "proposed": 10, "accepted": 8, "judged": 10, "draft_acceptance_rate": 0.8,
                "acceptance_length": 5.0, "expected_acceptance": 0.8, "mean_weight": 0.8,
                "prefill_seconds": 0.5, "decode_seconds": 0.5, "stopped_by": "eos",
                "draft_seconds": 0.12, "verify_seconds": 0.24, "accept_seconds": 0.0,
                "latency_seconds": 1.5, "tokens_per_second": 10.0,
            },
            {
                **AUTOREGRESSIVE, "sample_id": "a", "output_tokens": 12, "rounds": 12,
                "prefill_seconds": 1.0, "decode_seconds": 2.0,
            },
            {
                **AUTOREGRESSIVE, "sample_id": "b", "output_tokens": 8, "rounds": 8,
                "prefill_seconds": 1.0, "decode_seconds": 1.0,
            },
        )
    )  # fmt: skip
    expected = {
        "quality": 0.5,
        "draft_acceptance_rate": 28 / 60,
        "draft_acceptance_rate_sample_mean": 0.6,
        "acceptance_length": 40 / 12,
        "acceptance_length_sample_mean": 4.0,
        "conditional_acceptance_rate": 28 / 38,
        "expected_acceptance": (14 + 8) / 38,
        "predicted_acceptance_length": (22 + 10 + 2) / 12,
        "mean_weight": (5.6 + 8) / 38,
        "seconds_per_sample": 1.5,
        "tokens_per_second": 40 / 3,
        "tokens_per_second_sample_mean": 12.5,
        "speedup": (40 / 3) / (20 / 5),
        # 40 tokens by 34 / 12 a round, of 2 / 12 s each, after 1 s of prefill.
        "predicted_speedup": 40 / (1 + 40 / 34 * 2) / (20 / 5),
        "prefill_seconds": 0.5,
        "round_seconds": 2 / 12,
        "draft_seconds": 0.72 / 12,
        "verify_seconds": 0.84 / 12,
        "accept_seconds": 0.24 / 12,
        "latency_seconds": 2.0,
        "output_tokens": 20.0,
        "rounds": 6.0,
        "length_limit_rate": 0.5,
    }
    assert {name: value(summary, name) for name in expected} == pytest.approx(expected)
    assert set(expected) == {metric.name for metric in METRICS}


def test_autoregressive_has_no_acceptance_and_is_its_own_baseline(make):
    rows = [{**AUTOREGRESSIVE, "sample_id": name} for name in "abcdefghij"]
    summary = summarise(make(*rows)).set_index("metric")
    for name in (
        "draft_acceptance_rate",
        "draft_acceptance_rate_sample_mean",
        "acceptance_length",
        "acceptance_length_sample_mean",
        "expected_acceptance",
        "conditional_acceptance_rate",
        "predicted_acceptance_length",
        "predicted_speedup",
        "mean_weight",
    ):
        assert np.isnan(summary.loc[name, "value"])
        assert summary.loc[name, "n"] == 0
    assert tuple(summary.loc["speedup", ["value", "ci_low", "ci_high"]]) == (1.0, 1.0, 1.0)


def test_n_counts_prompts_and_repeats_do_not_narrow_the_interval(make):
    rows = [{"sample_id": str(i), "quality": float(i % 2)} for i in range(20)]
    once = summarise(make(*rows)).set_index("metric").loc["quality"]
    repeats = [row | {"repeat": repeat} for row in rows for repeat in range(4)]
    four_times = summarise(make(*repeats)).set_index("metric").loc["quality"]
    assert four_times["n"] == once["n"] == 20
    assert four_times["ci_low"] == pytest.approx(once["ci_low"])


def test_unit_of_quality_is_its_metric(make):
    summary = summarise(make({"quality_metric": "rouge2"})).set_index("metric")
    assert summary.loc["quality", "unit"] == "rouge2"
    assert summary.loc["seconds_per_sample", "unit"] == "s"


def test_prompts_without_a_reference_have_no_quality(make):
    summary = summarise(make({"quality_metric": None, "quality": None})).set_index("metric")
    assert np.isnan(summary.loc["quality", "value"])
    assert pd.isna(summary.loc["quality", "unit"])
    assert summary.loc["tokens_per_second", "value"] == 20


@pytest.mark.parametrize(
    "other",
    [
        {"run_id": "x"},
        {"pair": "x"},
        {"task": "x"},
        {"temperature": 0.0},
        {"engine": "compile"},
        {"batch_size": 8},
    ],
)
def test_no_speedup_over_a_baseline_of_other_conditions(make, other):
    summary = summarise(make({}, {**AUTOREGRESSIVE, **other}))
    assert np.isnan(value(summary, "speedup"))


def test_speedup_is_measured_on_shared_prompts(make):
    summary = summarise(
        make(
            {"sample_id": "a", "output_tokens": 40},
            {"sample_id": "b", "output_tokens": 4000},
            {**AUTOREGRESSIVE, "sample_id": "a", "output_tokens": 10},
        )
    )
    assert value(summary, "speedup") == pytest.approx(4.0)


def test_settings_are_cells_of_their_own(make):
    rows = [
        {"method": "static", "weight": 0.2},
        {"method": "static", "weight": 0.8},
        {"method": "lossy", "lenience": 0.5},
        {"method": "sd", "draft_length": 7},
        {"method": "sd"},
        {"method": "sd", "engine": "compile"},
        {"method": "sd", "batch_size": 8},
    ]
    assert len(wide(summarise(make(*rows)))) == 7


def test_speedup_of_a_plausible_run_lies_inside_its_interval(samples):
    speedup = summarise(samples).query("metric == 'speedup' and method == 'static'")
    assert (speedup["ci_low"] < speedup["value"]).all()
    assert (speedup["value"] < speedup["ci_high"]).all()
    assert speedup["value"].iloc[0] > speedup["value"].iloc[5]  # w = 0 beats w = 1


def test_summary_survives_the_disk(tmp_path, samples):
    summary = summarise(samples)
    summary.to_csv(tmp_path / "summary.csv", index=False)
    pd.testing.assert_frame_equal(read_summary(tmp_path), summary)


def test_wide_has_a_row_per_cell_with_values_and_intervals(samples):
    summary = summarise(samples)
    table = wide(summary)
    assert len(table) == len(samples.drop_duplicates(list(CELL)))
    assert list(table["method"][:2]) == ["autoregressive", "sd"]
    for metric in METRICS:
        rows = summary[summary["metric"] == metric.name]
        np.testing.assert_array_equal(table[metric.name], rows["value"])
        np.testing.assert_array_equal(table[f"{metric.name}_low"], rows["ci_low"])
        np.testing.assert_array_equal(table[f"{metric.name}_high"], rows["ci_high"])
    assert set(table["quality_metric"]) == {"accuracy"}


def test_nothing_to_summarise(make):
    with pytest.raises(UsageError, match="no samples"):
        summarise(make({}).iloc[:0])
