"""A trace as text, with colours or with marks."""

from __future__ import annotations

from rich.console import Console
from rich.style import Style
from rich.text import Text

from specbench.analysis.trace.trace import BONUS, CORRECTION, MISMATCH, REJECTED, Piece, visible
from specbench.analysis.trace.trace import LEGEND, Trace

# The marks of wdiff, and one for mismatches.
MARKS = {MISMATCH: ("{~", "~}"), REJECTED: ("[-", "-]"), CORRECTION: ("{+", "+}")}
_COLOURED = {
    MISMATCH: Style(color="green", underline=True),
    REJECTED: Style(color="red", strike=True),
    CORRECTION: Style(bold=True),
    BONUS: Style(italic=True),
}
# Text colours on a shaded background, which is always light.
_INKS = {MISMATCH: "#0b6628", REJECTED: "#a90f2b"}
_INK = "#1a1a1a"
_PALE, _DEEP = (240, 244, 250), (185, 212, 250)  # at w = 0 and w = 1
_ENDS = 1000  # characters of a prompt shown at either end
_STEPS = 5  # of the legend's scale


def show(trace: Trace, console: Console) -> None:
    """Print a trace: header, legend, prompt and text.

    Without colours, the text has marks as in wdiff, and no shading.
    """
    coloured = console.color_system is not None and not console.no_color
    console.print(written(trace, coloured), soft_wrap=not coloured)


def written(trace: Trace, coloured: bool = True) -> Text:
    """Return a trace as text, with colours or with marks."""
    drawn = f", N = {trace.draft_length}" if trace.draft_length else ""
    repeated = f", repeat {trace.repeat}" if trace.repeat else ""
    title = f"{trace.task}, {trace.sample}{repeated}: {trace.method}{drawn}"
    facts = visible("; ".join(trace.facts))
    output = Text.assemble((visible(title, rejected=True), "bold"), "\n", facts, "\n")
    output.append_text(_legend(trace, coloured)).append("\n\n")
    if trace.prompt:
        prompt = Text.assemble(("prompt: ", "bold"), (_shortened(trace.prompt), "dim"), "\n\n")
        output.append_text(prompt)
    return output.append_text(Text().join(_marked(piece, coloured) for piece in trace.pieces))


def _shortened(prompt: str) -> str:
    """Return a prompt that is safe to display, without the middle of a long one."""
    text = visible(prompt.strip())
    if len(text) <= 2 * _ENDS:
        return text
    return f"{text[:_ENDS]}\n[... {len(text) - 2 * _ENDS:,} characters ...]\n{text[-_ENDS:]}"


def _legend(trace: Trace, coloured: bool) -> Text:
    """Return a one-line legend of the marks."""
    if not trace.draft_length:
        return Text("every token is drawn from the target", "dim")
    entries = LEGEND if coloured else [entry for entry in LEGEND if entry[0] != BONUS]
    marks = [_marked(Piece(word, kind, 0, None, None), coloured) for kind, word, _ in entries]
    line = Text("  ").join(marks)
    if trace.weighted and coloured:
        line.append("  w: 0 ")
        for step in range(_STEPS):
            line.append("  ", _shade(step / (_STEPS - 1)))
        line.append(" 1")
    return line


def _marked(piece: Piece, coloured: bool) -> Text:
    text = visible(piece.text, marked=piece.kind in MARKS, rejected=piece.kind == REJECTED)
    if not coloured:
        before, after = MARKS.get(piece.kind, ("", ""))
        return Text(before + text + after)
    style = _COLOURED.get(piece.kind, Style())
    if piece.weight is not None:
        style += Style(color=_INKS.get(piece.kind, _INK)) + _shade(piece.weight)
    return Text(text, style)


def _shade(weight: float) -> Style:
    position = min(max(weight, 0.0), 1.0)
    mixed = (round(a + position * (b - a)) for a, b in zip(_PALE, _DEEP, strict=True))
    return Style(bgcolor="#{:02x}{:02x}{:02x}".format(*mixed))
