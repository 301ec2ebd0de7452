"""Verdicts name a difference only if the data show one."""

import re

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.compare import BATCHED, VERDICTS, by_task, compare, verdict_rows, verdicts
from specbench.analysis.compare_tables import verdict_tables
from specbench.analysis.comparison import ATS
from specbench.analysis.estimates import SPEED, TIMES
from specbench.analysis.summary import summarise
from specbench.analysis.verdicts import FASTER, FEW, HIGHER, LOWER, MISSING, NOISE, SLOWER, UNSHOWN
from specbench.tasks.metrics import AGREEMENT

UNSCORED = {"quality": None, "quality_metric": None}


@pytest.fixture
def planted(make):
    """Return a function that makes a run of sd, three static weights and ``typical``.

    The time and the accuracy of ``typical`` are planted; ``sd`` takes about 1 s and is right in
    8 of 10 cases.
    """

    def run(*, n=200, times=1.0, better=0.0, front=(0.2, 0.4, 0.5), seed=0, **shared):
        rng = np.random.default_rng(seed)
        common = rng.random(n)  # prompts are easy or hard for all methods

        def cell(method, quality, accepted, seconds, **values):
            flips = np.where(rng.random(n) < 0.05, rng.random(n), common)
            return [
                {
                    "method": method,
                    "sample_id": f"p{i:03}",
                    "quality": float(flips[i] < quality),
                    "accepted": accepted,
                    "prefill_seconds": 0.0,
                    "decode_seconds": seconds * rng.uniform(0.8, 1.2),
                    **values,
                }
                for i in range(n)
            ]

        rows = cell("sd", 0.8, 10, 1.0)
        for weight, quality in zip((0.0, 0.5, 0.9), front, strict=True):
            rows += cell("static", quality, 25 - 10 * weight, 0.7, weight=weight)
        rows += cell("typical", 0.8 + better, 18, 1 / times, epsilon=0.1, delta=0.3)
        return make(*rows, **shared)

    return run


def verdict(samples):
    table = verdicts(verdict_rows(samples))
    (row,) = table[table["method"] == "typical"].to_dict("records")
    return row


def with_alone(samples, seconds, **changes):
    """Add times without speculation, as multiples of the times of ``sd``."""
    sd = samples[samples["method"] == "sd"]
    times = seconds * sd["decode_seconds"]
    alone = {"method": "autoregressive", "draft_length": 0, "accepted": None, "proposed": 0}
    return pd.concat([samples, sd.assign(**alone, decode_seconds=times, **changes)])


@pytest.mark.parametrize(
    ("seconds", "shown", "first"),
    [
        (0.4, SLOWER, "typical ε=0.1 δ=0.3: slower than no speculation (0.5"),
        (1.5, FASTER, "typical ε=0.1 δ=0.3: faster than no speculation (1.9"),
        (1 / 1.3, UNSHOWN, "typical ε=0.1 δ=0.3: not shown to be faster or slower than no "),
    ],
)
def test_a_sentence_begins_with_whether_speculation_pays(planted, seconds, shown, first):
    """A rule that is 1.3 times as fast as sd can be slower than no speculation."""
    samples = with_alone(planted(times=1.3), seconds)
    row = verdict(samples)
    assert row["speculation"] == shown
    assert row["speed"] == FASTER
    assert row["sentence"].startswith(first)
    table = verdicts(verdict_rows(samples)).set_index("method")
    assert table.loc["sd", "sentence"].startswith("sd: ")
    assert "no speculation" in table.loc["sd", "sentence"]
    assert verdict(planted(times=1.3))["speculation"] == MISSING


def test_a_sentence_names_another_length(planted):
    samples = planted(times=1.75)
    shorter = samples["output_tokens"].where(samples["method"] != "typical", 10)
    sentence = verdict(samples.assign(output_tokens=shorter))["sentence"]
    assert "its texts are 0.50 [0.50, 0.50] times as long as those of sd" in sentence
    assert "as long as" not in verdict(samples)["sentence"]


def test_a_sentence_names_prompts_that_this_method_alone_lacks(planted):
    samples = planted(n=50)
    lost = (samples["method"] == "typical") & (samples["sample_id"] < "p020")
    row = verdict(samples[~lost])
    assert (row["n"], row["missing"]) == (30, 20)
    assert ": n = 30 of 50: 20 prompts have no result of this method; " in row["sentence"]
    assert "have no result" not in verdict(samples)["sentence"]
    everyone = samples[samples["sample_id"] >= "p020"]
    assert "have no result" not in verdict(everyone)["sentence"]


def test_a_sentence_without_quality_says_so(planted):
    samples = planted(n=30)
    for lost in (samples["method"] == "typical", samples["method"] != ""):
        sentence = verdict(samples.assign(quality=samples["quality"].mask(lost)))["sentence"]
        assert sentence.endswith("speed only, quality was not measured")


def test_the_front_is_compared_at_equal_time_too(planted):
    row = verdict(planted(front=(0.2, 0.4, 0.5), times=1.0))
    assert row["front"] == HIGHER
    # ``typical`` takes as long as sd and is as good, so at equal time it is on the front.
    assert row["front_at_time"] == UNSHOWN
    assert (
        "the randomised static front at equal acceptance, not shown to differ from it at equal"
        in (row["sentence"])
    )


def test_a_lower_temperature_that_gains_as_much_is_named(planted):
    samples = planted(front=(0.2, 0.4, 0.5))
    cooled = samples[samples["method"] == "typical"].assign(
        method="cooled", settings="both_temperature=0.5 both_min_p=0 cooled_weight=1"
    )
    row = verdict(pd.concat([samples, cooled]))
    assert (row["front"], row["control"]) == (HIGHER, UNSHOWN)
    size = row["sentence"].partition("; a lower temperature gains +")[2]
    assert float(size.split()[0]) > 10
    assert "there, and the method 0.0 [-1.9, +1.9] more (no difference shown)" in size
    # Agreement rewards likely texts, so it says what is missing.
    unknown = "a lower temperature may gain as much, which this run did not measure"
    assert unknown not in verdict(samples)["sentence"]
    agreement = samples.assign(quality_metric=AGREEMENT)
    assert unknown in verdict(agreement)["sentence"]
    assert unknown not in verdict(agreement.assign(temperature=0.0))["sentence"]


def test_static_weights_below_a_coin_have_a_sentence(planted):
    table = verdicts(verdict_rows(planted(front=(0.2, 0.3, 0.35))))
    (sentence,) = table.loc[table["label"] == "static", "sentence"]
    assert "answering some prompts with sd and the rest with the draft" in sentence
    fine = verdicts(verdict_rows(planted(front=(0.2, 0.7, 0.8))))
    assert not (fine["label"] == "static").any()


@pytest.mark.parametrize(
    ("run", "speed", "quality", "words"),
    [
        (
            {"times": 1.3, "better": -0.3},
            FASTER,
            LOWER,
            r"[23]\d\.\d points worse at 1\.[23]\d times",
        ),
        ({"better": -0.3}, UNSHOWN, LOWER, r"[23]\d\.\d points worse; speed open"),
        (
            {"times": 0.8, "better": 0.15},
            SLOWER,
            HIGHER,
            r"[12]\d\.\d points better at 0\.\d+ times",
        ),
        ({"times": 1.3}, FASTER, UNSHOWN, "faster; quality open"),
        ({"times": 0.8}, SLOWER, UNSHOWN, "slower; quality open"),
        ({}, UNSHOWN, UNSHOWN, "open"),
        ({"times": 1.3, "n": 9}, FEW, FEW, "too few prompts"),
        ({"times": 1.3, **UNSCORED}, FASTER, MISSING, "faster; speed only"),
        (UNSCORED, UNSHOWN, MISSING, "open; speed only"),
    ],
)
def test_a_planted_difference_is_named_and_no_other(planted, run, speed, quality, words):
    run = dict(run)
    lost = {name: run.pop(name) for name in ("quality", "quality_metric") if name in run}
    samples = planted(**run).assign(**lost)
    row = verdict(samples)
    assert (row["speed"], row["quality"]) == (speed, quality)
    (table,) = verdict_tables(compare(samples).rows)
    (line,) = (row for row in table.rows if "typical" in str(row[0]))
    assert re.fullmatch(words, str(line[1]))
    sentence = row["sentence"]
    assert ("slower" in sentence) == (speed == SLOWER)
    assert ("points lower" in sentence) == (quality == LOWER)
    assert ("points higher" in sentence) == (quality == HIGHER)


def test_equal_methods_are_rarely_told_apart(planted):
    """A negative control: at 95 %, one verdict in 20 is wrong by chance."""
    runs = pd.concat(planted(n=40, seed=n, task=f"task {n}") for n in range(40))
    table = verdicts(verdict_rows(runs[runs["method"] != "static"]))
    speed, quality = (
        table.loc[table["method"] == "typical", name] for name in ("speed", "quality")
    )
    assert len(speed) == 40
    assert (speed != UNSHOWN).sum() <= 6
    assert (quality != UNSHOWN).sum() <= 6


@pytest.mark.parametrize(
    ("front", "better", "shown"),
    [
        ((0.2, 0.4, 0.5), 0.0, HIGHER),
        ((0.7, 0.8, 0.8), 0.0, UNSHOWN),
        ((0.7, 0.8, 0.8), -0.4, LOWER),
        # Above the chord between two weights far apart, but not above the upper weight itself.
        ((0.0, 0.2, 0.72), -0.1, UNSHOWN),
    ],
)
def test_a_method_lies_above_below_or_on_the_front(planted, front, better, shown):
    assert verdict(planted(front=front, better=better))["front"] == shown


def test_the_verdict_is_that_of_the_comparison(planted):
    samples = planted(times=1.3, better=-0.3)
    rows = compare(samples, ["acceptance"]).rows.set_index(["against", "metric"])
    times = rows.loc[("sd", "times_as_fast")]
    worse = rows.loc[("sd", "quality_difference")]
    sentence = verdict(samples)["sentence"]
    assert f"{times['value']:.2f} [{times['ci_low']:.2f}, {times['ci_high']:.2f}]" in sentence
    low, high = sorted(-100 * worse[end] for end in ("ci_low", "ci_high"))
    assert f"{-100 * worse['value']:.1f} [{low:.1f}, {high:.1f}] points lower" in sentence


def test_draft_lengths_have_a_verdict_each_or_one_at_the_fastest(planted):
    run = planted(times=1.3)
    longer = run.assign(draft_length=8, decode_seconds=0.9 * run["decode_seconds"])
    both = verdicts(verdict_rows(pd.concat([run, longer])))
    both = both[both["method"] == "typical"]
    assert len(both) == 1
    assert "each at its fastest N" in both["sentence"].iloc[0]
    one = verdicts(verdict_rows(pd.concat([run, longer[longer["method"] != "sd"]])))
    one = one[one["method"] == "typical"]
    assert list(one["draft_length"]) == [5]  # sd was not run at N = 8


def test_verdicts_are_grouped_by_task_and_blank_without_sd(planted):
    run = planted()
    both = verdicts(compare(pd.concat([run, run.assign(task="mini-code")])).rows)
    assert tuple(both.columns) == VERDICTS
    assert [heading.split()[0] for heading in by_task(both)] == ["mini-math", "mini-code"]
    assert verdicts(verdict_rows(run[run["method"] != "sd"])).empty
    static = verdicts(verdict_rows(run[run["method"] != "typical"]))
    weights = static[static["label"] != "static"]
    assert list(weights["label"]) == ["static w=0", "static w=0.5", "static w=0.9"]
    assert set(weights["front"]) == {MISSING}


def timed_again(samples, timing, seconds, **changes):
    again = samples[samples["method"] == "sd"]
    times = seconds * again["decode_seconds"]
    return again.assign(decode_seconds=times, timing=timing, **changes)


@pytest.mark.parametrize(
    ("times", "again", "speed"),
    [
        (1.3, 1.0, FASTER),
        (1.1, 1.0, FASTER),
        (1.1, 1.2, NOISE),  # sd differs more from itself
        (0.93, 1.2, NOISE),
        (0.93, 1.0, SLOWER),
        (1.5, 1.2, FASTER),
        (1.0, 1.2, UNSHOWN),
    ],
)
def test_a_speed_up_within_the_noise_of_sd_is_not_called_faster(planted, times, again, speed):
    samples = planted(times=times)
    twice = pd.concat([samples, timed_again(samples, "a-a", again)])
    assert verdict(twice)["speed"] == speed
    rows = compare(twice, ["quality"]).rows
    noise = rows.loc[rows["metric"] == "times_as_fast", "noise"]
    assert noise.notna().all() and (noise >= again).all()
    alone = compare(samples, ["quality"]).rows
    shared = [name for name in rows if name != "noise"]
    pd.testing.assert_frame_equal(rows[shared], alone[shared])  # and nothing else changes


def test_times_of_different_sessions_are_not_compared(planted):
    """The second session is on a machine at half the speed."""
    first = planted(times=1.3)
    added = first["method"] == "typical"
    times = first["decode_seconds"].where(~added, 2 * first["decode_seconds"])
    run = first.assign(session=added.astype(int), decode_seconds=times)
    assert verdict(run)["speed"] == MISSING
    (note,) = [note for note in compare(run, ["time"]).notes if "different sessions" in note]
    assert note.startswith("typical")
    together = pd.concat([run, timed_again(first, "baseline", 2, session=1)])
    assert verdict(together)["speed"] == FASTER
    same, joined = (
        rows.set_index(["at", "against", "metric"])[["value", "ci_low", "ci_high"]]
        for rows in (compare(samples, ["acceptance"]).rows for samples in (first, together))
    )
    pd.testing.assert_frame_equal(same, joined)
    assert set(compare(run, ["time"]).rows["at"]) == {"own quality"}  # no front in its session


def test_a_speed_up_has_the_baseline_of_its_session(planted):
    first = planted(times=1.3)
    ar = first[first["method"] == "sd"].assign(
        method="autoregressive", draft_length=0, accepted=None
    )
    added = first[first["method"] == "typical"]
    later = added.assign(session=1, decode_seconds=2 * added["decode_seconds"])
    again = ar.assign(session=1, timing="baseline", decode_seconds=2 * ar["decode_seconds"])

    def speedup(samples):
        rows = summarise(samples).query("metric == 'speedup' and method == 'typical'")
        return rows["value"].item()

    expected = speedup(pd.concat([ar, added]))
    assert speedup(pd.concat([ar, later, again])) == pytest.approx(expected)
    assert np.isnan(speedup(pd.concat([ar, later])))


def test_a_method_is_compared_with_sd_of_its_own_drafter(planted):
    model = planted(times=1.5)
    lookup = model[model["draft_length"] > 0].assign(drafter="prompt-lookup")
    table = verdicts(verdict_rows(pd.concat([model, lookup], ignore_index=True)))
    sentences = {row.label: row.sentence for row in table.itertuples()}
    assert "times as fast per sample as sd," in sentences["typical ε=0.1 δ=0.3"]
    assert "as sd prompt-lookup," in sentences["typical ε=0.1 δ=0.3 prompt-lookup"]
    assert "times as fast per sample as sd," in sentences["sd prompt-lookup"]


def test_times_of_texts_decoded_together_have_no_verdict(planted):
    """Quality and acceptance have the same verdicts as without batches; a note gives the reason."""
    samples = with_alone(planted(times=1.3, better=-0.3), 1.5)
    batched = samples.assign(batch_size=50)
    alone, together = (
        verdicts(verdict_rows(each)).set_index("method").loc["typical"]
        for each in (samples, batched)
    )
    assert (alone["speculation"], alone["speed"]) == (FASTER, FASTER)
    assert {together[name] for name in ("speculation", "speed", "front_at_time")} == {MISSING}
    for name in ("quality", "front"):
        assert together[name] == alone[name]
    assert not re.search("times as fast|equal time|speed", together["sentence"])
    compared = compare(batched, ATS)
    assert not compared.rows["metric"].isin([TIMES, SPEED]).any()
    assert not compared.rows["at"].isin(["time", "quality"]).any()
    assert [BATCHED in one.notes for one in (compared, compare(samples))] == [True, False]
    assert {"quality_difference", "acceptance_difference"} <= set(compared.rows["metric"])
    (heading,) = by_task(verdicts(verdict_rows(batched)))
    assert "in no recorded blocks of 50 prompts: no verdict on time" in heading
