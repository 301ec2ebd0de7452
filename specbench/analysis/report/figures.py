"""The figures of a report: SVGs as drawn by ``specbench plot``, with tooltips on points.

There is one block per setting, drafter and draft length; autoregressive decoding is part of every
block, on the tasks of its drafts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from xml.etree import ElementTree

import pandas as pd
from markupsafe import Markup

from specbench.analysis.figures import acceptance, latency, pareto, rounds, style
from specbench.analysis.figures.style import Drawing
from specbench.analysis.results import Results
from specbench.analysis.tables.shown import shown
from specbench.errors import UsageError
from specbench.runs.frames import CELL
from specbench.runs.labels import DEFAULT_DRAFTER

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
#: Tooltip values after the quality.
_TOOLTIP = (
    *("draft_acceptance_rate", "seconds_per_sample", "speedup", "acceptance_length"),
    "round_seconds",
)

Draws = Mapping[str, Callable[[], Drawing]]


def figures(
    cells: pd.DataFrame, positions: pd.DataFrame, samples: pd.DataFrame | None = None
) -> Iterator[tuple[str, list[tuple[str, Markup]]]]:
    """Yield each setting of cells, see ``build.report_cells``, with its figures by title.

    ``positions`` is acceptance by position as in ``Results.positions``, without rows if unknown.
    Fronts need the ``samples``; None draws none.
    """
    for setting, of_setting in cells.groupby("setting", sort=False):
        drafted = of_setting.loc[of_setting["draft_length"] > 0, ["drafter", "draft_length"]]
        drafts = sorted(set(drafted.itertuples(index=False, name=None)))
        for drafter, n in drafts or [(DEFAULT_DRAFTER, 0)]:
            alike = (of_setting["draft_length"] == n) & (of_setting["drafter"] == drafter)
            of_tasks = of_setting["task"].isin(of_setting.loc[alike, "task"]) if drafts else True
            drawn_cells = of_setting[alike | (of_setting["draft_length"] == 0) & of_tasks]
            name = f"{setting}, N = {n}" if n else str(setting)
            name += "" if drafter == DEFAULT_DRAFTER else f", {drafter}"
            # Tooltips by row of the table whose points a figure shows.
            tooltips = {index: _tooltip(cell, cells) for index, cell in drawn_cells.iterrows()}
            drawn = list(_drawn(draws_of(drawn_cells, samples), tooltips, name))
            if len(positions):
                of_cells = positions.merge(drawn_cells[[*CELL, "label"]], on=list(CELL))
                tooltips = {}
                for at, row in of_cells.iterrows():
                    rate = shown("acceptance").estimate(row["value"], row["ci_low"], row["ci_high"])
                    tooltips[at] = (
                        f"{row['label']}; draft {row['position']}, {row['kind']}; accepted {rate}; "
                        f"{row['rounds']} rounds"
                    )
                of_cells = of_cells.drop(columns="label")
                by_position = Results.of(cells=drawn_cells, positions=of_cells)
                draws = {"Acceptance by position": partial(rounds.draw_positions, by_position)}
                drawn += _drawn(draws, tooltips, name)
            yield name, drawn


def draws_of(cells: pd.DataFrame, samples: pd.DataFrame | None) -> Draws:
    """Return the figures of cells and of their samples, if known, by title."""
    tables = {"cells": cells} | ({} if samples is None else {"samples": samples})
    results = Results.of(**tables)
    time = {"Acceptance vs. time": partial(acceptance.draw_time, results)}
    drafted = cells[cells["draft_acceptance_rate"].notna()]
    costs = [name for name, cost in pareto.COSTS.items() if cells[cost.column].notna().any()]
    return {
        "Quality vs. cost": partial(pareto.draw, results, costs),
        **(time if drafted["task"].duplicated().any() else {}),  # one point shows nothing
        "Latency": partial(latency.draw, results),
    }


def _drawn(
    draws: Draws, tooltips: Mapping[Hashable, str], name: str
) -> Iterator[tuple[str, Markup]]:
    with style.page("screen"):
        for title, draw in draws.items():
            try:
                drawing = draw()
            except UsageError:  # these cells lack the data for it
                continue
            yield title, _embedded(drawing, tooltips, f"{name} {title}")


def _tooltip(cell: pd.Series, cells: pd.DataFrame) -> str:
    """Return the tooltip of a cell's point: method, values with intervals, run."""
    figures = [shown("quality", cell["quality_metric"]), *map(shown, _TOOLTIP)]
    values = [f"{figure.heading} {text}" for figure in figures if (text := figure.with_unit(cell))]
    run = [cell["run_id"]] if cells["run_id"].nunique() > 1 else []
    return "; ".join([cell["label"], *values, *run])


def _embedded(drawing: Drawing, tooltips: Mapping[Hashable, str], salt: str) -> Markup:
    """Return a figure as an SVG element with its tooltips as ``data-tooltip``."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    svg = ElementTree.fromstring(style.rendered(drawing.figure, "svg", salt))
    for metadata in svg.findall(f"{{{_SVG}}}metadata"):
        svg.remove(metadata)
    for group in svg.iter(f"{{{_SVG}}}g"):
        name = group.attrib.pop("id", "")  # ids of groups are not unique on the page
        if match := re.fullmatch(r"points-\d+-([\d-]+)", name):
            marks = group.findall(f".//{{{_SVG}}}g/{{{_SVG}}}use")
            for mark, row in zip(marks, match[1].split("-"), strict=False):
                mark.set("data-tooltip", tooltips[int(row)])
    return Markup(ElementTree.tostring(svg, encoding="unicode"))
