"""The tables of runs: their verdicts, figures and texts, and transfer between tasks."""

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.results import Results
from specbench.analysis.statistics.estimates import QUALITY_LESS, contrast
from specbench.analysis.statistics.front import front_of, gap_between
from specbench.analysis.statistics.points import settings_of
from specbench.analysis.statistics.summary import prompt_counts, summarise
from specbench.analysis.tables import run_tables
from specbench.analysis.tables.table import to_text
from specbench.analysis.written import write_summary
from specbench.errors import UsageError

from ..synthetic import write_samples


def results_of(samples):
    return Results.of(decodes=samples, _summary=summarise(samples))


def grid(table):
    """The rows of a table by method: its cells by heading, those of a difference with it."""
    named, heading = [], ""
    for column in table.columns:
        words = " ".join(column.heading.split())
        heading = words if "minus sd" not in words else f"{heading} minus sd"
        named.append(heading)
    return {row[0]: dict(zip(named, row, strict=True)) for row in table.rows}


def shown(figure, form="+.1f"):
    value, low, high, least = (100 * number for number in (*figure[:3], figure.least))
    lead = f"{least:{form}} to {value:{form}}" if least == least else f"{value:{form}}"
    return f"{lead} [{low:{form}}, {high:{form}}]"


def page_of(folder, samples):
    write_summary(write_samples(folder, samples))
    return (folder / "summary.md").read_text(encoding="utf-8")


def test_a_page_has_the_distances_of_the_comparison_for_each_drafter(samples, tmp_path):
    samples = samples[samples["weight"].isna() | samples["weight"].isin([0.2, 0.8])]
    samples = samples[samples["task"] == "mini-math"]
    settings = settings_of(samples)
    (diversed,) = (setting for setting in settings if setting.method == "diversed")
    gap = gap_between([diversed], front_of(settings), "acceptance")
    page = page_of(tmp_path / "one", samples)
    section = page.partition("At equal acceptance: mini-math")[2].partition("At equal")[0]
    line = "".join(line for line in section.splitlines() if line.startswith("| diversed"))
    assert shown(gap.above) in line and shown(gap.above_measured) in line
    assert f"{gap.between[0]} to {gap.between[1]}, {100 * abs(gap.step):.0f} points apart" in line
    other = samples[samples["draft_length"] > 0].assign(drafter="prompt-lookup", quality=1.0)
    both = page_of(tmp_path / "both", pd.concat([samples, other]))
    assert shown(gap.above) in both and shown(gap.above_measured) in both
    assert "a lower temperature may gain as much" in page


def test_every_figure_has_its_interval_and_its_paired_difference_from_sd(samples):
    limited = samples.assign(
        rouge1=0.25,
        repetition=samples["method"].map({"diversed": 0.25}).fillna(0.05),
        stopped_by=np.where(samples["output_tokens"] > 55, "length", "eos"),
    )
    results = results_of(limited)
    cells = results.cells_beside_sd()
    figures, _ = run_tables.figure_tables(cells, intervals=True)
    texts, _ = run_tables.text_tables(cells)
    of_task = limited[limited["task"] == "mini-math"]
    diversed = of_task[of_task["method"] == "diversed"]
    target = of_task[of_task["method"].isin(["sd", "autoregressive"])]  # of one distribution
    rows = grid(figures)
    assert rows["diversed"]["accuracy minus sd"] == shown(contrast(diversed, target, QUALITY_LESS))
    assert rows["diversed"]["accuracy"].interval.startswith("[")
    assert rows["sd"]["accuracy minus sd"] == ""
    rows = grid(texts)
    assert list(rows["sd"]) == [
        *("method", "N", "quality of completed", "quality of completed minus sd", "ROUGE-1"),
        *("output tokens", "output tokens minus sd", "rounds"),
        *("ended by limit (%)", "ended by limit (%) minus sd"),
        *("repeated 4-grams (%)", "repeated 4-grams (%) minus sd"),
        "accepted / drafted, mean of texts (%)",
    ]
    assert rows["diversed"]["repeated 4-grams (%) minus sd"] == "+20.0 [+20.0, +20.0]"
    ended = diversed["stopped_by"] == "eos"
    assert rows["diversed"]["ended by limit (%)"].text == f"{100 * (1 - ended.mean()):.1f}"
    completed = 100 * diversed[ended]["quality"].mean()
    assert rows["diversed"]["quality of completed"].text == f"{completed:.1f}"
    (without, _) = run_tables.text_tables(results_of(samples).cells)
    assert not {"quality of completed", "rounds minus sd"} & {*grid(without)["sd"]}


def test_draft_lengths_are_rows_and_engines_have_separate_tables(make):
    """An engine that falls back during a run leaves samples of two engines."""
    samples = make({"draft_length": 3}, {"draft_length": 7}, {"draft_length": 7, "engine": "graph"})
    eager, graph = run_tables.figure_tables(results_of(samples).cells)
    assert [table.title.split(", ")[2] for table in (eager, graph)] == ["eager", "graph"]
    assert [[row[1] for row in table.rows] for table in (eager, graph)] == [["3", "7"], ["7"]]
    both = pd.concat([samples, samples.assign(run_id="other")])
    assert [row[2] for row in next(run_tables.figure_tables(results_of(both).cells)).rows] == [
        *("run", "run", "other", "other")
    ]


def test_a_terminal_shows_verdicts_and_figures_in_80_columns(samples):
    results = results_of(samples)
    tables = results.tables()
    verdicts, figures = tables[:2], tables[2:]
    assert [table.title.split(":")[0] for table in verdicts] == [
        *("mini-math on mini, T = 1", "mini-code on mini, T = 1")
    ]
    assert figures[0].title == "mini-math on mini, T = 1, n = 40"
    assert [row[0].split()[0] for row in figures[0].rows[:3]] == ["autoregressive", "sd", "lossy"]
    assert max(map(len, to_text(*tables, width=80).splitlines())) <= 80
    narrow, wide = (to_text(*verdicts, width=width) for width in (80, 140))
    assert narrow.count("\nmethod") == wide.count("\nmethod") == len(verdicts)  # one block each
    assert "\nFrom 120 columns on also: / none, accepted" in narrow and "also: " not in wide
    assert len(narrow.split("\n\n")[-1].splitlines()) <= 9  # legends, and figures of sd
    slow = results.summary.copy()
    slow.loc[slow["metric"] == "tokens_per_second", "value"] = 0.3125
    slow.loc[slow["metric"] == "speedup", "value"] = None
    alone = next(run_tables.figure_tables(Results.of(_summary=slow).cells))
    assert grid(alone)["sd"]["tokens/s"] == "0.312"  # slow, but not 0
    assert len(alone.columns) == len(figures[0].columns) - 1
    assert [*alone.notes] == [run_tables.COUNTED, run_tables.PREFILL]  # of a baseline with times
    bare = slow[slow["method"] != "autoregressive"]
    without = next(run_tables.figure_tables(Results.of(_summary=bare).cells))
    assert run_tables.NO_BASELINE in without.notes
    timeless = slow[~slow["metric"].isin(["tokens_per_second", "seconds_per_sample"])]
    untimed = next(run_tables.figure_tables(Results.of(_summary=timeless).cells))
    assert [*untimed.notes] == [run_tables.NO_TIMES, run_tables.COUNTED]
    # Without sd beside it there is no verdict.
    assert [t.title for t in results_of(samples[samples["method"] == "sd"]).tables()] == [
        *(figure.title for figure in figures)
    ]
    # Prompts are counted where times are those of blocks.
    counts = pd.DataFrame({"seconds_per_sample_n": [10, 0, 8], "output_tokens_n": [500, 500, 0]})
    assert [*prompt_counts(counts)] == [500, 500, 8]


@pytest.mark.parametrize("timed_again", [True, False])
def test_sessions_are_compared_by_a_baseline_only_where_each_has_one(samples, timed_again):
    first = samples["method"].isin(["autoregressive", "sd"])
    baselines = samples[first].assign(session=1, timing="baseline")
    added = samples[samples["method"] == "lossy"].assign(session=1)
    sessions = pd.concat([samples[first], added, *([baselines] if timed_again else [])])
    table = next(run_tables.figure_tables(results_of(sessions).cells))
    (note,) = (n for n in table.notes if n.startswith("Timed together: auto"))
    assert "; lossy" in note
    assert note.endswith("autoregressive was timed in each.") == timed_again


# Quality and accepted drafts (of 25) by head and task; the run measured math first.
CELLS = {
    **{("sd", "math"): (0.99, 10), ("sd", "news"): (0.5, 15)},
    **{("math", "math"): (0.9, 20), ("math", "news"): (0.25, 25)},
    **{("news", "math"): (0.8, 15), ("news", "news"): (0.5, 20)},
}


@pytest.fixture
def summary(make):
    return summarise(
        make(
            *(
                {
                    **({"method": "sd"} if head == "sd" else {"method": "diversed", "head": head}),
                    **{"task": task, "sample_id": f"{task}-{i}", "quality": quality},
                    "quality_metric": "rouge2" if task == "news" else "accuracy",
                    "accepted": accepted,
                }
                for (head, task), (quality, accepted) in CELLS.items()
                for i in range(10)
            )
        )
    )


TWO = {"drafter": ["model", "suffix"]}


def test_the_table_is_tidy_and_has_every_head_on_every_task(summary):
    table = run_tables.transfer_data(summary)
    assert list(table) == run_tables.TRANSFER
    by_cell = table.set_index(["trained_on", "task", "metric"])
    assert len(by_cell) == 2 * len(CELLS)
    for (head, task), (quality, accepted) in CELLS.items():
        assert by_cell.loc[(head, task, "quality"), "value"] == pytest.approx(quality)
        assert by_cell.loc[(head, task, "draft_acceptance_rate"), "value"] == accepted / 25
    for change in ({"head": "bundled"}, {"run_id": ["one", "two"]}, {"draft_length": [3, 5]}, TWO):
        wrong = summary.assign(**{k: np.resize(v, len(summary)) for k, v in change.items()})
        with pytest.raises(UsageError):
            run_tables.transfer_data(wrong)
