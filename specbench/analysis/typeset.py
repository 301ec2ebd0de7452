"""The main table for reading: as text, as Markdown and as LaTeX."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from specbench.analysis.layout import (
    GAP,
    TASK_GAP,
    Entry,
    Section,
    blocks,
    caption,
    sections,
    span,
    widths,
)

LATEX_WIDTH = 110  # characters of footnote size across a page of two columns
MARKDOWN_WIDTH = 160  # wider ones need to be scrolled sideways

_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"[": "{[}", "*": "{*}"},  # at the start of a row the line break before it would read them
    **{"α": r"$\alpha$", "×": r"$\times$"},
}


def text(table: pd.DataFrame, width: int, intervals: bool = False) -> str:
    """Return the table as plain text; tasks that do not fit the width follow further down.

    Args:
        table: A main table, perhaps with published numbers.
        width: Characters of a line.
        intervals: Show them, each below its number.
    """
    shown = sections(table, intervals)
    parts = []
    for section in shown:
        lines = [line for block in blocks(section, width) for line in _text_block(block)]
        said = (textwrap.fill(remark, width) for remark in section.remarks)
        parts.append([section.title, *lines, *said])
    parts.append([textwrap.fill(caption(shown, "*"), width)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def markdown(table: pd.DataFrame, intervals: bool = False) -> str:
    """Return the table as Markdown; arguments as for ``text``."""
    parts = []
    shown = sections(table, intervals)
    for section in shown:
        parts.append(f"{_plain(section.title)}.")
        parts += map(_markdown_block, blocks(section, MARKDOWN_WIDTH))
        parts += map(_plain, section.remarks)
    return "\n\n".join([*parts, caption(shown, "Bold")]) + "\n"


def latex(table: pd.DataFrame, intervals: bool = False) -> str:
    """Return the table as LaTeX, for a document with booktabs; arguments as for ``text``."""
    parts = [r"% needs \usepackage{booktabs}"]
    for section in sections(table, intervals):
        said = [f"{section.title}.", *section.remarks, caption([section], "Bold")]
        lines = [
            r"\begin{table*}[t]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            "\n\\par\\medskip\n".join(map(_tabular, blocks(section, LATEX_WIDTH))),
            rf"\caption{{{_escaped(' '.join(said))}}}",
            rf"\label{{tab:{re.sub('[^A-Za-z0-9.-]', '-', section.key)}}}",
            r"\end{table*}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _text_block(block: Section) -> Iterator[str]:
    names = block.stub_widths()
    columns = {task: widths(columns) for task, columns in block.tasks.items()}
    spans = {task: span(task, known) for task, known in columns.items()}

    def line(stub: Sequence[str], groups: Mapping[str, str]) -> str:
        left = "".join(name.ljust(width) + GAP for name, width in zip(stub, names, strict=True))
        right = TASK_GAP.join(group.rjust(spans[task]) for task, group in groups.items())
        return (left + right).rstrip()

    def row(stub: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str:
        return line(
            stub,
            {
                task: GAP.join(c.rjust(w) for c, w in zip(mine, columns[task], strict=True))
                for task, mine in cells.items()
            },
        )

    rule, blank, intervals = "─" * block.width(), [""] * len(block.stub), block.has_intervals
    yield rule
    yield line(blank, {task: task.center(width) for task, width in spans.items()})
    yield line(blank, {task: "─" * width for task, width in spans.items()})
    yield row(block.stub, {t: [column.heading for column in cs] for t, cs in block.tasks.items()})
    yield rule
    for at, stub in enumerate(block.names):
        entries = {t: [column.entries[at] for column in cs] for t, cs in block.tasks.items()}
        yield row(stub, {task: [_text_entry(e) for e in mine] for task, mine in entries.items()})
        if intervals:
            yield row(blank, {task: [e.interval for e in mine] for task, mine in entries.items()})
    yield rule


def _text_entry(entry: Entry) -> str:
    """A number with its mark or the room for one, so that a column's digits are in line."""
    return entry.text and entry.text + (" *"[entry.best])


def _markdown_block(block: Section) -> str:
    headings = [
        ", ".join(filter(None, [_plain(task), column.name, column.beside]))
        for task, columns in block.tasks.items()
        for column in columns
    ]
    rows = [
        [*map(_plain, names), *(_markdown_entry(column.entries[at]) for column in block.columns)]
        for at, names in enumerate(block.names)
    ]
    rule = ["---"] * len(block.stub) + ["--:"] * len(headings)
    return "\n".join(f"| {' | '.join(c)} |" for c in ([*block.stub, *headings], rule, *rows))


def _markdown_entry(entry: Entry) -> str:
    number = f"**{entry.text}**" if entry.best else entry.text
    return "<br>".join(filter(None, [number, entry.interval]))


def _plain(words: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_|<\[])", r"\\\1", words)


def _tabular(block: Section) -> str:
    columns = block.columns
    blank, intervals = [""] * len(block.stub), block.has_intervals
    spans, rules, at = [], [], len(block.stub) + 1
    for task, own in block.tasks.items():
        spans.append(rf"\multicolumn{{{len(own)}}}{{c}}{{{_escaped(task)}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + len(own) - 1}}}")
        at += len(own)
    lines = [
        rf"\begin{{tabular}}{{@{{}}{'l' * len(block.stub)}{'r' * len(columns)}@{{}}}}",
        r"\toprule",
        _latex_row(blank + spans),
        " ".join(rules),
        _latex_row([*block.stub, *(_escaped(column.heading) for column in columns)]),
        r"\midrule",
    ]
    for row, names in enumerate(block.names):
        entries = [column.entries[row] for column in columns]
        lines.append(_latex_row([*map(_escaped, names), *map(_latex_entry, entries)]))
        if intervals:
            lines.append(_latex_row(blank + [_latex_interval(entry) for entry in entries]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_entry(entry: Entry) -> str:
    number = entry.text.replace("-", "$-$")
    return rf"\textbf{{{number}}}" if entry.best else number


def _latex_interval(entry: Entry) -> str:
    return rf"{{\scriptsize {entry.interval}}}" if entry.interval else ""


def _escaped(words: str) -> str:
    """Text as every LaTeX sets it; a sign that it may not know appears by its code point."""
    return "".join(
        _LATEX.get(sign) or (sign if _is_common(sign) else f"U+{ord(sign):04X}") for sign in words
    )


def _is_common(sign: str) -> bool:
    """ASCII, and Latin letters with an accent."""
    return sign.isascii() or (sign < "\u0100" and unicodedata.decomposition(sign)[:2] == "00")
