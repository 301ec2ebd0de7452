"""``specbench summary``: the tables of many runs as one, for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.options.common import completer
from specbench.cli.output import note
from specbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary"
FRAMES = (SUMMARY, "cells", "samples", "rounds", "runs")
CSV, PARQUET = FORMATS = ("csv", "parquet")


def summary(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders of runs, or of many runs.",
            show_default="the newest under results/",
        ),
    ] = None,
    frame: Annotated[
        str,
        typer.Option(
            "--frame",
            metavar="FRAME",
            help="What has a row: a figure of a cell (summary), a cell (cells), a sample, a round "
            f"or a run. One of {', '.join(FRAMES)}.",
            autocompletion=completer(lambda: FRAMES),
        ),
    ] = SUMMARY,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}.",
            show_default="csv; parquet where the output ends in .parquet",
            autocompletion=completer(lambda: FORMATS),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write.", show_default="printed"),
    ] = None,
) -> None:
    """Put the tables of finished runs into one, with every figure and its 95 % interval.

    The tables are taken as the runs have written them. Their columns: specbench list columns.
    """
    if frame not in FRAMES:
        raise UsageError(f"there is no frame {frame!r}: choose one of {', '.join(FRAMES)}")
    if format not in (None, *FORMATS):
        raise UsageError(f"--format cannot be {format!r}: choose {' or '.join(FORMATS)}")
    named = PARQUET if output and output.suffix == f".{PARQUET}" else CSV
    if (chosen := format or named) == PARQUET and output is None:
        raise UsageError("Parquet is not for reading: name a file for it with --output")

    import specbench
    from specbench.analysis.frames import run_folders
    from specbench.experiment.folders import CONFIG, newest_run, unfinished
    from specbench.experiment.tables import TABLE

    paths = runs or [newest_run()]
    for folder in run_folders(paths, TABLE, CONFIG):
        if state := unfinished(folder):
            note(f"{folder} is not a whole run: {state}")
    table: pd.DataFrame = getattr(specbench.load(paths), frame)
    if output is None:
        table.to_csv(sys.stdout, index=False)
    else:
        _write(table, output, chosen)
        print(output)


def _write(table: pd.DataFrame, path: Path, format: str) -> None:
    from specbench.files import write_atomically

    content = table.to_csv(index=False) if format == CSV else table.to_parquet(index=False)
    write_atomically(path, content)
