"""Verdicts name a difference only if the data show one."""

import pandas as pd
import pytest

from specbench.analysis.verdicts import words
from specbench.analysis.verdicts.compare import (
    VERDICTS,
    by_task,
    compare,
    over_tasks,
    verdict_rows,
    verdicts,
)
from specbench.analysis.verdicts.margin import margin_rows

from .conftest import timed_again

WEIGHTS = ["static w=0", "static w=0.5", "static w=0.9"]


def verdict(samples):
    table = verdicts(verdict_rows(samples))
    (row,) = table[table["method"] == "typical"].to_dict("records")
    return row


def test_equal_methods_are_rarely_told_apart(planted):
    """A negative control: at 95 %, one verdict in 20 is wrong by chance."""
    runs = pd.concat(planted(n=40, seed=n, task=f"task {n}") for n in range(40))
    table = verdicts(verdict_rows(runs[runs["method"] != "static"]))
    judged = table[table["method"] == "typical"]
    speed, quality = judged["speed"], judged["quality"]
    assert len(speed) == 40
    assert (speed != words.UNSHOWN).sum() <= 6
    assert (quality != words.UNSHOWN).sum() <= 6


def test_the_verdict_is_that_of_the_comparison_grouped_by_task_and_blank_without_sd(planted):
    samples = planted(times=1.3, better=-0.3)
    rows = compare(samples, ["acceptance"]).rows.set_index(["against", "metric"])
    times = rows.loc[("sd", "times_as_fast")]
    worse = rows.loc[("sd", "quality_difference")]
    sentence = verdict(samples)["sentence"]
    assert f"{times['value']:.2f} [{times['ci_low']:.2f}, {times['ci_high']:.2f}]" in sentence
    low, high = sorted(-100 * worse[end] for end in ("ci_low", "ci_high"))
    assert f"{-100 * worse['value']:.1f} [{low:.1f}, {high:.1f}] points lower" in sentence
    run = planted()
    both = verdicts(compare(pd.concat([run, run.assign(task="mini-code")])).rows)
    assert tuple(both.columns) == VERDICTS
    assert [heading.split()[0] for heading in by_task(both)] == ["mini-math", "mini-code"]
    assert verdicts(verdict_rows(run[run["method"] != "sd"])).empty
    static = verdicts(verdict_rows(run[run["method"] != "typical"]))
    weights = static[static["label"] != "static"]
    assert list(weights["label"]) == WEIGHTS
    assert set(weights["front"]) == {words.MISSING}


def test_verdicts_are_counted_over_the_tasks_of_a_run(planted):
    """A method counts the tasks on which it was measured, and draft lengths stand alone."""
    runs = [planted(n=40, times=times, task=f"task {times}") for times in (1.3, 0.7, 1.4)]
    runs[1] = runs[1][runs[1]["method"] != "static"]
    three, faster = pd.concat(runs), "faster on 2 of 3 tasks, slower on 1; "
    ((heading, lines),) = over_tasks(compare(three, ["acceptance"]).rows).items()
    assert heading == "3 tasks on mini, T = 1"
    assert lines == [f"typical ε=0.1 δ=0.3: {faster}quality open on 3"]
    (lines,) = over_tasks(margin_rows(three, "sd", 99)).values()
    assert [line.partition(":")[0] for line in lines] == [*WEIGHTS, "typical ε=0.1 δ=0.3"]
    assert lines[-1].endswith(f": {faster}within 99 points on 3") and " of 2 tasks" in lines[0]
    longer = pd.concat([three, three.assign(draft_length=8)])
    (lines,) = over_tasks(compare(longer, ["acceptance"]).rows).values()
    assert lines == [f"typical ε=0.1 δ=0.3, N = {n}: {faster}quality open on 3" for n in (5, 8)]
    served = three[three["method"] != "static"].assign(draft_length=0, drafter=None)
    served = pd.concat([served.assign(settings=f"concurrency={n}") for n in (1, 8)])
    (lines,) = over_tasks(margin_rows(served, "sd", 99)).values()
    ends = [f" at concurrency {n}: {faster}within 99 points on 3" for n in (1, 8)]
    assert lines == [f"typical ε=0.1 δ=0.3{end}" for end in ends]
    assert not over_tasks(compare(runs[0]).rows)
    two_runs = pd.concat([runs[0], runs[2].assign(run_id="two")])
    assert not over_tasks(compare(two_runs).rows)


@pytest.mark.parametrize(
    ("times", "again", "speed"),
    [
        (1.1, 1.0, words.FASTER),
        (1.1, 1.2, words.NOISE),  # sd differs more from itself
        (0.93, 1.2, words.NOISE),
        (0.93, 1.0, words.SLOWER),
        (1.5, 1.2, words.FASTER),
        (1.0, 1.2, words.UNSHOWN),
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
    assert verdict(run)["speed"] == words.MISSING
    (note,) = [note for note in compare(run, ["time"]).notes if "different sessions" in note]
    assert note.startswith("typical")
    together = pd.concat([run, timed_again(first, "baseline", 2, session=1)])
    assert verdict(together)["speed"] == words.FASTER
    same, joined = (
        rows.set_index(["at", "against", "metric"])[["value", "ci_low", "ci_high"]]
        for rows in (compare(samples, ["acceptance"]).rows for samples in (first, together))
    )
    pd.testing.assert_frame_equal(same, joined)
    assert set(compare(run, ["time"]).rows["at"]) == {"own quality"}  # no front in its session
