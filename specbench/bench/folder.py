"""The folder of a benchmark: tables, figures and where it took place."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.bench.figures import CURVE, ROUNDS, draw_curve, draw_rounds
from specbench.bench.measure import Measured
from specbench.bench.tables import RATIOS, REPEATS, TABLE
from specbench.experiment.folders import ENVIRONMENT, as_json
from specbench.figures.saving import save
from specbench.files import write_atomically


def write(folder: Path, measured: Measured, table: pd.DataFrame, ratios: pd.DataFrame) -> None:
    """Write everything that was found.

    Raises:
        SpecbenchError: Something cannot be written.
    """
    for name, content in ((TABLE, table), (REPEATS, measured.repeats), (RATIOS, ratios)):
        write_atomically(folder / name, content.to_csv(index=False, float_format="%.6g"))
    write_atomically(folder / ENVIRONMENT, as_json(measured.environment))
    save(draw_rounds(table), folder, ROUNDS)
    if table["forced_acceptance"].nunique() > 1:
        save(draw_curve(table), folder, CURVE)
