"""The main table: its figures, the marked best values, and its layout."""

import re

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import QUALITY_LESS, contrast
from specbench.analysis.statistics.summary import summarise
from specbench.analysis.tables.main_table import main_table, typeset
from specbench.analysis.tables.published import beside_published, published, remarks
from specbench.analysis.verdicts.compare import compare
from specbench.engine.pairs import pairs
from specbench.methods import registry
from specbench.runs.frames import SAMPLES, SUMMARY, typed

from ..synthetic import samples as synthetic
from ..told import listed

METHODS = (
    {"method": "autoregressive", "draft_length": 0, "proposed": 0, "accepted": None},
    {"method": "sd", "accepted": 15},
    {"method": "static", "weight": 0.0, "accepted": 25},
    {"method": "static", "weight": 0.5, "accepted": 20},
    {"method": "diversed", "head": "bundled", "accepted": 22},
)


def table_of(samples):
    return main_table(summarise(samples), samples)


def five(**shared):
    """Five methods on ten prompts of two tasks; the static ones answer wrongly."""
    rows = [
        method | {"task": task, "sample_id": f"{i}", "quality": float("weight" not in method)}
        for task in ("mini-math", "mini-code")
        for method in METHODS
        for i in range(10)
    ]
    return synthetic(*rows, **shared)


def grid(tables):
    """The rows of some tables by method: a text per heading, where there is one."""
    by_method = {}
    for table in tables:
        headings = [f"{c.group} {c.heading}".replace("\n", " ").strip() for c in table.columns]
        for row in table.rows:
            cells = zip(headings[table.stub :], row[table.stub :], strict=True)
            by_method.setdefault(row[0], {}).update({h: c.text for h, c in cells if c.text})
    return by_method


def best(table, figure):
    return set(table.loc[table["best"] & (table["figure"] == figure), "label"])


def answered(make, n, **settings):
    """Samples of two or more rules on ``n`` prompts: for each rule, what differs on prompt i."""
    rows = [
        {"method": "lossy", "rule": rule, "sample_id": f"{i}", **changes(i)}
        for rule, changes in settings.items()
        for i in range(n)
    ]
    alone = [METHODS[0] | {"sample_id": f"{i}", "decode_seconds": 1 + i % 9} for i in range(n)]
    return make(*rows, *alone)


def test_methods_with_the_targets_distribution_are_best_together_or_not_at_all(make):
    """By luck, ``sd`` is right on 90 of 100 prompts and ``autoregressive`` on 96."""

    def cell(right, start=0, **method):
        return [
            method | {"sample_id": f"{i}", "quality": float((i + start) % 100 < right)}
            for i in range(100)
        ]

    lossless = [*cell(96, **METHODS[0]), *cell(90, method="sd")]
    alike = [*cell(95, method="lossy", rule="alike"), *cell(70, method="lossy", rule="worse")]
    names = {"autoregressive", "sd"}
    assert best(table_of(make(*lossless, *alike)), "quality") == {*names, "lossy alike"}
    better = cell(100, method="lossy", rule="better")
    assert best(table_of(make(*lossless, *better)), "quality") == {"lossy better"}
    # At w = 1 the static ensemble is one of them.
    static = cell(88, method="static", weight=1.0)
    assert best(table_of(make(*lossless, *static, *alike)), "quality") >= {*names, "static w=1"}
    # Other prompts than the first's do not lose the group.
    short = [row for row in cell(90, method="sd") if int(row["sample_id"]) < 50]
    assert best(table_of(make(*cell(96, **METHODS[0]), *short, *alike)), "quality") >= names


def test_acceptance_and_speed_are_starred_by_the_paired_difference_too(make):
    """Prompts differ a lot; methods on the same prompt always differ a little."""
    samples = answered(
        make,
        40,
        high=lambda i: {"accepted": 6 + i % 20, "decode_seconds": 0.5 * (1 + i % 9)},
        alike=lambda i: {"accepted": 5 + (i + 1) % 20, "decode_seconds": 0.51 * (1 + (i + 1) % 9)},
        low=lambda i: {"accepted": 4 + i % 20, "decode_seconds": 0.6 * (1 + i % 9)},
    )
    table = table_of(samples)
    rows = table[table["figure"] == "draft_acceptance_rate"].set_index("label")
    assert rows.loc["lossy low", "ci_high"] > rows.loc["lossy high", "ci_low"]
    for figure in ("draft_acceptance_rate", "speedup"):
        assert best(table, figure) == {"lossy high", "lossy alike"}


def test_nothing_is_starred_below_ten_shared_prompts(make):
    for n, marked in ((9, set()), (10, {"lossy a", "autoregressive"})):
        table = table_of(answered(make, n, a=lambda _: {}, b=lambda _: {"quality": 0.0}))
        assert best(table, "quality") == marked
        assert table["best"].any() == bool(marked)
    samples = answered(make, 20, a=lambda _: {}, b=lambda i: {"sample_id": f"other {i}"})
    assert best(table_of(samples), "quality") == {"lossy a", "autoregressive"}


@pytest.mark.parametrize("metric", ["accuracy", "rouge2", "bleu"])
def test_stars_are_those_of_the_paired_differences(make, metric):
    """With repeats, blanks and prompts that only some methods have, against pairwise intervals."""
    rng = np.random.default_rng(3)
    rows = []
    for method, chance in (("sd", 0.9), ("lossy", 0.85), ("cactus", 0.7), ("typical", 0.5)):
        for i in range(int(rng.integers(25, 40))):
            for repeat in range(2):
                right = rng.random() < (chance if i % 3 else 1)
                quality = right if metric == "accuracy" else (rng.random() + right) / 2
                rows.append({"method": method, "sample_id": f"{i}", "repeat": repeat})
                rows[-1]["quality"] = float(quality) if rng.random() < 0.95 else None
    samples = make(*rows, quality_metric=metric)
    if metric == "bleu":
        shared = (8 * samples["quality"].fillna(0)).astype(int).astype(str)
        samples["bleu_terms"] = "6 6 " + shared + " 5 4 3 8 7 6 5"
    table = table_of(samples)
    cells = dict(list(samples[samples["quality"].notna()].groupby("method")))
    top = cells[table[table["figure"] == "quality"].set_index("label")["value"].idxmax()]
    paired = {method: contrast(cell, top, QUALITY_LESS) for method, cell in cells.items()}
    expected = {method for method, less in paired.items() if less.low <= 0 <= less.high}
    assert best(table, "quality") == expected
    assert 0 < len(expected) < 4


def test_verdicts_beside_a_methods_figures_are_those_of_the_comparison(samples):
    """Those whose interval includes no difference are in parentheses; static weights have none."""
    comparison = compare(samples).rows
    table = main_table(summarise(samples), samples, comparison)
    judged = table[table["verdict"].notna()].set_index(["task", "label", "figure"])
    assert {label for _, label, _ in judged.index} == {
        *("lossy l=0.5", "speccascade token-v3 α=0.5", "diversed")
    }
    for against, at, figure in (
        ("sd", "own quality", "quality_difference"),
        ("sd", "own quality", "times_as_fast"),
        ("static front (randomised)", "acceptance", "quality_above"),
    ):
        rows = comparison[comparison["against"].eq(against) & comparison["at"].eq(at)]
        for row in rows[rows["metric"] == figure].itertuples():
            cell = judged.loc[(row.task, row.label, figure)]
            scale = 1 if figure == "times_as_fast" else 100
            assert [*cell[["value", "ci_low", "ci_high", "n"]]] == pytest.approx(
                [scale * row.value, scale * row.ci_low, scale * row.ci_high, row.n]
            )
            none = 1 if figure == "times_as_fast" else 0
            if row.coarse is not True:  # it may be blank
                shown = row.ci_low > none or row.ci_high < none
                assert (cell["verdict"] != "no difference shown") == shown
    (section,) = typeset(table)
    assert re.search("per task tell quality to ±.* points and speed to ±.* %", section.title)
    texts = grid([section])["lossy l=0.5"]
    assert texts["mini-math - sd"].startswith("(") == (
        judged.loc[("mini-math", "lossy l=0.5", "quality_difference"), "verdict"]
        == "no difference shown"
    )


def test_heads_of_one_recipe_have_a_row_of_their_mean(make):
    """Seeds differ more than prompts do, so the mean's interval is wider than a single seed's."""
    heads = {"results/h/seed-0": 10, "results/h/seed-1": 15, "results/h/seed-2": 23}
    rows = [METHODS[0] | {"sample_id": f"{i}"} for i in range(20)]
    rows += [
        {"method": "diversed", "head": head, "sample_id": f"{i}", "accepted": accepted + i % 2}
        for head, accepted in heads.items()
        for i in range(20)
    ]
    table = table_of(make(*rows))
    rate = table[table["figure"] == "draft_acceptance_rate"].set_index("label")
    labels = [f"diversed {name}" for name in ("seed-0", "seed-1", "seed-2", "h, mean of 3 seeds")]
    assert list(rate.index[-4:]) == labels
    mean, single = rate.loc[labels[-1]], rate.loc[labels[0]]
    assert mean["value"] == pytest.approx(100 * (16 + 0.5) / 25)
    assert mean["ci_high"] - mean["ci_low"] > 5 * (single["ci_high"] - single["ci_low"])
    assert not mean["best"]
    alone = table_of(make(*(row for row in rows if row.get("head") != "results/h/seed-0")))
    assert "diversed h, mean of 2 seeds" in set(alone["label"])
    one = table_of(make(*(row for row in rows if row.get("head") in (None, "results/h/seed-1"))))
    assert not any("mean" in label for label in one["label"])


CELL = {
    **{"pair": "llama", "task": "gsm8k", "method": "diversed", "head": "results"},
    **{"temperature": 1.0, "draft_length": 5, "metric": "accuracy"},
    **{"engine": "eager", "batch_size": 1, "session": 0, "n": 100},
}


def tables_of(*cells):
    """Main tables of cells with 70 % accepted and a quality of 0.5, by figure."""
    rows = []
    for number, changes in enumerate(cells):
        cell = CELL | {"run_id": f"{number}"} | changes
        rate = 0.7 if cell["draft_length"] else None
        rows += [
            cell | {"metric": "draft_acceptance_rate", "value": rate, "unit": "fraction"},
            cell | {"metric": "quality", "value": 0.5, "unit": cell["metric"]},
            cell | {"metric": "speedup", "value": 1.5, "unit": "x"},
        ]
    summary = pd.DataFrame(rows).reindex(columns=list(SUMMARY))
    samples = typed(pd.DataFrame(columns=list(SAMPLES)), SAMPLES, "the test")
    table = beside_published(main_table(typed(summary, SUMMARY, "the test"), samples))
    by_run = dict(list(table.groupby("run_id")))
    return [by_run[f"{number}"].set_index("figure") for number in range(len(cells))]


def test_the_file_is_the_papers_tables():
    table = published()
    assert table.groupby("source").size().to_dict() == {
        **{"table1": 72, "finetuned_draft": 24, "transfer": 4}
    }
    key = ["pair", "trained_on", "task", "method", "temperature", "draft_length"]
    assert not table.duplicated(key).any()
    assert set(table["pair"]) <= set(pairs())
    assert set(table["method"]) - set(registry.METHODS) == {"sd-finetuned-draft"}
    drafted = table["method"] != "autoregressive"
    assert (table["acceptance_rate_pct"].notna() == drafted).all()


def test_the_difference_is_between_the_displayed_numbers():
    alone = {"method": "autoregressive", "head": None, "draft_length": 0}
    # Any draft and draft length.
    table, *others = tables_of({}, alone, alone | {"pair": "llama+gsm8k"})
    rate, quality = table.loc["draft_acceptance_rate"], table.loc["quality"]
    assert (rate["published"], quality["published"]) == (72.61, 67)
    assert rate["difference"] == pytest.approx(70 - 72.61)
    assert quality["difference"] == pytest.approx(50 - 67)
    assert pd.isna(table.loc["speedup", "published"])  # the paper's table has no such value
    assert remarks(table.reset_index()) == []
    assert [other.loc["quality", "published"] for other in others] == [67, 67]


def test_measurements_are_matched_with_published_numbers():
    expected = listed("analysis/published.txt")
    for table, (cell, rate) in zip(
        tables_of(*(cell for cell, _ in expected)), expected, strict=True
    ):
        row = table.loc["draft_acceptance_rate"]
        assert row["published"] == rate if rate else pd.isna(row["published"]), cell
        assert pd.isna(row["source"]) == (rate is None), cell


def test_missing_comparisons_are_noted(stored):
    xsum, xsum_32, mini, gsm8k, other = tables_of(
        {"task": "xsum", "metric": "rouge2"},
        {"task": "xsum", "metric": "rouge2-32"},
        {"pair": "mini"},
        {},
        {"task": "humaneval", "metric": "pass@1"},
    )
    assert xsum.loc["draft_acceptance_rate", "published"] == 70.53
    assert pd.isna(xsum.loc["quality", "published"])
    assert xsum_32.loc["quality", "published"] == 7.23
    tables = (xsum, mini, pd.concat([gsm8k, other]))
    stored(*(remark for table in tables for remark in remarks(table.reset_index())))
