"""The page about a run: every method once, and the sweep as a front to stand above."""

import pandas as pd

from specbench.analysis.digest import digest
from specbench.analysis.pareto import gap_above_front
from specbench.analysis.scores import quality_difference
from specbench.analysis.summary import summarise

ABOVE = "above the static front (randomised)"


def _rows(samples):
    lines = digest(samples, summarise(samples)).splitlines()
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}


def test_a_sweep_becomes_the_front_and_the_distance_above_it(samples):
    rows = _rows(samples)
    assert not any(label.startswith("static w=") for label in rows)
    assert "static front (randomised) at the acceptance of diversed" in rows
    assert rows[f"**diversed {ABOVE}**"].count("**+") == samples["task"].nunique()
    for task, cell in zip(
        samples["task"].unique(),
        rows["diversed above its next measured point"].split("|")[2:],
        strict=False,
    ):
        gap = gap_above_front(samples, task=task)
        value, low, high, _ = (100 * number for number in gap.above_measured)
        shown = f"{value:+.1f} [{low:.1f}, {high:.1f}]<br>{gap.between[0]}, coarse: "
        assert cell.strip().startswith(shown)
        assert f"{100 * gap.step:.0f} points away" in cell


def test_every_method_has_its_paired_difference_from_sd(samples):
    rows = _rows(samples)
    assert rows["diversed"].count("<br>") == 2 * samples["task"].nunique()
    mine = samples[samples["task"] == "mini-math"].groupby("method")
    own, sd = mine.get_group("diversed"), mine.get_group("sd")
    value, low, high, _ = (100 * number for number in quality_difference(own, sd))
    assert f"<br>{value:+.1f} [{low:.1f}, {high:.1f}]<br>" in rows["diversed"].split("|")[2]
    assert rows["sd"].count("<br>") == samples["task"].nunique()


def _with_heads(samples, *heads, tasks=("mini-math", "mini-code")):
    """The samples with diversed once for each head, on some tasks."""
    learned = samples["method"] == "diversed"
    copies = [samples[learned & samples["task"].isin(tasks)].assign(head=head) for head in heads]
    return pd.concat([samples[~learned], *copies], ignore_index=True)


def test_each_of_several_heads_has_its_distance_above_the_front(samples):
    frame = _with_heads(samples, "results/h/acceptance-0.7", "results/h/acceptance-0.9")
    worse = frame["head"] == "results/h/acceptance-0.9"
    frame.loc[worse, "quality"] = 0.0
    rows = _rows(frame)
    assert "diversed acceptance-0.7" in rows
    assert "static front (randomised) at the acceptance of diversed acceptance-0.9" in rows
    assert rows[f"**diversed acceptance-0.7 {ABOVE}**"].count("**+") == 2
    assert rows[f"**diversed acceptance-0.9 {ABOVE}**"].count("**-") == 2


def test_heads_from_different_places_share_a_row_where_no_task_has_both(samples):
    frame = _with_heads(samples, "bundled")
    frame.loc[(frame["task"] == "mini-code") & (frame["head"] == "bundled"), "head"] = "results"
    rows = _rows(frame)
    methods = [label for label in rows if label.startswith("diversed") and "above" not in label]
    assert methods == ["diversed"]
    assert rows[f"**diversed {ABOVE}**"].count("**+") == 2
    rows = _rows(_with_heads(samples, "bundled", "results"))
    assert {"diversed bundled", "diversed results"} < set(rows)


def test_a_task_without_a_head_keeps_its_static_points(samples):
    rows = _rows(_with_heads(samples, "bundled", tasks=("mini-math",)))
    assert "static w=0.4" in rows
    assert not any("above" in label for label in rows)


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


def test_metrics_beyond_quality_have_a_table_of_their_own(samples):
    plain = digest(samples, summarise(samples))
    maths = samples["task"] == "mini-math"
    more = samples.assign(rouge1=0.25, **{"accuracy-flexible": samples["quality"].where(maths)})
    text = digest(more, summarise(more))
    assert text.startswith(plain.rstrip())
    lines = text[len(plain.rstrip()) :].strip().splitlines()
    assert lines[:4] == [
        "Further metrics, with their 95 % intervals.",
        "",
        "| method | mini-math, flexible accuracy | mini-math, ROUGE-1 | mini-code, ROUGE-1 |",
        "|---|---|---|---|",
    ]
    rows = {line.split(" | ")[0].strip("| "): line for line in lines[4:]}
    assert list(rows)[:2] == ["autoregressive", "sd"]
    assert "static w=0.4" in rows  # these metrics have no front, so the points speak
    value, first, second = rows["diversed"].strip("| ").split(" | ")[1:]
    quality = _rows(samples)["diversed"].split("|")[2].strip().split("<br>")[0]
    assert (value, first, second) == (quality, "25.0 [25.0, 25.0]", "25.0 [25.0, 25.0]")


def test_each_draft_length_has_a_table(make):
    samples = make(*({"draft_length": n} for n in (3, 7)))
    text = digest(samples, summarise(samples))
    assert [f"N = {n}," in text for n in (3, 5, 7)] == [True, False, True]


def test_each_engine_has_a_table(make):
    """An engine that falls back in mid-run leaves samples of two."""
    samples = make({}, {"engine": "graph"})
    text = digest(samples, summarise(samples))
    assert [line for line in text.splitlines() if line.startswith("Engine")] == [
        "Engine eager.",
        "Engine graph.",
    ]
    assert text.count("| sd |") == 2


def test_prompts_without_a_metric_still_have_acceptance_and_speed(make):
    samples = make({"quality": None, "quality_metric": None})
    assert "60%" in _rows(samples)["sd"]
