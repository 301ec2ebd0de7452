import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.blocks import by_time_unit, count_blocks, whole_blocks
from specbench.analysis.statistics.estimates import (
    ACCEPTANCE_LESS,
    LENGTH,
    QUALITY_LESS,
    SPEED,
    TIMES,
    contrast,
)
from specbench.analysis.statistics.intervals import FEWEST, RESAMPLES, estimate
from specbench.analysis.statistics.points import Setting, shared_points
from specbench.analysis.statistics.summary import cells_of, summarise
from specbench.analysis.tables.main_table import main_table, typeset
from specbench.analysis.verdicts.compare import BATCHED, by_task, compare, verdict_rows, verdicts
from specbench.analysis.verdicts.contrasts import ATS, SD
from specbench.analysis.verdicts.words import FASTER, MISSING, UNSHOWN


def settings(samples, task, *methods):
    rows = samples[samples["task"] == task]
    return [Setting(rows[rows["method"] == method]) for method in methods]


def test_points_equal_the_summary(samples):
    cells = cells_of(summarise(samples)).set_index(["task", "method"])
    points = settings(samples, "mini-code", "sd", "diversed", "autoregressive")
    reached = shared_points(points).estimates()
    assert (reached.n, reached.quality.shape) == (40, (1 + RESAMPLES, 3))
    for number, method in enumerate(("sd", "diversed", "autoregressive")):
        cell = cells.loc["mini-code", method]
        assert reached.quality[0, number] == pytest.approx(cell["quality"])
        for name, values in (
            ("draft_acceptance_rate", reached.acceptance),
            ("seconds_per_sample", reached.seconds),
            ("tokens_per_second", reached.values(SPEED)),
            ("speedup", reached.gains("speedup").value),
        ):
            interval = estimate(values[:, number], 40, log=name == "speedup")[:3]
            expected = (cell[name], cell[f"{name}_low"], cell[f"{name}_high"])
            assert interval == pytest.approx(expected, nan_ok=True), (method, name)


@pytest.mark.parametrize("metric", [ACCEPTANCE_LESS, TIMES, SPEED, LENGTH])
def test_points_are_resampled_together_as_their_samples_are(samples, metric):
    sd, diversed = settings(samples, "mini-math", "sd", "diversed")
    reached = shared_points([diversed, sd]).estimates()
    expected = contrast(diversed.samples, sd.samples, metric)
    assert reached.contrast(metric, [0], 1)[:4] == pytest.approx(expected[:4])
    assert expected.low < expected.value < expected.high


def timed(make, seconds):
    """One point per column of [prompts, points] seconds."""
    return [
        Setting(
            make(
                *(
                    {"sample_id": f"p{i:03}", "prefill_seconds": 0.0, "decode_seconds": float(one)}
                    for i, one in enumerate(column)
                )
            )
        )
        for column in seconds.T
    ]


def test_the_fastest_is_chosen_on_one_half_measured_on_the_other_and_covered(make):
    # On the first half (even prompts) the first point is faster, on the other half the second.
    seconds = np.array([[1.0, 3.0], [7.0, 2.0], [1.0, 3.0], [7.0, 2.0]])
    reached, fastest = shared_points(timed(make, seconds)).estimates_with_fastest([0, 1])
    assert fastest == [(1, 2)]  # 2.5 against 4.0 on all prompts
    assert reached.seconds[0] == pytest.approx([4.0, 2.5, (7.0 + 3.0) / 2])
    # Four points of equal true speed, and a fifth that takes 4/5 of their time.
    rng = np.random.default_rng(1)
    template = shared_points(timed(make, np.ones((40, 5))))
    covered = []
    for _ in range(150):
        length = rng.gamma(8, 1 / 8, size=(40, 1))
        seconds = length * [1, 1, 1, 1, 0.8] * (1 + 0.15 * rng.normal(size=(40, 5)))
        template.sums[:, :, -3] = seconds
        drawn = template.estimates_with_fastest(range(4))[0].seconds
        one = estimate(drawn[:, 5] / drawn[:, 4], 40)
        covered.append(one.low <= 1.25 <= one.high)
    assert np.mean(covered) >= 0.93


SIZE = 5  # prompts of a block


@pytest.fixture
def in_blocks(make):
    """Return a function that makes a run in blocks; the texts of a block share its time."""

    def run(blocks, *, times=1.0, seed=0):
        rng = np.random.default_rng(seed)
        pace = rng.lognormal(0, 0.3, blocks)  # blocks are easy or hard for all methods
        methods = {
            "autoregressive": ({"draft_length": 0, "accepted": None, "proposed": 0}, 2.0),
            "sd": ({}, 1.0),
            "typical": ({"epsilon": 0.1, "delta": 0.3}, 1 / times),
        }
        rows = []
        for method, (columns, seconds) in methods.items():
            shared = {"method": method, "prefill_seconds": 0.0, **columns}
            noise = rng.lognormal(0, 0.1, blocks)
            for prompt in range(SIZE * blocks):
                block = prompt // SIZE
                clock = {"decode_seconds": seconds * pace[block] * noise[block]}
                rows.append(shared | clock | {"sample_id": f"p{prompt:03}"})
        samples = make(*rows, batch_size=SIZE)
        return samples.assign(block=samples["sample_id"].str[1:].astype(float) // SIZE)

    return run


def verdict(samples):
    return verdicts(verdict_rows(samples)).set_index("method").loc["typical"]


def test_a_planted_difference_is_shown_in_tokens_per_second(in_blocks):
    samples = in_blocks(20, times=1.5)
    row = verdict(samples)
    assert (row["speed"], row["speculation"]) == (FASTER, FASTER)
    assert "times as many tokens/s as sd" in row["sentence"]
    assert row["sentence"].startswith("typical ε=0.1 δ=0.3: faster than no speculation (")
    (heading,) = by_task(verdicts(verdict_rows(samples)))
    assert heading.endswith("n = 100 in 20 blocks of 5 prompts")
    rows = compare(samples, ATS).rows
    assert (rows["n"] == 100).all()  # prompts, whatever the unit of the interval
    served = compare(samples.assign(batch_size=1), ATS).rows  # requests in flight together
    assert (served["n"] == 100).all()
    assert (rows["blocks"] == 20).all()


def test_equal_work_is_hardly_ever_told_apart(in_blocks):
    """With prompts as the unit, most of these runs would differ."""

    def different(samples):
        rows = compare(samples, [], ["typical"], []).rows
        rows = rows[(rows["metric"] == SPEED) & (rows["against"] == SD)]
        assert len(rows) == 20
        return (~((rows["ci_low"] <= 1) & (rows["ci_high"] >= 1))).sum()

    runs = [in_blocks(FEWEST, seed=seed).assign(task=f"task {seed}") for seed in range(20)]
    together = pd.concat(runs, ignore_index=True)
    assert different(together) <= 1
    assert different(together.drop(columns="block").assign(batch_size=1)) > 5


def test_too_few_blocks_have_no_verdict_on_time(in_blocks):
    samples = in_blocks(FEWEST - 1, times=2.0)
    row = verdict(samples)
    assert (row["speed"], row["speculation"]) == (MISSING, MISSING)
    assert row["quality"] == UNSHOWN
    (heading,) = by_task(verdicts(verdict_rows(samples)))
    assert "in 9 whole blocks of 5 prompts: no verdict on time, which needs at least" in heading
    compared = compare(samples, ATS)
    assert BATCHED in compared.notes
    assert not compared.rows["metric"].isin([TIMES, SPEED]).any()
    assert QUALITY_LESS in set(compared.rows["metric"])


def test_blocks_that_were_not_decoded_together_do_not_count(in_blocks):
    samples = in_blocks(FEWEST + 1)
    torn = (samples["method"] == "typical") & (samples["sample_id"] == "p002")
    slow = samples.assign(decode_seconds=samples["decode_seconds"].mask(torn, 1e6))
    apart = slow.assign(block=slow["block"].mask(torn))  # decoded alone after an error
    whole = whole_blocks(apart)
    typical = apart["method"] == "typical"
    assert whole[typical].nunique() == FEWEST
    assert whole[~typical].nunique() == FEWEST + 1
    assert by_time_unit(apart)["decode_seconds"].max() < 100
    six = samples[samples["sample_id"] < f"p{SIZE + 1:03}"].assign(batch_size=1)  # of a server
    assert len(by_time_unit(six)) == 3 * SIZE and count_blocks(six) == 1
    row = compare(apart, []).rows.query("metric == @SPEED and against == @SD")
    assert row["value"].item() == pytest.approx(1, abs=0.2)
    assert row["n"].item() == FEWEST * SIZE
    seconds = cells_of(summarise(apart)).set_index("method")["seconds_per_sample"]
    assert seconds["typical"] < 100


def test_verdicts_and_tables_have_intervals_over_blocks(in_blocks):
    samples = in_blocks(12, times=1.5)
    summary = summarise(samples)
    assert (summary[summary["metric"] == "tokens_per_second"]["n"] == 12).all()
    repeated = summary.assign(n=summary["n"].mask(summary["n"] > 12, 59))  # two have one prompt
    for cells in map(cells_of, (summary, repeated)):
        assert cells[["tokens_per_second_low", "speedup_high"]].notna().all(axis=None)
    table = main_table(summary, samples)
    assert table.loc[table["figure"] == "speedup", "best"].any()
    (section,) = typeset(table)
    assert any("paired by block: 12 blocks of 5 prompts" in note for note in section.notes)
    few = in_blocks(FEWEST - 1)
    table = main_table(summarise(few), few)
    assert not table.loc[table["figure"] == "speedup", "best"].any()
    assert cells_of(summarise(few))["tokens_per_second_low"].isna().all()


def test_repeats_of_a_block_are_one_unit(in_blocks):
    once = in_blocks(12)
    twice = pd.concat([once, once.assign(repeat=1)], ignore_index=True)
    rows = [compare(each, []).rows.query("metric == @SPEED") for each in (once, twice)]
    columns = ["value", "ci_low", "ci_high", "n"]
    np.testing.assert_allclose(rows[0][columns], rows[1][columns])
