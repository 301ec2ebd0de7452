"""Which runs a command is to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specbench.cli.output import note


def chosen_runs(given: Sequence[Path] | None, *files: str) -> list[Path]:
    """Return the folders of the runs that are meant, and say which of them are not whole.

    Args:
        given: Folders of runs or of many runs; without any, the newest run under ``results/``.
        files: What makes a folder one of a run: any of these is in it.

    Raises:
        UsageError: There is none.
    """
    from specbench.analysis.frames import run_folders
    from specbench.experiment.folders import newest_run, unfinished

    folders = run_folders(given or [newest_run()], *files)
    for folder in folders:
        if state := unfinished(folder):
            note(f"{folder} is not a whole run: {state}")
    return folders
