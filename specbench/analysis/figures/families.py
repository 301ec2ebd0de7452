"""Families of points that belong together: heads by goal or recipe, and sweeps of parameters."""

from __future__ import annotations

import pandas as pd

from specbench.analysis.tables.run_tables import LEARNED
from specbench.methods.registry import PARAMETER_COLUMNS, from_columns
from specbench.runs.frames import rows_of
from specbench.runs.labels import FAMILIES, recipe_of


def targets(cells: pd.DataFrame) -> pd.DataFrame:
    """Return family (its root folder) and goal, as text, of cells with such heads."""
    heads = cells.loc[cells["method"] == LEARNED, "head"].dropna()
    prefixes = "|".join(FAMILIES.values())
    return heads.str.extract(rf"^(?P<family>.*(?:{prefixes}))(?P<target>[\d.]+)$").dropna()


def recipes(cells: pd.DataFrame) -> pd.Series:
    """Return the recipe of each cell whose head has others of its recipe beside it."""
    recipe = cells.loc[cells["method"] == LEARNED, "head"].dropna().map(recipe_of).dropna()
    return recipe[cells[["run_id", "task"]].join(recipe, how="inner").duplicated(keep=False)]


def with_times_of_all_heads(cells: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return cells without times of heads of a recipe of which another head has none."""
    recipe = recipes(cells).reindex(cells.index)
    is_untimed = cells[column].isna().groupby([cells["run_id"], cells["task"], recipe])
    return cells.assign(**{column: cells[column].mask(is_untimed.transform("any").eq(True))})


def swept(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of methods that sweep one or two numbers; those of static are weights.

    The columns are ``text``, the numbers; ``last``, the last of them; and ``line``, the number
    before it, which cells on a line share.
    """
    sweeps = []
    rules = cells[~cells["method"].isin(["static", LEARNED])]
    for _, of_rule in rules.groupby(["run_id", "task", "method"], sort=False):
        rows = map(from_columns, rows_of(of_rule[[*PARAMETER_COLUMNS]]))
        parameters = pd.DataFrame(rows, of_rule.index)
        varied = parameters.loc[:, parameters.nunique(dropna=False) > 1]
        numbers = varied.map(lambda value: isinstance(value, int | float)) & varied.notna()
        if varied.shape[1] in (1, 2) and numbers.all(axis=None):
            texts = varied.map("{:g}".format)
            columns = {"text": texts.agg("/".join, axis=1), "last": varied.iloc[:, -1]}
            line = texts.iloc[:, 0] if varied.shape[1] == 2 else ""
            sweeps.append(pd.DataFrame(columns).assign(line=line))
    return pd.concat(sweeps or [pd.DataFrame(columns=["text", "last", "line"])])
