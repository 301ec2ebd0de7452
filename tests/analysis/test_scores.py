"""Metrics beyond quality: rows of their own, corpus BLEU and pass@k."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.frames import SAMPLES, read_samples, read_summary
from specbench.analysis.scores import shown_name, shown_scale
from specbench.analysis.summary import METRICS, further_metrics, summarise, wide
from specbench.errors import UsageError

# Text and reference lengths, shared n-grams of orders 1 to 4, n-grams of the text.
TERMS = 4 * ["6 6 6 5 4 3 6 5 4 3", "4 6 2 1 0 0 4 3 2 1", "9 5 4 1 0 0 9 8 7 6"]


def row(summary: pd.DataFrame, metric: str, **cell: object) -> pd.Series:
    rows = summary[summary["metric"] == metric]
    for name, value in cell.items():
        rows = rows[rows[name] == value]
    (found,) = (rows.loc[i] for i in rows.index)
    return found


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
    assert low == pytest.approx(15 / (15 + 1.96**2), abs=1e-4)  # Wilson's
    assert list(summary["metric"])[len(METRICS) :] == ["accuracy-flexible", "rouge1"]


def test_a_cell_without_scores_of_a_metric_has_no_row_for_it(make):
    samples = make({"task": "a"}, {"task": "b"}).assign(rouge1=[0.5, np.nan])
    summary = summarise(samples)
    assert row(summary, "rouge1")["task"] == "a"
    assert len(wide(summary)) == 2


def bleu_samples(make, column="quality", **changes):
    samples = make(
        *({"sample_id": str(i), "quality_metric": "bleu", **changes} for i in range(len(TERMS)))
    )
    return samples.assign(bleu_terms=TERMS, **{column: 4 * [1.0, 0.3, 0.2]})


def test_bleu_is_that_of_the_corpus_with_an_interval_over_prompts(make):
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


def test_a_sample_without_bleu_is_left_out(make):
    samples = bleu_samples(make)
    samples.loc[1:, ["quality", "bleu_terms"]] = np.nan
    quality = row(summarise(samples), "quality")
    assert (quality["value"], quality["n"]) == (1, 1)


@pytest.mark.parametrize("terms", ["1 2 3", "a b c d e f g h i j", np.nan, ""])
def test_unreadable_terms_are_one_error(make, terms):
    with pytest.raises(UsageError, match="bleu_terms of a sample is not 10 whole numbers"):
        summarise(bleu_samples(make).assign(bleu_terms=[terms, *TERMS[1:]]))
    with pytest.raises(UsageError, match="no column bleu_terms"):
        summarise(bleu_samples(make).drop(columns="bleu_terms"))


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
        shares = [
            np.mean([any(subset) for subset in combinations(results, k)])
            for results in PASSES.values()
        ]
        found = row(summary, f"pass@{k}")
        assert found["value"] == pytest.approx(np.mean(shares), abs=1e-12)
        assert (found["n"], found["unit"]) == (len(PASSES), f"pass@{k}")
        assert 0 <= found["ci_low"] < found["value"] < found["ci_high"] <= 1
    assert "pass@10" not in set(summary["metric"])


def test_pass_at_all_repeats_is_shown_too(make):
    summary = summarise(repeated(make, passes={"a": [0, 1, 0], "b": [0, 0, 0]}))
    assert [name for name in summary["metric"] if name.startswith("pass@")] == ["pass@2", "pass@3"]
    assert row(summary, "pass@3")["value"] == pytest.approx(0.5)


def test_further_metrics_have_columns_of_their_own_in_the_wide_table(make):
    summary = summarise(repeated(make).assign(rouge1=0.25))
    assert further_metrics(summary) == ["rouge1", "pass@2", "pass@5"]
    (cell,) = wide(summary).to_dict("records")
    assert (cell["rouge1"], cell["rouge1_low"], cell["rouge1_high"]) == (0.25,) * 3
    assert cell["pass@2_low"] == row(summary, "pass@2")["ci_low"]
    assert [shown_name(name) for name in ("rouge1", "pass@2")] == ["ROUGE-1", "pass@2"]
    assert shown_scale("pass@2") == shown_scale("pass@1")


def test_pass_at_k_needs_k_scored_repeats_of_every_prompt(make):
    fewer = repeated(make, passes={**PASSES, "b0": [0, 0, 0, 0]})
    assert {"pass@2", "pass@5"} & set(summarise(fewer)["metric"]) == {"pass@2"}
    samples = repeated(make)
    samples.loc[samples["repeat"] > 0, "quality"] = np.nan
    assert not any(name.startswith("pass@") for name in summarise(samples)["metric"])
    unscored = samples.assign(quality=np.nan)
    assert not any(name.startswith("pass@") for name in summarise(unscored)["metric"])


def test_accuracy_has_no_pass_at_k(make):
    samples = repeated(make, primary="accuracy")
    assert not any(name.startswith("pass@") for name in summarise(samples)["metric"])


def test_measured_columns_survive_the_disk_in_one_order(tmp_path, make):
    samples = bleu_samples(make).assign(
        **{"rouge1": 4 * [0.5, np.nan, 1], "accuracy-flexible": 1.0}
    )
    samples.assign(note="x").to_csv(tmp_path / "samples.csv", index=False)
    summarise(samples).to_csv(tmp_path / "summary.csv", index=False)
    found = read_samples(tmp_path)
    assert list(found) == [*SAMPLES, "accuracy-flexible", "rouge1", "bleu_terms"]
    pd.testing.assert_frame_equal(found, samples[list(found)])
    pd.testing.assert_frame_equal(read_summary(tmp_path), summarise(samples))


def test_runs_with_and_without_a_metric_are_stacked(tmp_path, make):
    for name, frame in (
        ("old", make({"run_id": "old"})),
        ("new", make({"run_id": "new"}).assign(rouge1=0.5)),
    ):
        (tmp_path / name).mkdir()
        frame.to_csv(tmp_path / name / "samples.csv", index=False)
    found = read_samples(tmp_path / "old", tmp_path / "new")
    assert found["rouge1"].isna().tolist() == [True, False]
    assert row(summarise(found), "rouge1")["run_id"] == "new"


def test_a_score_that_is_no_number_is_located(tmp_path, make):
    make({}).assign(rouge1="high").to_csv(tmp_path / "samples.csv", index=False)
    with pytest.raises(UsageError, match=r"rouge1 \('high'\) in data row 1 is not a number"):
        read_samples(tmp_path)
