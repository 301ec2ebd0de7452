"""Terminal output as an SVG picture, black on white for print and for pages in any mode."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

WIDTH = 80  # characters of a line
_ASPECT = 0.6  # width to height of a character in most fixed-width fonts
# Unlike rich's own template, this one loads no font from the network and draws no window. The
# origin centres the text in the space that rich reserves for its window.
_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="-9 -23 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px Menlo, "DejaVu Sans Mono", Consolas, monospace }}
{styles}
</style>
<defs>{lines}</defs>
<rect x="-9" y="-23" width="100%" height="100%" rx="8" fill="#fff" />
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</svg>
"""


def picture(*shown: RenderableType, width: int = WIDTH) -> str:
    """Return what a terminal in colour prints as an SVG.

    Args:
        shown: What to print, one below the other.
        width: Characters of a line; longer lines are wrapped.
    """
    console = Console(
        file=io.StringIO(),
        width=width,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )
    console.print(*shown, sep="\n")
    return console.export_svg(
        title="",
        theme=DEFAULT_TERMINAL_THEME,
        code_format=_TEMPLATE,
        font_aspect_ratio=_ASPECT,
    )
