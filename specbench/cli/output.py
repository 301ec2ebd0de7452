"""Output: data to stdout, messages to stderr, files to a folder, a terminal as an SVG picture."""

from __future__ import annotations

import codecs
import io
import json
import logging
import math
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from specbench.errors import SpecbenchError, mask_tokens, printable, require

if TYPE_CHECKING:
    import pandas as pd

    from specbench.analysis.tables.table import Table

log = logging.getLogger(__name__)

INTERRUPTED = 130  # exit code
GIB = 2**30
LARGE = 10**8  # bytes of weights that are not read at once
PIPED_WIDTH = 140  # characters per line when stdout is not a terminal
TEXT, MARKDOWN, LATEX, CSV, JSON = "text", "markdown", "latex", "csv", "json"
PICTURE_WIDTH = 80  # characters of a line
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


#: Characters of tables and messages in encodings that lack them, such as cp1252 and ASCII.
_SIMPLER = {
    **dict.fromkeys("─━–—−", "-"),
    **dict.fromkeys("“”", '"'),
    **{"α": "alpha", "δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "≈": "~"},
    **{"†": "+", "·": ".", "≠": "!=", "Δ": "Delta ", "Σ": "Sum ", "√": "root ", "∞": "inf"},
    **{"│": "|", "×": "x", "±": "+-", "…": "...", "→": "->", "≥": ">=", "≤": "<=", "’": "'"},
}


def prepare_streams() -> None:
    """Let any text be written in any encoding, also to closed streams and at width 0.

    Characters that the encoding of a stream lacks become similar ones, or question marks.
    """
    codecs.register_error("specbench", _simpler)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="specbench")
    for size in ("COLUMNS", "LINES"):
        if os.environ.get(size, "").strip("0") == "":
            os.environ.pop(size, None)


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = "".join(_SIMPLER.get(c) or normalize("NFKD", c)[:1] for c in lacking)
    return plain.encode("ascii", "replace").decode(), error.end


class Interrupted(SpecbenchError):
    """The user stopped a run; the message says what was kept."""

    exit_code = INTERRUPTED


def console() -> Console:
    """Return the console for data; a piped one is wide enough for most tables, or has COLUMNS."""
    follows = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if follows else PIPED_WIDTH
    return Console(width=width)


def print_table(*tables: Table, styles: Mapping[str, str] | None = None) -> None:
    """Print tables at the width of the terminal, with styles by word, and the best in bold."""
    from specbench.analysis.tables.table import to_text

    terminal = console()
    text = Text(printable(to_text(*tables, width=terminal.width)))
    if not terminal.is_terminal:
        print(text.plain, end="")
        return
    text.highlight_words([table.title for table in tables if table.title], "italic")
    text.highlight_regex(r"[\d.]+\*", "bold")
    for word, style in (styles or {}).items():
        text.highlight_words([word], style)
    terminal.print(text, end="", soft_wrap=True)


def print_as(form: str, rows: pd.DataFrame, tables: Callable[[], Iterable[Table]]) -> None:
    """Print rows as CSV or JSON, or the tables built from them in another format."""
    from specbench.analysis.tables.latex import to_latex
    from specbench.analysis.tables.table import to_csv, to_markdown

    if form == JSON:
        print_json(rows)
    elif form == CSV:
        print(printable(to_csv(rows)), end="")
    elif form == TEXT:
        print_table(*tables())
    else:
        print(printable({MARKDOWN: to_markdown, LATEX: to_latex}[form](*tables())), end="")


def print_findings(
    as_json: bool, content: object, *tables: Table, after: Iterable[str] = ()
) -> None:
    """Print the findings of a check as JSON, or as tables with lines ``after`` them, if any."""
    from specbench.validation.findings import STYLES

    if as_json:
        print_json(content)
        return
    print_table(*tables, styles=STYLES)
    for line in filter(None, after):
        print(printable(line))


class _Notes(logging.Handler):
    """Prints each warning of a command once."""

    printed: set[str]

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self.printed:
            self.printed.add(text)
            note(text)


_NOTES = _Notes(logging.WARNING)


def show_warnings() -> None:
    """Print warnings of specbench and of libraries as notes, each once from now on.

    Those of libraries may quote what files contain, such as a character without a glyph.
    """
    _NOTES.printed = set()
    warnings.showwarning = lambda text, *_, **__: log.warning("%s", text)
    logger = logging.getLogger("specbench")
    logger.addHandler(_NOTES)  # adds it only once
    logger.propagate = False  # a library may have given the root logger a handler of its own


def message(text: str) -> str:
    """Return a message, which may quote files and servers, on one line without tokens."""
    return printable(mask_tokens(" ".join(text.split())))


def note(*texts: str) -> None:
    """Print notes to stderr: one line each, or as many as a terminal needs."""
    for text in texts:
        print(_noted(text), file=sys.stderr)


def _noted(text: str) -> str:
    line = f"note: {message(text)}"
    return wrapped(line, Console(stderr=True).width) if sys.stderr.isatty() else line


def wrapped(text: str, width: int) -> str:
    """Return a text in lines of a terminal, of which no word, such as a path, is broken."""
    return textwrap.fill(
        text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def note_loading(models: Mapping[str, str]) -> None:
    """Say at once which large models are loaded, by role, before anything heavy is imported."""
    from specbench.engine.pairs import stored_bytes

    sizes = {role: stored_bytes(Path(model)) for role, model in models.items()}
    if sum(sizes.values()) > LARGE:
        parts = [f"the {role} ({size / 1e9:.1f} GB)" for role, size in sizes.items() if size]
        log.warning(f"loading {' and '.join(parts)}")  # once, however many steps say so


def needed_memory(needed: float, free: int | None) -> str:
    """Say how much memory something needs, and how much is free if that is known."""
    return f"needs {needed / GIB:.2f} GiB" + ("" if free is None else f" of {free / GIB:.1f} free")


def next_step(text: str) -> None:
    """Print to stderr what the user may do next."""
    print("next:", message(text), file=sys.stderr)


def print_json(content: object) -> None:
    """Print plain values and data frames as JSON; a frame becomes a list of rows."""
    escapes = codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    print(printable(json.dumps(content, default=_rows, indent=2, ensure_ascii=escapes)))


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    from specbench.runs.frames import rows_of

    is_number = frame.notna() & ~frame.isin([math.inf, -math.inf])  # JSON has no other
    return rows_of(frame.astype(object).where(is_number, None))


@contextmanager
def new_folder(output: Path | None, label: str) -> Iterator[Path]:
    """Yield an empty folder, and remove it if nothing was written into it.

    Raises:
        UsageError: The user's folder is not empty, or cannot be written.
        Interrupted: The user pressed Ctrl-C in the context.
    """
    from specbench.experiment import folders
    from specbench.files import clear_errors

    folder = output or folders.new_folder(label)
    with clear_errors(folder):
        is_used = folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
    require(not is_used, f"{folder} is not an empty folder: choose another one with --output")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with clear_errors(folder):  # fail before measuring, not after
            folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except KeyboardInterrupt as error:
        has_files = folder.is_dir() and any(folder.iterdir())
        left = f"{folder} keeps what was written" if has_files else "nothing was written"
        raise Interrupted(f"interrupted: {left}") from error
    finally:
        with suppress(OSError):  # folders with results are not empty and stay
            for path in created:
                path.rmdir()


def picture(*shown: RenderableType, width: int = PICTURE_WIDTH) -> str:
    """Return what a terminal in colour prints, with lines of so many characters, as an SVG."""
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
        title="", theme=DEFAULT_TERMINAL_THEME, code_format=_TEMPLATE, font_aspect_ratio=_ASPECT
    )
