"""The main table: its figures, what is marked as best, and its three layouts."""

import re

import pandas as pd
import pytest

from specbench.analysis.frames import SUMMARY, typed
from specbench.analysis.layout import sections
from specbench.analysis.published import beside_published
from specbench.analysis.summary import summarise
from specbench.analysis.table import COLUMNS, main_table
from specbench.analysis.typeset import LEFT_OUT, latex, markdown, text

METHODS = (
    {"method": "autoregressive", "draft_length": 0, "proposed": 0, "accepted": None},
    {"method": "sd", "accepted": 15},
    {"method": "static", "weight": 0.0, "accepted": 25},
    {"method": "static", "weight": 0.5, "accepted": 20},
    {"method": "diversed", "head": "bundled", "accepted": 22},
)
BAD = {"static w=0", "static w=0.5"}  # of quality


@pytest.fixture(scope="session")
def table(samples):
    return main_table(summarise(samples))


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
    table = main_table(summarise(tiny)).set_index(["task", "label", "figure"]).sort_index()
    row = table.loc[("mini-math", "diversed")]
    assert row.loc["draft_acceptance_rate", "value"] == pytest.approx(88)
    assert row.loc["draft_acceptance_rate", "metric"] == "draft_acceptance_rate"
    assert (row.loc["quality", "value"], row.loc["quality", "metric"]) == (100, "accuracy")
    assert row.loc["speedup", "value"] == pytest.approx(1)
    assert row.loc["quality", "ci_high"] == pytest.approx(100)
    assert set(row["n"]) == {10}
    assert pd.isna(table.loc[("mini-math", "autoregressive", "draft_acceptance_rate"), "value"])


def test_acceptance_is_best_where_quality_holds(tiny):
    table = main_table(summarise(tiny))
    assert best(table, "quality") == set(table["label"]) - BAD
    assert best(table, "draft_acceptance_rate") == {"diversed"}  # and not what accepts everything
    assert best(table, "speedup") == set(table["label"]) - BAD  # all take as long


def test_what_intervals_do_not_part_from_the_highest_is_marked_as_well():
    cells = (("a", 0.80, 0.75, 0.85), ("b", 0.74, 0.70, 0.76), ("c", 0.70, 0.66, 0.74))
    summary = pd.DataFrame(
        [
            {
                **{"run_id": "r", "pair": "p", "task": "t", "method": "lossy", "rule": name},
                **{"temperature": 1.0, "draft_length": 5, "engine": "eager", "batch_size": 1},
                **{"metric": "quality", "unit": "accuracy", "n": 9},
                **{"value": value, "ci_low": low, "ci_high": high},
            }
            for name, value, low, high in cells
        ]
    )
    summary = typed(summary.reindex(columns=list(SUMMARY)), SUMMARY, "the test")
    assert best(main_table(summary), "quality") == {"lossy a", "lossy b"}
    assert best(main_table(summary.head(1)), "quality") == set()  # nothing to be better than
    alone = summary.assign(ci_low=None, ci_high=None)
    assert best(main_table(alone), "quality") == {"lossy a"}


def test_autoregressive_stands_with_every_draft_length(make):
    drafted = [{"draft_length": n, "sample_id": i} for n in (3, 7) for i in "ab"]
    alone = [METHODS[0] | {"sample_id": i} for i in "ab"]
    table = main_table(summarise(make(*alone, *drafted)))
    assert table.groupby("draft_length")["label"].unique().map(list).to_dict() == {
        3: ["autoregressive", "sd"],
        7: ["autoregressive", "sd"],
    }
    alone = main_table(summarise(make(*alone)))
    assert set(alone["draft_length"]) == {0}
    assert "nothing drafted" in text(alone, 100)


def test_engines_and_batches_have_tables_of_their_own(make):
    rows = [{"engine": e, "batch_size": b} for e, b in (("eager", 1), ("graph", 8))]
    shown = text(main_table(summarise(make(*rows))), 100)
    assert re.findall(r"^Pair.*", shown, re.MULTILINE) == [
        "Pair mini, T = 1, N = 5, 1 prompt per task",
        "Pair mini, T = 1, N = 5, engine graph, batches of 8, 1 prompt per task",
    ]


def test_runs_are_told_apart_where_they_hold_the_same(make):
    rows = [{"run_id": r, "task": t} for r, t in (("one", "mini-math"), ("two", "mini-code"))]
    assert "| run |" not in markdown(main_table(summarise(make(*rows))))
    both = main_table(summarise(make(*rows, {"run_id": "two", "task": "mini-math"})))
    lines = [line for line in markdown(both).splitlines() if line.startswith("| sd")]
    assert [line.split(" | ")[1] for line in lines] == ["one", "two"]


def test_metrics_are_not_mixed_in_a_column(make):
    rows = [
        {"run_id": m, "quality_metric": m, "task": "xsum", "quality": q}
        for m, q in (("rouge2", 0.5), ("rouge2-32", 0.25))
    ]
    (row,) = (grid(markdown(main_table(summarise(make(row)))))["sd"] for row in rows[:1])
    assert row["xsum, ROUGE-2"] == "50.00"
    shown = markdown(main_table(summarise(make(*rows))))
    assert "xsum, ROUGE-2 | xsum, ROUGE-2-32 |" in shown
    assert "| 50.00 |  |" in shown
    assert "|  | 25.00 |" in shown


def test_prompts_without_a_metric_still_have_acceptance(make):
    row = grid(markdown(main_table(summarise(make({"quality": None, "quality_metric": None})))))
    assert row["sd"] == {"method": "sd", "mini-math, accept": "60.0"}


def test_markdown_has_all_figures_and_bold(tiny):
    rows = grid(markdown(main_table(summarise(tiny))))
    assert set(rows) == {"autoregressive", "sd", "static w=0", "static w=0.5", "diversed"}
    assert rows["diversed"] == {
        "method": "diversed",
        **{"mini-math, accept": "**88.0**", "mini-math, accuracy": "**100.0**"},
        **{"mini-math, speed-up": "**1.00**", "mini-code, accept": "**88.0**"},
        **{"mini-code, accuracy": "**100.0**", "mini-code, speed-up": "**1.00**"},
    }
    assert rows["static w=0"]["mini-math, accept"] == "100.0"
    assert rows["autoregressive"]["mini-math, accept"] == ""
    with_intervals = grid(markdown(main_table(summarise(tiny)), intervals=True))
    assert with_intervals["sd"]["mini-math, accept"] == "60.0<br>[60.0, 60.0]"


def test_markdown_shows_names_as_they_are(make):
    rows = [{"run_id": r, "pair": "my_own*pair", "task": "a|b"} for r in ("x_1", "x_2")]
    shown = markdown(main_table(summarise(make(*rows))))
    assert r"| x\_1 |" in shown
    assert r"a\|b, accept" in shown
    assert r"my\_own\*pair" in shown


def test_text_fits_a_terminal(table):
    (section,) = sections(table, False)
    full = section.width()
    texts = {width: text(table, width) for width in (full, full - 1, 60)}
    assert [LEFT_OUT in shown for shown in texts.values()] == [False, True, False]
    assert [shown.count("speed-up  ") for shown in texts.values()] == [1, 0, 0]
    assert [shown.count("method  ") for shown in texts.values()] == [1, 1, 2]
    for width, shown in texts.items():
        assert max(map(len, shown.splitlines())) <= width


def test_text_lines_up_its_digits_and_marks_the_best(tiny):
    lines = text(main_table(summarise(tiny)), 120).splitlines()
    rows = {line[:14].strip(): line for line in lines if re.match(r"\w+ .*\d\.\d", line)}
    assert "88.0*" in rows["diversed"]
    assert " 100.0 " in rows["static w=0"]
    dots = {row.index(".", 14) for name, row in rows.items() if name != "autoregressive"}
    assert len(dots) == 1


def test_a_part_of_the_text_leaves_out_rows_that_belong_to_another(make):
    rows = [{"task": "mini-math"}, {"task": "mini-code", "method": "lossy", "lenience": 0.5}]
    shown = text(main_table(summarise(make(*rows))), 30)
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
    assert "speed-up" not in document.split(r"\caption")[1]  # left out, so not explained


def test_latex_escapes_what_it_would_read(make):
    name = r"[50%_a&b#1$2{x}~y^z\Ünïα中*"
    runs = [{"run_id": run, "pair": "p_q"} for run in (name, "*other")]
    document = latex(main_table(summarise(make(*runs))))
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
    table = beside_published(main_table(summarise(make(*rows))))
    shown = markdown(table)
    assert grid(shown)["sd"] == {
        "method": "sd",
        **{"gsm8k, accept": "60.0", "gsm8k, accept, paper": "44.6", "gsm8k, accept, diff": "+15.4"},
        **{"gsm8k, accuracy": "100.0", "gsm8k, accuracy, paper": "67.0"},
        **{"gsm8k, accuracy, diff": "+33.0"},
        **{"humaneval, accept": "60.0", "humaneval, accuracy": "100.0"},
    }
    assert "The paper has no numbers here for humaneval." in shown
    assert "diff: own minus paper" in shown
    assert "paper" not in markdown(table.drop(columns="published"))
    lower = table.assign(difference=-1.0)
    assert " & $-$1.0" in latex(lower)
