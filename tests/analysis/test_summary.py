"""The summary: every figure by hand, metrics beyond quality, corpus BLEU and pass@k."""

from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import (
    COMPLETED_LESS,
    OF_TEXTS,
    REPETITION_LESS,
    contrast,
)
from specbench.analysis.statistics.intervals import FEWEST
from specbench.analysis.statistics.summary import (
    FIGURES,
    cells_of,
    further_metrics,
    less_than_sd,
    summarise,
)
from specbench.analysis.tables.shown import shown
from specbench.runs.frames import CELL

from ..told import refusals

AUTOREGRESSIVE = {
    **{"method": "autoregressive", "draft_length": 0, "proposed": 0, "accepted": 0},
    **dict.fromkeys(
        ("judged", "draft_acceptance_rate", "acceptance_length", "expected_acceptance")
    ),
}


def value(summary: pd.DataFrame, metric: str, method: str = "sd") -> float:
    rows = summary[(summary["metric"] == metric) & (summary["method"] == method)]
    (number,) = rows["value"]
    return number


def test_every_metric_by_hand(make):
    summary = summarise(
        make(
            {
                "sample_id": "a", "quality": 1.0, "output_tokens": 30, "rounds": 10,
                "proposed": 50, "accepted": 20, "judged": 28, "draft_acceptance_rate": 0.4,
                "acceptance_length": 3.0, "expected_acceptance": 0.5, "mean_weight": 0.2,
                "prefill_seconds": 0.5, "decode_seconds": 1.5, "stopped_by": "length",
                "draft_seconds": 0.6, "verify_seconds": 0.6, "accept_seconds": 0.24,
                "latency_seconds": 2.5, "tokens_per_second": 15.0, "repetition": 0.5,
            },
            {
                "sample_id": "b", "quality": 0.0, "output_tokens": 10, "rounds": 2,
                "proposed": 10, "accepted": 8, "judged": 10, "draft_acceptance_rate": 0.8,
                "acceptance_length": 5.0, "expected_acceptance": 0.8, "mean_weight": 0.8,
                "prefill_seconds": 0.5, "decode_seconds": 0.5, "stopped_by": "eos",
                "draft_seconds": 0.12, "verify_seconds": 0.24, "accept_seconds": 0.0,
                "latency_seconds": 1.5, "tokens_per_second": 10.0, "repetition": None,
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
        **{"quality": 0.5, "draft_acceptance_rate": 28 / 60},
        **{"draft_acceptance_rate_sample_mean": 0.6, "acceptance_length": 40 / 12},
        **{"acceptance_length_sample_mean": 4.0, "conditional_acceptance_rate": 28 / 38},
        **{"expected_acceptance": (14 + 8) / 38, "predicted_acceptance_length": (22 + 10 + 2) / 12},
        **{"mean_weight": (5.6 + 8) / 38, "seconds_per_sample": 1.5, "tokens_per_second": 40 / 3},
        **{"tokens_per_second_sample_mean": 12.5, "speedup": (40 / 3) / (20 / 5)},
        # 40 tokens at 34 / 12 per round, of 2 / 12 s each, after 1 s of prefill.
        **{"predicted_speedup": 40 / (1 + 40 / 34 * 2) / (20 / 5), "prefill_seconds": 0.5},
        **{"round_seconds": 2 / 12, "draft_seconds": 0.72 / 12, "verify_seconds": 0.84 / 12},
        **{"accept_seconds": 0.24 / 12, "latency_seconds": 2.0, "output_tokens": 20.0},
        **{"rounds": 6.0, "length_limit_rate": 0.5},
        "repetition": 0.5,  # the second text is too short
        "completed_quality": 0.0,
    }
    assert {name: value(summary, name) for name in expected} == pytest.approx(expected)
    assert set(expected) == set(FIGURES)


def test_autoregressive_has_no_acceptance_and_is_its_own_baseline(make):
    summary = summarise(make(*({**AUTOREGRESSIVE, "sample_id": name} for name in "abcdefghij")))
    summary = summary.set_index("metric")
    blank = set(summary.index[summary["value"].isna()])
    assert blank == {
        *("draft_acceptance_rate", "draft_acceptance_rate_sample_mean", "acceptance_length"),
        *("acceptance_length_sample_mean", "expected_acceptance", "conditional_acceptance_rate"),
        *("predicted_acceptance_length", "predicted_speedup", "mean_weight"),
    }
    assert (summary.loc[sorted(blank), "n"] == 0).all()
    assert tuple(summary.loc["speedup", ["value", "ci_low", "ci_high"]]) == (1.0, 1.0, 1.0)


def test_counts_that_only_some_texts_report_give_no_acceptance(make):
    rates = ("draft_acceptance_rate", "acceptance_length")
    silent = dict.fromkeys(["rounds", "proposed", "accepted", "judged", *rates])
    at_limit = {"sample_id": "a", "stopped_by": "length", "output_tokens": 30}
    at_stop = {"sample_id": "b", "stopped_by": "stop", "output_tokens": 3}
    acceptance = [name for name in FIGURES if "accept" in name and "seconds" not in name]
    whole = summarise(make(at_limit, at_stop))
    one_token = summarise(make(at_limit, {**at_stop, **silent, "output_tokens": 1}))
    partial = summarise(make(at_limit, {**at_stop, **silent}))
    for name in acceptance:
        assert not np.isnan(value(whole, name))
        assert not np.isnan(value(one_token, name))
        assert np.isnan(value(partial, name)), name
    assert value(partial, "output_tokens") == value(whole, "output_tokens")


def test_quality_needs_a_reference_and_speedup_shared_prompts_under_the_same_conditions(make):
    summary = summarise(make({"quality_metric": None, "quality": None})).set_index("metric")
    assert np.isnan(summary.loc["quality", "value"])
    assert pd.isna(summary.loc["quality", "unit"])
    assert summary.loc["tokens_per_second", "value"] == 20
    rows = [{"sample_id": "a", "output_tokens": 40}, {"sample_id": "b", "output_tokens": 4000}]
    base = {**AUTOREGRESSIVE, "sample_id": "a", "output_tokens": 10}
    assert value(summarise(make(*rows, base)), "speedup") == pytest.approx(4.0)
    for other in ({"run_id": "x"}, {"temperature": 0.0}, {"engine": "compile"}, {"batch_size": 8}):
        assert np.isnan(value(summarise(make({}, AUTOREGRESSIVE | other)), "speedup"))


def test_wide_has_a_row_per_cell_with_values_and_intervals(samples):
    summary = summarise(samples)
    table = cells_of(summary)
    assert len(table) == len(samples.drop_duplicates(list(CELL)))
    assert list(table["method"][:2]) == ["autoregressive", "sd"]
    for name in FIGURES:
        rows = summary[summary["metric"] == name]
        names = [name + end for end in ("", "_low", "_high", "_n")]
        np.testing.assert_array_equal(table[names], rows[["value", "ci_low", "ci_high", "n"]])
    assert set(table["quality_metric"]) == {"accuracy"}


# Lengths of text and reference, shared n-grams of orders 1 to 4, n-grams of the text.
TERMS = 4 * ["6 6 6 5 4 3 6 5 4 3", "4 6 2 1 0 0 4 3 2 1", "9 5 4 1 0 0 9 8 7 6"]


def row(summary: pd.DataFrame, metric: str) -> pd.Series:
    (metric_row,) = (row for _, row in summary[summary["metric"] == metric].iterrows())
    return metric_row


def test_another_metric_has_a_row_with_its_mean_and_interval(make):
    samples = make(*({"sample_id": str(i), "quality": i % 2} for i in range(20)))
    samples["rouge1"] = samples["quality"]
    samples["accuracy-flexible"] = [*[1.0] * 15, *[np.nan] * 5]
    summary = summarise(samples)
    quality, rouge = row(summary, "quality"), row(summary, "rouge1")
    figures = ["value", "ci_low", "ci_high", "n"]
    assert list(rouge[figures]) == list(quality[figures])
    assert 0 < rouge["ci_low"] < rouge["value"] < rouge["ci_high"] < 1
    assert (rouge["unit"], quality["unit"]) == ("ROUGE-1", "accuracy")
    value, low, high, n = row(summary, "accuracy-flexible")[figures]
    assert (value, high, n) == (1, 1, 15)
    assert low == pytest.approx(15 / (15 + 1.96**2), abs=1e-4)  # Wilson interval
    assert list(summary["metric"])[len(FIGURES) :] == ["accuracy-flexible", "rouge1"]


def test_a_column_with_a_heading_is_shown_with_its_mean_over_all_texts(make):
    samples = make(*({"sample_id": str(i), "quality": 1.0} for i in range(20)))
    assert "thought_tokens" not in set(summarise(samples)["metric"])
    samples["thought_tokens"] = [10.0] * 15 + [np.nan] * 5  # texts without thoughts
    thoughts = row(summarise(samples), "thought_tokens")
    assert (thoughts["value"], thoughts["n"], thoughts["unit"]) == (7.5, 20, "tokens")
    assert shown("thought_tokens").heading == "tokens of thoughts"
    assert shown("thought_tokens").number({"thought_tokens": 7.5}) == "7.5"


def bleu_samples(make, column="quality", **changes):
    named = ({"sample_id": str(i), "quality_metric": "bleu", **changes} for i in range(len(TERMS)))
    samples = make(*named)
    return samples.assign(bleu_terms=TERMS, **{column: 4 * [1.0, 0.3, 0.2]})


def test_bleu_is_corpus_bleu_with_an_interval_over_prompts(make):
    from sacrebleu.metrics.bleu import BLEU

    counts = np.array([[int(n) for n in terms.split()] for terms in TERMS])
    total = [int(n) for n in counts.sum(axis=0)]
    expected = BLEU.compute_bleu(total[2:6], total[6:], *total[:2], smooth_method="exp").score / 100
    quality = row(summarise(bleu_samples(make)), "quality")
    assert quality["value"] == pytest.approx(expected, abs=1e-12)
    assert quality["value"] != pytest.approx(0.5, abs=0.01)  # the mean over samples
    assert quality["unit"] == "bleu"
    assert quality["n"] == len(TERMS)
    assert quality["ci_low"] < quality["value"] < quality["ci_high"] <= 1
    assert "bleu" not in set(summarise(bleu_samples(make))["metric"])
    beside = row(summarise(bleu_samples(make, "bleu", quality_metric="rouge2")), "bleu")
    assert list(beside["value":"n"]) == list(quality["value":"n"])
    assert beside["unit"] == "BLEU"


# Passes of five programs for each of twelve prompts.
PASSES = {
    f"{name}{i}": passes
    for i in range(4)
    for name, passes in (("a", [1, 0, 0, 0, 0]), ("b", [0] * 5), ("c", [1, 1, 0, 1, 0]))
}


def repeated(make, column="quality", primary="pass@1", passes=PASSES):
    samples = make(
        *(
            {"sample_id": name, "repeat": repeat, "quality_metric": primary}
            for name, results in passes.items()
            for repeat in range(len(results))
        )
    )
    return samples.assign(**{column: [float(r) for results in passes.values() for r in results]})


@pytest.mark.parametrize(("column", "primary"), [("quality", "pass@1"), ("pass@1", "rouge2")])
def test_pass_at_k_is_the_share_of_subsets_as_far_as_repeats_go(make, column, primary):
    summary = summarise(repeated(make, column, primary))
    for k in (2, 5):
        subsets = (combinations(results, k) for results in PASSES.values())
        shares = [np.mean([any(subset) for subset in each]) for each in subsets]
        pass_at_k = row(summary, f"pass@{k}")
        assert pass_at_k["value"] == pytest.approx(np.mean(shares), abs=1e-12)
        assert (pass_at_k["n"], pass_at_k["unit"]) == (len(PASSES), f"pass@{k}")
        assert 0 <= pass_at_k["ci_low"] < pass_at_k["value"] < pass_at_k["ci_high"] <= 1
    assert "pass@10" not in set(summary["metric"])


def test_further_metrics_have_columns_and_pass_at_k_needs_k_scored_repeats(make):
    summary = summarise(repeated(make).assign(rouge1=0.25))
    assert further_metrics(cells_of(summary)) == ["rouge1", "pass@2", "pass@5"]
    (cell,) = cells_of(summary).to_dict("records")
    assert (cell["rouge1"], cell["rouge1_low"], cell["rouge1_high"]) == (0.25,) * 3
    assert cell["pass@2_low"] == row(summary, "pass@2")["ci_low"]
    assert [shown(name).heading for name in ("rouge1", "pass@2")] == ["ROUGE-1", "pass@2"]
    assert shown("pass@2").scale == shown("pass@1").scale
    of_prompt = repeated(make)  # three examples of each of four prompts
    of_prompt["example"] = of_prompt["sample_id"]
    of_prompt["sample_id"] = of_prompt["sample_id"].str[1]
    doubled = row(summarise(of_prompt), "pass@2")
    assert (doubled["value"], doubled["n"]) == (pytest.approx(cell["pass@2"]), 4)
    fewer = repeated(make, passes={**PASSES, "b0": [0, 0, 0, 0]})
    assert {"pass@2", "pass@5"} & set(summarise(fewer)["metric"]) == {"pass@2"}
    samples = repeated(make)
    samples.loc[samples["repeat"] > 0, "quality"] = np.nan
    for frame in (samples, samples.assign(quality=np.nan)):
        assert not any(name.startswith("pass@") for name in summarise(frame)["metric"])


def test_samples_without_bleu_are_left_out_and_unreadable_terms_are_one_error(make, stored):
    samples = bleu_samples(make)
    samples.loc[1:, ["quality", "bleu_terms"]] = np.nan
    quality = row(summarise(samples), "quality")
    assert (quality["value"], quality["n"]) == (1, 1)
    odd = ("1 2 3", "a b c d e f g h i j", np.nan)
    unreadable = (bleu_samples(make).assign(bleu_terms=[terms, *TERMS[1:]]) for terms in odd)
    without, nothing = bleu_samples(make).drop(columns="bleu_terms"), make({}).iloc[:0]
    stored(refusals(*(partial(summarise, rows) for rows in (*unreadable, without, nothing))))


def test_differences_of_texts_are_paired_and_zero_for_the_same_texts(make):
    """On every second prompt the rule writes to the limit, repeats itself and fails."""
    prompts = [f"p{i:02}" for i in range(20)]
    sd = make(*({"sample_id": name, "quality": float(i % 5 > 0)} for i, name in enumerate(prompts)))
    worse = {"quality": 0.0, "output_tokens": 50, "stopped_by": "length", "repetition": 0.4}
    rows = [worse if i % 2 else {"quality": float(i % 5 > 0)} for i in range(20)]
    named = ({"sample_id": name, **row} for name, row in zip(prompts, rows, strict=True))
    lossy = make(*named, method="lossy", lenience=0.5)
    differences = {name: contrast(lossy, sd, metric) for name, metric in OF_TEXTS.items()}
    values = {name: (difference.value, difference.n) for name, difference in differences.items()}
    assert values == {
        "quality": (pytest.approx(-0.4), 20),
        "completed_quality": (0.0, 10),  # of the prompts that both completed
        "output_tokens": (15, 20),
        "length_limit_rate": (0.5, 20),
        "repetition": (pytest.approx(0.2), 20),
    }
    first_prompts = (side.iloc[: 2 * FEWEST - 2] for side in (lossy, sd))  # one completes too few
    assert np.isnan(contrast(*first_prompts, COMPLETED_LESS).value)
    signs = {name: (differences[name].low > 0, differences[name].high < 0) for name in differences}
    assert signs.pop("quality") == (False, True)
    assert signs.pop("completed_quality") == (False, False)
    assert set(signs.values()) == {(True, False)}
    same = [contrast(sd, sd, OF_TEXTS[name]).value for name in ("quality", "output_tokens")]
    assert same == [0, 0]
    assert contrast(sd, sd.assign(repetition=np.nan), REPETITION_LESS).n == 0  # not recorded

    table = less_than_sd(pd.concat([lossy, sd, make({**AUTOREGRESSIVE, "sample_id": "p00"})]))
    (row,) = table.to_dict("records")
    assert (row["method"], row["length_limit_rate_less"]) == ("lossy", 0.5)
    assert row["output_tokens_less_low"] < 15 < row["output_tokens_less_high"]
    assert less_than_sd(lossy)["quality_less"].isna().all()
