"""Drawings as files: for the eye, for print, and the data for whoever draws them otherwise."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from specbench.figures.style import Drawing
from specbench.files import clear_errors, write_atomically

_FILES: dict[Any, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "specbench",  # else every file gets other element ids
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
}
_CANVASES = {"png": FigureCanvasAgg, "svg": FigureCanvasSVG, "pdf": FigureCanvasPdf}
#: What must be left out of each kind of file for the same figure to give the same bytes.
_UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def save(drawing: Drawing, folder: Path, name: str) -> list[Path]:
    """Write ``name`` as ``.png``, ``.svg``, ``.pdf`` and, the data, ``.csv`` into ``folder``.

    Each is written whole or not at all; the same drawing gives the same bytes.

    Raises:
        SpecbenchError: The files cannot be written.
    """
    contents = {kind: _rendered(drawing.figure, kind) for kind in _UNDATED}
    contents["csv"] = drawing.data.to_csv(index=False, float_format="%.6g").encode()
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths = {folder / f"{name}.{kind}": content for kind, content in contents.items()}
    for path, content in paths.items():
        write_atomically(path, content)
    return list(paths)


def _rendered(figure: Figure, kind: str) -> bytes:
    """A settled figure as a file; ``savefig`` would draw it twice, to lay it out first."""
    file = BytesIO()
    canvas, dpi = _CANVASES[kind](figure), figure.dpi
    with matplotlib.rc_context(_FILES):
        getattr(canvas, f"print_{kind}")(file, metadata=_UNDATED[kind])
    figure.set_dpi(dpi)  # which those of vectors change for good
    return file.getvalue()
