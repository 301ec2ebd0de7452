"""Latency of servers by arm: a figure of the share of answers within a time, and quantiles.

A colour and marker is an arm, a dash a number of requests in flight in a run. Times are wall times
of the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from specbench.analysis.figures import figure, layout, style
from specbench.analysis.figures.style import Drawing, scaled
from specbench.analysis.results import Results
from specbench.analysis.tables.table import Field, Table, number
from specbench.errors import UsageError
from specbench.runs.frames import rows_of
from specbench.runs.labels import method_labels

#: The columns of a sample that are latencies, with what they are called.
LATENCIES = {
    "first_token_seconds": "to the first token",
    "inter_token_seconds": "between tokens",
    "latency_seconds": "of an answer",
}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@figure()
def draw(results: Results) -> Drawing:
    """Draw the share of answers within a time: one column per task, one row per latency."""
    samples = of_servers(results.samples)
    if samples.empty:
        raise UsageError("these runs have no latencies of servers: run one with --server NAME=URL")
    loads = samples["run_id"] + " " + samples["settings"].fillna("")
    samples = samples.assign(label=arm_labels(samples), load=loads)
    tasks, dashed = style.distinct(samples, "task"), style.distinct(samples, "load")
    drawing, grid = style.panels(len(LATENCIES), len(tasks), height=1.4, sharey=True)
    dashes = dict(zip(dashed, cycle(("-", "--", "-.", ":")), strict=False))

    def line(rows: pd.DataFrame) -> dict[str, Any]:
        method, load = rows[["method", "load"]].iloc[0]
        look = style.look(method)
        line = {"linestyle": dashes[load], "linewidth": scaled(1.1), "color": look.colour}
        return line | {"marker": look.marker, "markersize": 0.5 * look.size, "markevery": 0.2}

    for task, panels in zip(tasks, grid.T, strict=True):
        layout.set_title(panels[0], task)
        for axes, (column, meaning) in zip(panels, LATENCIES.items(), strict=True):
            for _, rows in samples[samples["task"] == task].groupby("label", sort=False):
                times = np.sort(1000 * rows[column].dropna().to_numpy())
                shares = 100 * np.arange(1, len(times) + 1) / len(times)
                axes.step(times, shares, where="post", **line(rows))
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            decades = LogLocator(subs=(1, 3) if high < 1000 * low else (1,), numticks=5)
            axes.xaxis.set_major_locator(MaxNLocator(4) if high < 10 * low else decades)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(f"Time {meaning} (ms, log scale)")
    for axes in grid[:, 0]:
        axes.set_ylabel("Answers (%)")
    arms = samples.groupby("label", sort=False)
    handles = [Line2D([], [], label=str(label), **line(rows)) for label, rows in arms]
    style.legend(drawing, handles)
    return Drawing(drawing, layout.data(samples, *LATENCIES, "sample_id"))


def latency_tables(samples: pd.DataFrame) -> Iterator[Table]:
    """Yield a table of the latencies of each task's arms, in milliseconds."""
    for task, of_task in of_servers(samples).groupby("task", sort=False):
        labels = arm_labels(of_task)
        fields: list[Field[tuple[str, pd.DataFrame]]] = [
            ("arm", lambda arm: arm[0]),
            ("answers", lambda arm: f"{len(arm[1])}"),
            *(
                (
                    f"{meaning}\n{name}",
                    lambda arm, c=column, q=share: number(1000 * arm[1][c].quantile(q), "3s"),
                )
                for column, meaning in LATENCIES.items()
                for name, share in QUANTILES.items()
            ),
        ]
        title = f"Latency on {task} (ms, wall times of the client)"
        yield Table.of(of_task.groupby(labels, sort=False), fields, title)


def of_servers(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the answers of servers, also those that came at once, without a first token."""
    return samples[samples["retries"].notna()] if "retries" in samples else samples.iloc[:0]


def arm_labels(samples: pd.DataFrame) -> list[str]:
    """Return the label of each sample's arm, with the run if there are several."""
    labels, runs = method_labels(rows_of(samples)), samples["run_id"]
    if runs.nunique() < 2:
        return labels
    return [f"{label} ({run})" for label, run in zip(labels, runs, strict=True)]
