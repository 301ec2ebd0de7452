"""``specbench vectors``: cases with exact answers for the tests of other people's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.errors import require
from specbench.files import check_parent, clear_errors, write_atomically
from specbench.validation.vectors.file import FORMATS, encoded


def vectors(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help=f"File to write, ending in {' or '.join(FORMATS)}."),
    ],
) -> None:
    """Write cases with exact answers, to test another project's verification kernel.

    Each has p, q, drafts and uniform numbers, and the tokens that must come out, or an exact law.
    No model is needed; `specbench docs methods` has ten lines that use the file.
    """
    require(file.suffix in FORMATS, f"{file} must end in {' or '.join(FORMATS)}: rename it")
    check_parent(file)
    with clear_errors(file):
        write_atomically(file, encoded(file.suffix))
    print(file)
