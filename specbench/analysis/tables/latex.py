"""Tables as LaTeX with booktabs, for a paper of two columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from unicodedata import lookup

from specbench.analysis.tables.table import Table, cell_of, split

WIDTH = 120  # characters in footnote size across a two-column page
HEIGHT = 46  # lines of a page, without its caption and its notes
_PART = 5  # lines of a part besides its rows
_BETWEEN, _END = " & ", r" \\"  # of cells, of a row

_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"[": "{[}", "*": "{*}"},  # the preceding line break would parse them as its arguments
    **{"─": "--", "—": "---", "–": "--", "…": r"\ldots{}", "\n": " ", "\N{NO-BREAK SPACE}": "~"},
}
_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "theta", "lamda", "mu", "sigma", "tau")
_SIGNS |= {lookup(f"GREEK SMALL LETTER {name}"): rf"$\{name}$" for name in _GREEK}
_SIGNS["λ"] = r"$\lambda$"  # which Unicode spells otherwise
_MATH = {"±": "pm", "×": "times", "·": "cdot", "≥": "geq", "≤": "leq", "≠": "neq", "≈": "approx"}
_MATH |= {"→": "to", "∞": "infty", "−": "-", "√": "surd", "Σ": "Sigma", "Δ": "Delta", "†": "dagger"}
_SIGNS |= {sign: "$-$" if name == "-" else f"$\\{name}$" for sign, name in _MATH.items()}
#: What a title says of the numbers of a run, which a label must not have.
_MEASURED = re.compile(r"(, n = \d.*|: \d[\d, to]* prompts?\b.*|\n.*)$", re.DOTALL)
_COMMON = re.compile("[ -~À-ÅÇ-ÏÑ-ÖÙ-Ýà-åç-ïñ-öù-ýÿ]")  # ASCII, and accented Latin letters
_MINUS = re.compile(r"(?<!\w)-(?=\d)|(?:^|(?<=\s))-(?=\s)")  # a sign, not a hyphen


def to_latex(*tables: Table) -> str:
    """Render tables as LaTeX; titles become captions, and notes stand below a table."""
    floats = [r"% needs \usepackage{booktabs}"]
    for table in tables:
        notes = " ".join(" ".join(note.split()) for note in table.explanations)
        below = rf"\par\smallskip\parbox{{\textwidth}}{{\scriptsize {_escaped(notes)}}}"
        caption = table.title.replace("\n", "; ")
        label = re.sub("[^A-Za-z0-9.]+", "-", _MEASURED.sub("", table.title)).strip("-")
        for number, page in enumerate(_pages(list(split(table, WIDTH, wrapped=False))), 1):
            further = ", continued" if number > 1 else ""
            parts = "\n\\par\\medskip\n".join(page)
            parts += f"\n{below}" if notes and not further else ""
            floats.append(rf"""\begin{{table*}}[t]
\centering\footnotesize\setlength{{\tabcolsep}}{{3pt}}
\caption{{{_escaped(f"{caption}{further}.")}}}\smallskip
\label{{tab:{label}{f"-{number}" if further else ""}}}
{parts}
\end{{table*}}""")
    return "\n\n".join(floats) + "\n"


def _pages(parts: Sequence[Table]) -> Iterator[list[str]]:
    """Yield the parts of a table that fit a page each; several are as wide as the page."""
    page, lines = list[str](), 0
    for part in parts:
        intervals = sum(any(cell_of(cell).interval for cell in row) for row in part.rows)
        needed = len(part.rows) + intervals + _PART
        if page and lines + needed > HEIGHT:
            yield page
            page, lines = [], 0
        page.append(_tabular(part, whole_page=len(parts) > 1))
        lines += needed
    yield page


def _tabular(part: Table, whole_page: bool) -> str:
    align = ["l" if part.wraps(i) else "r" for i in range(len(part.columns))]
    kind, fill = ("tabular*", r"@{\extracolsep{\fill}}") if whole_page else ("tabular", "")
    width = r"{\textwidth}" if whole_page else ""
    lines = [rf"\begin{{{kind}}}{width}{{@{{}}{align[0]}{fill}{''.join(align[1:])}@{{}}}}"]
    lines.append(r"\toprule")
    spans = [(_escaped(part.columns[mine[0]].group), mine) for mine in part.groups]
    if any(name for name, _ in spans):
        names = [rf"\multicolumn{{{len(mine)}}}{{c}}{{{name}}}" for name, mine in spans]
        rules = [rf"\cmidrule(lr){{{m[0] + 1}-{m[-1] + 1}}}" for name, m in spans if name]
        lines += [_BETWEEN.join([*[""] * part.stub, *names]) + _END, " ".join(rules)]
    headings = []
    for side, column in zip(align, part.columns, strict=True):
        heading = r" \\ ".join(map(_escaped, column.heading.split("\n")))
        headings.append(rf"\shortstack[{side}]{{{heading}}}" if "\n" in column.heading else heading)
    lines.append(_BETWEEN.join(headings) + _END)
    lines.append(r"\midrule")
    for row in part.rows:
        cells = list(map(cell_of, row))
        names = [_escaped(cell.text) for cell in cells[: part.stub]]
        for cell in cells[part.stub :]:
            text = _escaped(cell.text)
            names.append(rf"\textbf{{{text}}}" if cell.best else text)
        lines.append(_BETWEEN.join(names) + _END)
        if any(cell.interval for cell in cells):
            ends = (_escaped(cell.interval) for cell in cells)
            small = (rf"{{\scriptsize {text}}}" if text else "" for text in ends)
            lines.append(_BETWEEN.join(small) + _END)
    return "\n".join([*lines, r"\bottomrule", rf"\end{{{kind}}}"])


def _escaped(words: str) -> str:
    """Escape text for any LaTeX engine; uncommon characters become their code points."""
    signs = _MINUS.sub("\N{MINUS SIGN}", words.replace(" %", "\N{NO-BREAK SPACE}%"))
    escaped = (_SIGNS.get(sign) or (sign if _COMMON.match(sign) else "") for sign in signs)
    return "".join(text or f"U+{ord(sign):04X}" for sign, text in zip(signs, escaped, strict=True))
