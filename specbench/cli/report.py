"""``specbench report``: finished runs as one page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.generate import grouped
from specbench.cli.options import Rows, Runs
from specbench.cli.output import note

NAME = "report.html"


@grouped
def report(
    rows: Rows,
    runs: Runs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page.",
            show_default=f"{NAME} in the last run's folder",
        ),
    ] = None,
) -> None:
    """Make one HTML file of finished runs: table, figures, traces and how to run it again.

    It holds all that it shows and fetches nothing, so it can be sent or put on a web page as it is.
    """
    from specbench.experiment.folders import newest_run
    from specbench.files import write_atomically
    from specbench.report.build import build

    folders = runs or [newest_run()]
    page = build(folders, rows.selection())
    for text in page.notes:
        note(text)
    path = output or folders[-1] / NAME
    write_atomically(path, page.html)
    print(path)
