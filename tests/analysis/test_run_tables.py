"""The tables of a run: the report page, the terminal and transfer between tasks."""

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.estimates import QUALITY_LESS, contrast
from specbench.analysis.output.table import to_text
from specbench.analysis.pareto import front_of, gap_between
from specbench.analysis.points import settings_of
from specbench.analysis.run_tables import TRANSFER, run_tables, summary_page, transfer_data
from specbench.analysis.summary import cells_of, less_than_sd, summarise, with_differences
from specbench.errors import UsageError

ABOVE = "above the static front (randomised)"


def _rows(samples):
    main, _, _ = summary_page(samples, summarise(samples)).partition("Texts.")
    lines = main.splitlines()
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}


@pytest.fixture
def rows(samples):
    return _rows(samples)


def test_a_sweep_becomes_the_front_and_the_distance_above_it(samples):
    samples = samples[samples["weight"].isna() | samples["weight"].isin([0.2, 0.8])]
    rows = _rows(samples)
    assert not any(label.startswith("static w=") for label in rows)
    assert "static front (randomised) at the acceptance of diversed" in rows
    assert rows[f"**diversed {ABOVE}**"].count("**+") == samples["task"].nunique()
    for task, cell in zip(
        samples["task"].unique(),
        rows["diversed above the front at its next point"].split("|")[2:],
        strict=False,
    ):
        settings = settings_of(samples[samples["task"] == task])
        (diversed,) = (setting for setting in settings if setting.method == "diversed")
        gap = gap_between([diversed], front_of(settings), "acceptance")
        value, low, high, *_ = (100 * number for number in gap.above_measured)
        shown = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]<br>{gap.between[0]}, coarse: "
        assert cell.strip().startswith(shown)
        assert f"{100 * gap.step:.0f} points away" in cell


def test_another_drafter_does_not_change_the_front(samples):
    samples = samples[samples["weight"].isna() | samples["weight"].isin([0.2, 0.8])]
    other = samples[samples["draft_length"] > 0].assign(drafter="prompt-lookup")
    other["quality"] = 1.0
    both = pd.concat([samples, other])

    def distance(frame):
        page = summary_page(frame, summarise(frame)).splitlines()
        return [line for line in page if line.startswith("| **diversed above")]

    assert distance(samples) and distance(both) == distance(samples)


def test_every_method_has_its_paired_difference_from_sd(samples, rows):
    assert rows["diversed"].count("<br>") == 2 * samples["task"].nunique()
    of_task = samples[samples["task"] == "mini-math"]
    diversed = of_task[of_task["method"] == "diversed"]
    target = of_task[of_task["method"].isin(["sd", "autoregressive"])]  # of one distribution
    value, low, high, *_ = (100 * number for number in contrast(diversed, target, QUALITY_LESS))
    assert f"<br>{value:+.1f} [{low:+.1f}, {high:+.1f}]<br>" in rows["diversed"].split("|")[2]
    assert rows["sd"].count("<br>") == samples["task"].nunique()


def _with_heads(samples, *heads, tasks=("mini-math", "mini-code")):
    """The samples, with diversed once per head, on some tasks."""
    learned = samples["method"] == "diversed"
    copies = [samples[learned & samples["task"].isin(tasks)].assign(head=head) for head in heads]
    return pd.concat([samples[~learned], *copies], ignore_index=True)


def test_heads_from_different_places_share_a_row_if_no_task_has_both(samples):
    samples = samples[~samples["weight"].isin([0.2, 0.4, 0.8])]
    frame = _with_heads(samples, "bundled")
    frame.loc[(frame["task"] == "mini-code") & (frame["head"] == "bundled"), "head"] = "results"
    rows = _rows(frame)
    methods = [label for label in rows if label.startswith("diversed") and "above" not in label]
    assert methods == ["diversed"]
    assert rows[f"**diversed {ABOVE}**"].count("**+") == 2
    rows = _rows(_with_heads(samples, "bundled", "results"))
    assert {"diversed bundled", "diversed results"} < set(rows)
    # A task without a head keeps its static points.
    rows = _rows(_with_heads(samples, "bundled", tasks=("mini-math",)))
    assert "static w=0.6" in rows
    assert not any("above" in label for label in rows)


def test_metrics_beyond_quality_have_a_separate_table(samples):
    samples = samples[~samples["weight"].isin([0.2, 0.6, 0.8])]
    plain = summary_page(samples, summarise(samples))
    maths = samples["task"] == "mini-math"
    more = samples.assign(rouge1=0.25, **{"accuracy-flexible": samples["quality"].where(maths)})
    text = summary_page(more, summarise(more))
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
    assert "static w=0.4" in rows  # these metrics have no front, so the points are shown
    value, first, second = rows["diversed"].strip("| ").split(" | ")[1:]
    quality = _rows(samples)["diversed"].split("|")[2].strip().split("<br>")[0]
    assert (value, first, second) == (quality, "25.0 [25.0, 25.0]", "25.0 [25.0, 25.0]")


def test_texts_at_the_limit_and_their_repetition_are_on_the_page(samples):
    def texts(frame):
        return summary_page(frame, summarise(frame)).partition("Texts.")[2]

    plain = texts(samples)
    assert "static" not in plain  # swept: the main table shows the front instead
    assert "at the limit" not in plain and "0.0 % repeated" in plain
    limited = samples.assign(repetition=samples["method"].map({"diversed": 0.25}).fillna(0.05))
    longest = limited["output_tokens"] > 55
    limited["stopped_by"] = np.where(longest, "length", "eos")
    (row,) = (line for line in texts(limited).splitlines() if line.startswith("| diversed"))
    assert "25.0 % repeated, +20.0 [+20.0, +20.0]" in row
    diversed = limited.query("method == 'diversed' and task == 'mini-math'")
    ended = diversed["stopped_by"] == "eos"
    assert f"{100 * (1 - ended.mean()):.1f} % at the limit, " in row
    assert f"{100 * diversed[ended]['quality'].mean():.1f} if completed, " in row


def test_draft_lengths_and_engines_have_separate_tables(make):
    """An engine that falls back during a run leaves samples of two engines."""
    samples = make({"draft_length": 3}, {"draft_length": 7}, {"draft_length": 7, "engine": "graph"})
    text = summary_page(samples, summarise(samples))
    assert [text.count(f"N = {n},") for n in (3, 5, 7)] == [1, 0, 2]
    assert [text.count(f"Engine {engine}.") for engine in ("eager", "graph")] == [2, 1]


def test_a_terminal_shows_two_tables_of_each_task(samples):
    summary = summarise(samples.assign(rouge1=0.25))
    summary.loc[summary["metric"] == "tokens_per_second", "value"] = 0.3125
    figures, further, *_ = tables = run_tables(with_differences(cells_of(summary), samples))
    assert len(tables) == 2 * samples["task"].nunique()
    assert figures.title == "mini-math on mini, n = 40"
    assert [row[0].split()[0] for row in figures.rows[:3]] == ["autoregressive", "sd", "lossy"]
    assert figures.rows[1][5:] == ["0.312", "2.03"]  # slow, but not 0; relative to autoregressive
    assert [column.heading for column in further.columns] == [
        *("method", "N", "ROUGE-1\n[95 %]", "output\ntokens", "rounds"),
        *("ended by\nlimit", "repeated\n4-grams"),
    ]
    less = less_than_sd(samples).query("method == 'diversed' and task == 'mini-math'").iloc[0]
    value, low, high = (less[f"output_tokens_less{end}"] for end in ("", "_low", "_high"))
    shown = dict(zip((c.heading for c in further.columns), further.rows[-1], strict=True))
    assert shown["output\ntokens"].interval == f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    assert not further.rows[1][3].interval  # sd itself
    value, low, high = (100 * less[f"quality_less{end}"] for end in ("", "_low", "_high"))
    assert figures.rows[-1][2].interval == f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    assert not figures.rows[1][2].interval
    assert max(map(len, to_text(*tables, width=80).splitlines())) <= 80
    summary.loc[summary["metric"] == "speedup", "value"] = None
    alone = run_tables(with_differences(cells_of(summary), samples))[0]
    assert (len(alone.columns), len(alone.notes)) == (len(figures.columns) - 1, 2)


@pytest.mark.parametrize("timed_again", [True, False])
def test_sessions_are_compared_by_a_baseline_only_where_each_has_one(samples, timed_again):
    first = samples["method"].isin(["autoregressive", "sd"])
    baselines = samples[first].assign(session=1, timing="baseline")
    added = samples[samples["method"] == "lossy"].assign(session=1)
    sessions = pd.concat([samples[first], added, *([baselines] if timed_again else [])])
    cells = with_differences(cells_of(summarise(sessions)), sessions)
    (note,) = (n for n in run_tables(cells)[0].notes if n.startswith("Timed together: auto"))
    assert "; lossy" in note
    assert note.endswith("autoregressive was timed in each.") == timed_again


# Quality and accepted drafts (of 25) by head and task; the run measured math first.
CELLS = {
    ("sd", "math"): (0.99, 10),
    ("sd", "news"): (0.5, 15),
    ("math", "math"): (0.9, 20),
    ("math", "news"): (0.25, 25),
    ("news", "math"): (0.8, 15),
    ("news", "news"): (0.5, 20),
}


@pytest.fixture
def summary(make):
    return summarise(
        make(
            *(
                {
                    "method": "sd" if head == "sd" else "diversed",
                    "head": None if head == "sd" else head,
                    "task": task,
                    "sample_id": f"{task}-{i}",
                    "quality": quality,
                    "quality_metric": "rouge2" if task == "news" else "accuracy",
                    "accepted": accepted,
                }
                for (head, task), (quality, accepted) in CELLS.items()
                for i in range(10)
            )
        )
    )


def test_the_table_is_tidy_and_has_every_head_on_every_task(summary):
    table = transfer_data(summary)
    assert list(table) == TRANSFER
    by_cell = table.set_index(["trained_on", "task", "metric"])
    assert len(by_cell) == 2 * len(CELLS)
    for (head, task), (quality, accepted) in CELLS.items():
        assert by_cell.loc[(head, task, "quality"), "value"] == pytest.approx(quality)
        assert by_cell.loc[(head, task, "draft_acceptance_rate"), "value"] == accepted / 25
    for change in ({"head": "bundled"}, {"run_id": ["one", "two"]}, {"draft_length": [3, 5]}):
        wrong = summary.assign(**{k: np.resize(v, len(summary)) for k, v in change.items()})
        with pytest.raises(UsageError):
            transfer_data(wrong)
