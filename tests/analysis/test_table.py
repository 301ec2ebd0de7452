"""The main table: its figures, what is marked as best, and its three layouts."""

import re

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.intervals import paired_difference, paired_interval
from specbench.analysis.layout import sections
from specbench.analysis.published import beside_published
from specbench.analysis.scores import score_terms
from specbench.analysis.summary import summarise
from specbench.analysis.table import COLUMNS, main_table
from specbench.analysis.typeset import latex, markdown, text
from specbench.metrics.bleu import corpus_bleu

METHODS = (
    {"method": "autoregressive", "draft_length": 0, "proposed": 0, "accepted": None},
    {"method": "sd", "accepted": 15},
    {"method": "static", "weight": 0.0, "accepted": 25},
    {"method": "static", "weight": 0.5, "accepted": 20},
    {"method": "diversed", "head": "bundled", "accepted": 22},
)
BAD = {"static w=0", "static w=0.5"}  # of quality


def table_of(samples):
    return main_table(summarise(samples), samples)


@pytest.fixture(scope="session")
def table(samples):
    return table_of(samples)


@pytest.fixture
def tiny(make):
    """Five methods on ten prompts of two tasks; the static ones answer wrongly."""
    rows = [
        method | {"task": task, "sample_id": f"{i}", "quality": float("weight" not in method)}
        for task in ("mini-math", "mini-code")
        for method in METHODS
        for i in range(10)
    ]
    return make(*rows)


def grid(shown):
    """The rows of a Markdown table by method, each by its heading."""
    lines = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in shown.splitlines()
        if line.startswith("|")
    ]
    heading, _, *rows = lines
    return {row[0]: dict(zip(heading, row, strict=True)) for row in rows}


def best(table, figure):
    return set(table.loc[table["best"] & (table["figure"] == figure), "label"])


def test_a_row_for_each_method_task_and_figure(samples, table):
    assert list(table) == COLUMNS
    assert not table.duplicated(["label", "task", "figure"]).any()
    labels = list(table["label"].unique())
    assert [label.split()[0] for label in labels] == [
        *("autoregressive", "sd", "lossy", "speccascade", *["static"] * 6, "diversed")
    ]
    assert labels[4:-1] == [f"static w={w:g}" for w in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    assert len(table) == len(labels) * 2 * 3


def test_numbers_are_as_shown_to_people(tiny):
    table = table_of(tiny).set_index(["task", "label", "figure"]).sort_index()
    row = table.loc[("mini-math", "diversed")]
    assert row.loc["draft_acceptance_rate", "value"] == pytest.approx(88)
    assert row.loc["draft_acceptance_rate", "metric"] == "draft_acceptance_rate"
    assert (row.loc["quality", "value"], row.loc["quality", "metric"]) == (100, "accuracy")
    assert row.loc["speedup", "value"] == pytest.approx(1)
    assert row.loc["quality", "ci_high"] == pytest.approx(100)
    assert set(row["n"]) == {10}
    assert pd.isna(table.loc[("mini-math", "autoregressive", "draft_acceptance_rate"), "value"])


def test_acceptance_is_best_where_quality_holds(tiny):
    table = table_of(tiny)
    assert best(table, "quality") == set(table["label"]) - BAD
    assert best(table, "draft_acceptance_rate") == {"diversed"}  # and not what accepts everything
    assert best(table, "speedup") == set(table["label"]) - BAD  # all take as long


def answered(make, n, **settings):
    """Samples of two rules and more, on ``n`` prompts: by rule what differs on the i-th prompt."""
    rows = [
        {"method": "lossy", "rule": rule, "sample_id": f"{i}", **changes(i)}
        for rule, changes in settings.items()
        for i in range(n)
    ]
    alone = [METHODS[0] | {"sample_id": f"{i}", "decode_seconds": 1 + i % 9} for i in range(n)]
    return make(*rows, *alone)


def test_quality_is_starred_by_the_paired_difference_not_by_overlap(make):
    """Wrong on the first 1, 3 and 7 of 100 prompts; the intervals of 1 and 7 overlap."""
    wrong = {"few": 1, "some": 3, "many": 7}
    samples = answered(
        make, 100, **{r: (lambda i, k=k: {"quality": float(i >= k)}) for r, k in wrong.items()}
    )
    samples.loc[samples["method"] == "autoregressive", "quality"] = 0.0
    table = table_of(samples)
    rows = table[table["figure"] == "quality"].set_index("label")
    assert rows.loc["lossy many", "ci_high"] > rows.loc["lossy few", "ci_low"]
    assert best(table, "quality") == {"lossy few", "lossy some"}


@pytest.mark.parametrize("figure", ["draft_acceptance_rate", "speedup"])
def test_acceptance_and_speed_are_starred_by_the_paired_difference_too(make, figure):
    """Prompts differ by much, methods on the same prompt always by a little."""
    samples = answered(
        make,
        40,
        high=lambda i: {"accepted": 6 + i % 20, "decode_seconds": 0.5 * (1 + i % 9)},
        alike=lambda i: {"accepted": 5 + (i + 1) % 20, "decode_seconds": 0.51 * (1 + (i + 1) % 9)},
        low=lambda i: {"accepted": 4 + i % 20, "decode_seconds": 0.6 * (1 + i % 9)},
    )
    table = table_of(samples)
    rows = table[table["figure"] == figure].set_index("label")
    if figure == "draft_acceptance_rate":
        assert rows.loc["lossy low", "ci_high"] > rows.loc["lossy high", "ci_low"]
    assert best(table, figure) == {"lossy high", "lossy alike"}


@pytest.mark.parametrize("n", [2, 9, 10])
def test_below_ten_prompts_nothing_is_starred(make, n):
    table = table_of(answered(make, n, a=lambda _: {}, b=lambda _: {"quality": 0.0}))
    marked = {"lossy a", "autoregressive"}
    assert best(table, "quality") == (marked if n >= 10 else set())
    assert table["best"].any() == (n >= 10)


def test_what_shares_no_prompts_with_the_best_is_not_starred(make):
    samples = answered(make, 20, a=lambda _: {}, b=lambda i: {"sample_id": f"other {i}"})
    assert best(table_of(samples), "quality") == {"lossy a", "autoregressive"}


def test_a_value_alone_is_not_starred(make):
    table = table_of(make(*({"sample_id": f"{i}"} for i in range(20))))
    assert not table["best"].any()


@pytest.mark.parametrize("metric", ["accuracy", "rouge2", "bleu"])
def test_stars_are_those_of_the_paired_differences(make, metric):
    """With repeats, blanks and prompts that only some have, against one pair at a time."""
    rng = np.random.default_rng(3)
    for _ in range(3):
        rows = []
        for method, chance in (("sd", 0.9), ("lossy", 0.85), ("cactus", 0.7), ("block", 0.5)):
            for i in range(int(rng.integers(25, 40))):
                for repeat in range(2):
                    right = rng.random() < (chance if i % 3 else 1)
                    quality = right if metric == "accuracy" else rng.random() + right
                    rows.append({"method": method, "sample_id": f"{i}", "repeat": repeat})
                    rows[-1]["quality"] = float(quality) if rng.random() < 0.95 else None
        samples = make(*rows, quality_metric=metric)
        if metric == "bleu":
            shared = (4 * samples["quality"].fillna(0)).astype(int).astype(str)
            samples["bleu_terms"] = "6 6 " + shared + " 5 4 3 8 7 6 5"
        table = table_of(samples)
        cells = dict(list(samples[samples["quality"].notna()].groupby("method")))
        found = table[table["figure"] == "quality"].set_index("label")
        top = cells[found["value"].idxmax()]
        expected = set()
        for method, cell in cells.items():
            pair = (cell["quality"], cell["sample_id"], top["quality"], top["sample_id"])
            if metric == "bleu":
                terms, other = (score_terms(c, "quality", "bleu")[0] for c in (cell, top))
                paired = paired_interval(
                    *(terms, pair[1], other, pair[3]),
                    lambda t: corpus_bleu(t[..., :10]) - corpus_bleu(t[..., 10:]),
                )
            else:
                paired = paired_difference(*pair)
            expected |= {method} if paired.low <= 0 <= paired.high else set()
        assert best(table, "quality") == expected
        assert 0 < len(expected) < 4


def test_autoregressive_stands_with_every_draft_length(make):
    drafted = [{"draft_length": n, "sample_id": i} for n in (3, 7) for i in "ab"]
    alone = [METHODS[0] | {"sample_id": i} for i in "ab"]
    table = table_of(make(*alone, *drafted))
    assert table.groupby("draft_length")["label"].unique().map(list).to_dict() == {
        3: ["autoregressive", "sd"],
        7: ["autoregressive", "sd"],
    }
    alone = table_of(make(*alone))
    assert set(alone["draft_length"]) == {0}
    assert "nothing drafted" in text(alone, 100)


def test_engines_and_batches_have_tables_of_their_own(make):
    rows = [{"engine": e, "batch_size": b} for e, b in (("eager", 1), ("graph", 8))]
    shown = text(table_of(make(*rows)), 100)
    assert re.findall(r"^Pair.*", shown, re.MULTILINE) == [
        "Pair mini, T = 1, N = 5, 1 prompt per task",
        "Pair mini, T = 1, N = 5, engine graph, batches of 8, 1 prompt per task",
    ]


def test_runs_are_told_apart_where_they_hold_the_same(make):
    rows = [{"run_id": r, "task": t} for r, t in (("one", "mini-math"), ("two", "mini-code"))]
    assert "| run |" not in markdown(table_of(make(*rows)))
    both = table_of(make(*rows, {"run_id": "two", "task": "mini-math"}))
    lines = [line for line in markdown(both).splitlines() if line.startswith("| sd")]
    assert [line.split(" | ")[1] for line in lines] == ["one", "two"]


def test_metrics_are_not_mixed_in_a_column(make):
    rows = [
        {"run_id": m, "quality_metric": m, "task": "xsum", "quality": q}
        for m, q in (("rouge2", 0.5), ("rouge2-32", 0.25))
    ]
    (row,) = (grid(markdown(table_of(make(row))))["sd"] for row in rows[:1])
    assert row["xsum, ROUGE-2"] == "50.00"
    shown = markdown(table_of(make(*rows)))
    assert "xsum, ROUGE-2 | xsum, ROUGE-2-32 |" in shown
    assert "| 50.00 |  |" in shown
    assert "|  | 25.00 |" in shown


def test_prompts_without_a_metric_still_have_acceptance(make):
    row = grid(markdown(table_of(make({"quality": None, "quality_metric": None}))))
    assert row["sd"] == {"method": "sd", "mini-math, acc/drafted": "60.0"}


def test_markdown_has_all_figures_and_bold(tiny):
    rows = grid(markdown(table_of(tiny)))
    assert set(rows) == {"autoregressive", "sd", "static w=0", "static w=0.5", "diversed"}
    assert rows["diversed"] == {
        "method": "diversed",
        **{"mini-math, acc/drafted": "**88.0**", "mini-math, accuracy": "**100.0**"},
        **{"mini-math, tok/s/AR": "**1.00**", "mini-code, acc/drafted": "**88.0**"},
        **{"mini-code, accuracy": "**100.0**", "mini-code, tok/s/AR": "**1.00**"},
    }
    assert rows["static w=0"]["mini-math, acc/drafted"] == "100.0"
    assert rows["autoregressive"]["mini-math, acc/drafted"] == ""
    with_intervals = grid(markdown(table_of(tiny), intervals=True))
    assert with_intervals["sd"]["mini-math, acc/drafted"] == "60.0<br>[60.0, 60.0]"


def test_markdown_shows_names_as_they_are(make):
    rows = [{"run_id": r, "pair": "my_own*pair", "task": "a|b"} for r in ("x_1", "x_2")]
    shown = markdown(table_of(make(*rows)))
    assert r"| x\_1 |" in shown
    assert r"a\|b, acc/drafted" in shown
    assert r"my\_own\*pair" in shown


def test_text_fits_a_terminal(table):
    (section,) = sections(table, False)
    full = section.width()
    texts = {width: text(table, width) for width in (full, full - 1, 60)}
    tasks = len(section.tasks)
    for shown in texts.values():  # a wider page never shows less
        headings = [line for line in shown.splitlines() if line.startswith("method  ")]
        assert sum(line.count("tok/s/AR") for line in headings) == tasks
    assert [shown.count("method  ") for shown in texts.values()] == [1, 2, 2]
    for width, shown in texts.items():
        assert max(map(len, shown.splitlines())) <= width


def test_text_lines_up_its_digits_and_marks_the_best(tiny):
    lines = text(table_of(tiny), 120).splitlines()
    rows = {line[:14].strip(): line for line in lines if re.match(r"\w+ .*\d\.\d", line)}
    assert "88.0*" in rows["diversed"]
    assert " 100.0 " in rows["static w=0"]
    dots = {row.index(".", 14) for name, row in rows.items() if name != "autoregressive"}
    assert len(dots) == 1


def test_a_part_of_the_text_leaves_out_rows_that_belong_to_another(make):
    rows = [{"task": "mini-math"}, {"task": "mini-code", "method": "lossy", "lenience": 0.5}]
    shown = text(table_of(make(*rows)), 30)
    assert (shown.count("\nsd "), shown.count("\nlossy l=0.5 ")) == (1, 1)


def parse(document):
    """Check that braces and environments of LaTeX close, and return the cells of its rows."""
    bare = re.sub(r"\\[\\{}%&#$_]", lambda m: "" if m[0] != r"\\" else m[0], document)
    body = re.sub(r"(?m)^%.*", "", bare)
    assert body.count("{") == body.count("}")
    open_ones = []
    for verb, name in re.findall(r"\\(begin|end)\{([^}]*)\}", body):
        if verb == "begin":
            open_ones.append(name)
        else:
            assert open_ones.pop() == name
    assert not open_ones
    return [row.split(" & ") for row in re.findall(r"(?m)^(.*) \\\\$", document)]


def test_latex_is_well_formed(table):
    document = latex(table, intervals=True)
    rows = parse(document)
    (columns,) = set(re.findall(r"\{tabular\}\{@\{\}(l+r+)@\{\}\}", document))
    assert {len(row) for row in rows if "multicolumn" not in row[1]} == {len(columns)}
    for rule in ("toprule", "midrule", "bottomrule", "usepackage{booktabs}"):
        assert rf"\{rule}" in document
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-7}" in latex(table)
    assert re.search(r"diversed & \\textbf\{[\d.]+\}", document)
    assert not re.search(r"(?m)^.+(?<!\\)%", document)
    assert document.count(" & tok/s/AR") == 2  # a figure of every task, whatever the width
    assert "tok/s/AR" in document.split(r"\caption")[1]


def test_latex_escapes_what_it_would_read(make):
    name = r"[50%_a&b#1$2{x}~y^z\Ünïα中*"
    runs = [{"run_id": run, "pair": "p_q"} for run in (name, "*other")]
    document = latex(table_of(make(*runs)))
    cells = [row[1] for row in parse(document) if row[0] == "sd"]
    assert cells == [
        r"{[}50\%\_a\&b\#1\$2\{x\}\textasciitilde{}y\textasciicircum{}z\textbackslash{}Ünï"
        r"$\alpha$U+4E2D{*}",
        "{*}other",
    ]
    assert r"\caption{Pair p\_q, T = 1" in document
    assert r"\label{tab:p-q-1.0-5-eager-1}" in document


def test_published_numbers_stand_beside_ones_own(make):
    rows = [
        METHODS[1] | {"pair": "llama", "task": t, "sample_id": i}
        for t in ("gsm8k", "humaneval")
        for i in "ab"
    ]
    table = beside_published(table_of(make(*rows)))
    shown = markdown(table)
    assert grid(shown)["sd"] == {
        "method": "sd",
        **{
            "gsm8k, acc/drafted": "60.0",
            "gsm8k, acc/drafted, paper": "44.6",
            "gsm8k, acc/drafted, diff": "+15.4",
        },
        **{"gsm8k, accuracy": "100.0", "gsm8k, accuracy, paper": "67.0"},
        **{"gsm8k, accuracy, diff": "+33.0"},
        **{"humaneval, acc/drafted": "60.0", "humaneval, accuracy": "100.0"},
    }
    assert "The paper has no numbers here for humaneval." in shown
    assert "diff: own minus paper" in shown
    assert "paper" not in markdown(table.drop(columns="published"))
    lower = table.assign(difference=-1.0)
    assert " & $-$1.0" in latex(lower)
