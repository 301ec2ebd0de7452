import ast
import math
from pathlib import Path

import pandas as pd
from rich.cells import cell_len

from specbench.analysis import tables
from specbench.analysis.tables.html import to_html
from specbench.analysis.tables.latex import to_latex
from specbench.analysis.tables.table import (
    Column,
    Table,
    TableCell,
    condensed,
    number,
    percent,
    to_csv,
    to_markdown,
    to_text,
    with_interval,
)
from specbench.analysis.verdicts import words
from specbench.cli import output
from specbench.methods.registry import METHODS

TABLE = Table(
    "Pair mini, 50 % done",
    [
        Column("method"),
        *(Column("acc", "gsm8k"), Column("ROUGE-2\nF1", "gsm8k")),
        *(Column("acc", "a_task"), Column("ROUGE-2\nF1", "a_task")),
    ],
    [
        ["sd", "50.1", TableCell("66.2", "[65.0, 67.4]"), "", ""],
        [
            *("static w=0.5", "72.9", TableCell("-5.1", "[-6.0, -4.2]"), "9.0"),
            TableCell("66.3", best=True),
        ],
    ],
    ["acc: accepted over drafted tokens."],
)


def test_every_writer_shows_the_same_table_and_no_width_drops_a_column(stored):
    stored(to_text(TABLE, width=80), to_markdown(TABLE), to_latex(TABLE))
    narrow = to_text(TABLE, width=40)  # groups stay together and the stub is repeated
    assert [narrow.count(text) for text in ("method", "static w=0.5", "a_task")] == [2, 2, 1]
    columns = [Column("the name"), *(Column(f"heading {at}") for at in range(12))]
    rows = [[f"row {row}", *(f"{row}.{at:02}" for at in range(12))] for row in range(3)]
    for width in (20, 33, 47, 60, 80):
        text = to_text(Table("", columns, rows), width=width)
        assert max(map(len, text.splitlines())) <= width
        assert all(text.count(f"{row}.{at:02}") == 1 for row in range(3) for at in range(12))
        assert all(f"heading {at}" in text for at in range(12))


def test_text_wraps_between_words_and_html_has_the_headings_of_groups(stored):
    prose = Column("meaning", align="left")
    path = "/somewhere/that/cannot/be/cut"
    rows = [["sd", "some words that have to be wrapped", path], ["漢字", "one\ntwo", ""]]
    shown = to_text(Table("", [Column("name"), prose, prose], rows), width=60)
    assert max(map(cell_len, shown.splitlines())) <= 60
    columns = [Column("method"), *(Column("p50", name) for name in ("first token", "between"))]
    page = to_html(Table("", columns, [["sd, again", "1 [0, 2]", TableCell("3", "[2, 4]")]]))
    stored(shown, page)  # with the headings of groups, and no line breaks in intervals


def test_notes_appear_once_special_characters_are_escaped_and_empty_columns_dropped():
    tables = [Table("", [Column("a")], [["x"]], notes) for notes in (["n", "first"], ["n"])]
    shown = to_text(*tables, width=20).split("\n\n")
    assert [part.splitlines()[-1] for part in shown] == ["x", "first", "x", "n"]
    table = Table("*<a>*", [Column("x_y")], [[r"[a](b) & c|d \ 5%"]])
    assert r"| [a]\(b) & c\|d \\ 5% |" in to_markdown(table)
    assert r"{[}a](b) \& c\textbar{}d \textbackslash{} 5\%" in to_latex(table)
    assert r"$\lambda$ $\epsilon$ $\pm$ $\leq$ $\to$" in to_latex(
        Table("λ ε ± ≤ →", [Column("-")], [["-"]])
    )
    assert r"é $\alpha$ U+2603" in to_latex(Table("é α ☃", [Column("-")], [["2 - -1"]]))
    table = Table("", [Column("a"), Column("b"), Column("c")], [["", "", "1"], ["", "", ""]])
    assert condensed(table).columns == [Column("a"), Column("c")]


def test_numbers_are_blank_where_unknown_and_have_no_sign_where_zero():
    assert number(None, ".1f") == number(math.nan, ".1f") == ""
    assert number(-0.01, "+.1f") == "0.0"
    assert percent(0.367) == "37 %"
    assert percent(0.00367, ".2g") == "0.37 %"
    assert percent(None) == percent(math.nan) == ""
    assert number(-0.06, "+.1f") == "-0.1"
    assert with_interval(0.5, 0.25, 0.75, ".2f", " %") == "0.50 % [0.25, 0.75]"
    assert with_interval(0.5, math.nan, math.nan, ".1f") == "0.5"
    assert with_interval(math.nan, 0.0, 1.0, ".1f") == ""


def test_every_sign_that_tables_use_is_printed_in_every_format():
    """Of all strings of the code that makes tables, and of the signs of parameters."""
    folder, verdicts = (Path(of.__file__).parent for of in (tables, words))
    sources = [*folder.rglob("*.py"), *verdicts.glob("*.py")]
    strings = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    strings |= {p.sign or "" for method in METHODS.values() for p in method.parameters}
    signs = {sign for text in strings for sign in text if not sign.isascii()}
    signs -= {"\N{NO-BREAK SPACE}"}
    assert {"±", "ε", "δ"} <= signs
    every = " ".join(sorted(signs))
    table = Table(every, [Column(every)], [[every]], [every])
    assert "U+" not in to_latex(table)
    for text in (to_markdown(table), to_html(table), to_csv(pd.DataFrame({every: [every]}))):
        assert all(text.count(sign) >= 2 for sign in signs)
    output.prepare_streams()  # a terminal of any encoding
    assert "?" not in to_text(table, width=200).encode("ascii", "specbench").decode()


def test_a_caption_is_one_sentence_and_a_label_has_no_number_of_the_run():
    title = "mini-math on mini, T = 1: 500 prompts tell quality to ±1.1 points"
    text = to_latex(Table(title, [Column("-")], [["-"]], ["A note.\nIts second line."]))
    caption = r"mini-math on mini, T = 1: 500 prompts tell quality to $\pm$1.1 points."
    assert rf"\caption{{{caption}}}" in text
    assert r"\label{tab:mini-math-on-mini-T-1}" in text
    assert r"\par\smallskip\parbox{\textwidth}{\scriptsize A note. Its second line.}" in text
    many = to_latex(Table("At equal acceptance: x, T = 1, n = 20 to 50", [Column("-")], [["-"]]))
    assert r"\label{tab:At-equal-acceptance-x-T-1}" in many
