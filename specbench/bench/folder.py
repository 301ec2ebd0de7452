"""The folder of a benchmark: tables, figures and where it took place."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.bench.figures import CURVE, ROUNDS, draw_curve, draw_rounds
from specbench.bench.measure import Measured
from specbench.bench.tables import RATIOS, REPEATS, TABLE
from specbench.errors import UsageError
from specbench.experiment.folders import ENVIRONMENT, as_json, new_folder
from specbench.figures.saving import save
from specbench.files import write_atomically


def choose_folder(output: Path | None, label: str) -> Path:
    """Return the folder to write, which is empty or not there.

    Args:
        output: What the user asked for; None takes ``results/<time>-<label>``.
        label: Ends the name of a folder that nobody named.

    Raises:
        UsageError: It is a file, or not empty.
    """
    folder = output or new_folder(label)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: name another one with --output")
    return folder


def write(folder: Path, measured: Measured, table: pd.DataFrame, ratios: pd.DataFrame) -> None:
    """Write everything that was found.

    Raises:
        RunError: Something cannot be written.
    """
    for name, content in ((TABLE, table), (REPEATS, measured.repeats), (RATIOS, ratios)):
        write_atomically(folder / name, content.to_csv(index=False, float_format="%.6g"))
    write_atomically(folder / ENVIRONMENT, as_json(measured.environment))
    save(draw_rounds(table), folder, ROUNDS)
    if table["forced_acceptance"].nunique() > 1:
        save(draw_curve(table), folder, CURVE)
