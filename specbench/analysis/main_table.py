"""The main table of a user's runs, laid out like the paper's: methods down, tasks across.

``main_table`` returns it in long form, one row per method, task and figure; ``typeset`` formats it.

Values of the same section, task and metric are compared. The highest is marked as best, and so is
every value that does not differ from it significantly. The test is the paired interval of the
difference: the intervals of two methods may overlap although they differ significantly on the same
prompts. Methods that emit the target's own distribution have one quality, that of all their texts:
none of them is best, or worse than the best, by luck.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.analysis.blocks import time_units
from specbench.analysis.cells import without_shared_times
from specbench.analysis.intervals import (
    FEWEST,
    Floats,
    Interval,
    Statistic,
    bootstrap,
    difference_limits,
    mean_over_seeds,
    paired_ratio,
    ratio,
    score_limits,
)
from specbench.analysis.published import REFERENCE, quality_heading, remarks
from specbench.analysis.scores import QUALITY, score_terms
from specbench.analysis.summary import ACCEPTANCE, BASELINE, SPEEDUP
from specbench.config import EAGER
from specbench.heads.registry import recipe_of
from specbench.methods.parameters import METHOD_COLUMNS, from_columns
from specbench.methods.registry import AUTOREGRESSIVE, METHODS
from specbench.metrics import shown_metric
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.frames import CELL
from specbench.runs.labels import method_labels
from specbench.runs.shown import ShownFigure, shown
from specbench.table import Cell, Column, Field, Table, cell_at, number

FIGURES = (ACCEPTANCE, QUALITY, SPEEDUP)
#: The columns that identify one table; the others become its rows and columns.
SECTION = ["pair", "temperature", "draft_length", "engine", "batch_size"]
METHOD = [*METHOD_COLUMNS, "drafter"]
COLUMNS = [
    *(*SECTION, "run_id", *METHOD, "label", "task"),
    *("figure", "metric", "unit", "value", "ci_low", "ci_high", "n", "best"),
]
PAPER, DIFFERENCE = "paper", "diff"

_UNITS = {ACCEPTANCE: "%", QUALITY: "0 to 100", SPEEDUP: "x"}
_SCALED = ["value", "ci_low", "ci_high"]
_SUMMED = (
    *("quality", "accepted", "proposed", "output_tokens", "prefill_seconds", "decode_seconds"),
    BLEU_TERMS,  # only if BLEU was measured
)
_RATIOS = {ACCEPTANCE: ["accepted", "proposed"], SPEEDUP: ["output_tokens", "seconds"]}
_AT_ONCE = 256  # cells resampled together
_ROUNDING = 1e-9  # tolerance between equal figures
_TWO_DECIMALS = ("rouge", "bleu", SPEEDUP)  # others have one decimal
_EXPLAINED = {
    ACCEPTANCE: "accepted / drafted: tokens, in %.",
    QUALITY: "Quality: times 100.",
    SPEEDUP: "tokens/s / AR's: with prefill, relative to autoregressive, paired by prompt.",
}
_SHOWN = ["label", "run_id", "task", "figure", "metric", *_SCALED]
_SHOWN += ["best", "published", "difference"]

_Numbers = NDArray[np.intp]
_Record = tuple[Any, dict[Any, Any]]  # (method, run) and their rows by column


def main_table(summary: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns ``COLUMNS``: a row per section, run, method, task and figure.

    Values are scaled for display: acceptance in per cent, quality times its metric's scale,
    speed-up as a factor. ``metric`` is the task's metric for quality and otherwise the figure
    itself. Autoregressive drafts nothing, so it appears in the section of every draft length of its
    pair, temperature, engine and batch size.

    Heads that differ in the seed of their training alone have a further row: their mean, with
    seeds and prompts as random effects. It does not compete.

    All other methods compete for the best quality. Only methods whose quality is marked as best
    compete for acceptance and speed-up, since bad texts can reach any acceptance or speed-up.
    ``samples`` are those of the summary's runs.
    """
    contest = Contest(samples)
    rows = without_shared_times(summary[summary["metric"].isin(FIGURES)])
    rows = rows.rename(columns={"metric": "figure"})
    rows = rows.merge(contest.cells, on=list(CELL), how="left").fillna({"cell": -1})
    metric = rows["unit"].where(rows["figure"] == QUALITY, rows["figure"]).fillna("")
    scales = {name: shown_metric(name)[1] for name in metric[rows["figure"] == QUALITY]}
    scale = metric.map(scales | {ACCEPTANCE: 100.0}).fillna(1.0)
    scaled = {name: rows[name] * scale for name in _SCALED}
    rows = rows.assign(metric=metric, unit=rows["figure"].map(_UNITS), scale=scale, **scaled)
    sections = _in_sections(rows).assign(seeds=1)
    means = _means_over_seeds(sections, contest)
    table = _in_order(pd.concat([sections, *means], ignore_index=True))
    of_seeds = table["seeds"].map(lambda count: f", mean of {count} seeds" if count > 1 else "")
    return table.assign(label=_labels(table) + of_seeds, best=_best(table, contest))[COLUMNS]


class Contest:
    """Samples grouped by cell, for paired comparisons; ``cells`` numbers the cells."""

    def __init__(self, samples: pd.DataFrame) -> None:
        """Sort samples by cell."""
        cell = samples.groupby(list(CELL), sort=False, dropna=False).ngroup().to_numpy()
        order = np.argsort(cell, kind="stable")
        summed = samples[[name for name in _SUMMED if name in samples]].iloc[order]
        self._samples = summed.assign(seconds=summed["prefill_seconds"] + summed["decode_seconds"])
        self._known = {
            QUALITY: summed["quality"].notna().to_numpy(),
            ACCEPTANCE: (summed["proposed"] > 0).to_numpy(),
        }
        prompts, blocks = samples["sample_id"], time_units(samples)
        units = {QUALITY: prompts, ACCEPTANCE: prompts, SPEEDUP: blocks}
        self._unit = {name: pd.factorize(unit)[0][order] for name, unit in units.items()}
        self._known[SPEEDUP] = self._unit[SPEEDUP] >= 0
        self._starts = np.searchsorted(cell[order], np.arange(cell.max(initial=-1) + 2))
        firsts = samples[list(CELL)].iloc[order[self._starts[:-1]]]
        self.cells = firsts.assign(cell=np.arange(len(firsts)))
        self._lossless = np.array([*map(_is_lossless, firsts.to_dict("records"))], dtype=np.bool_)
        alone = self.cells[self.cells["method"] == AUTOREGRESSIVE].set_index(BASELINE)["cell"]
        baselines = self.cells[BASELINE].join(alone.rename("baseline"), on=BASELINE)["baseline"]
        self._baseline = baselines.fillna(-1).to_numpy(dtype=np.intp)

    def best(self, cells: _Numbers, values: Floats, figure: str, metric: str) -> NDArray[np.bool_]:
        """Return which cells [k] have the highest value [k] or do not differ from it significantly.

        A cell does not differ if the paired 95 % interval of its difference from the first cell
        with the highest value includes 0. Cells that share fewer than ``FEWEST`` prompts with it
        are not marked. The values are those of ``figure``; quality is measured by ``metric``, and
        each lossless cell has the quality of all lossless cells together.
        """
        marked = np.zeros(len(cells), dtype=np.bool_)
        unit = self._unit[figure]
        units = np.unique(np.concatenate([unit[self._rows(cell)] for cell in cells]))
        sums, statistic = self._sums(cells, units, figure, metric)
        if figure == QUALITY:
            sums = _pooled(sums, self._lossless[cells])
            values = statistic(np.nansum(sums, axis=0))
        top = int(np.argmax(values))
        # Sums of scores are integers for every prompt if all scores are 0 or 1.
        whole = np.all(np.isnan(sums[..., 0]) | (sums[..., 0] % 1 == 0), axis=0)
        whole &= figure == QUALITY and statistic is ratio
        present = ~np.isnan(sums).any(axis=2) & ~np.isnan(sums[:, [top]]).any(axis=2)
        kinds, kind = np.unique(np.vstack([present, whole]), axis=1, return_inverse=True)
        for pattern, (*shared, zero_or_one) in enumerate(kinds.T):
            if sum(shared) < FEWEST:
                continue
            members = np.flatnonzero(kind.ravel() == pattern)
            for some in np.array_split(members, -(-len(members) // _AT_ONCE)):
                compared, highest = sums[np.ix_(shared, some)], sums[np.ix_(shared, [top])]
                if zero_or_one and whole[top]:
                    counts = np.minimum(compared[..., 1].sum(axis=0), highest[..., 1].sum(axis=0))
                    low, high = score_limits(ratio(compared) - ratio(highest), counts)
                else:
                    low, high = difference_limits(compared, highest, statistic)
                marked[some] = (low <= _ROUNDING) & (high >= -_ROUNDING)
        return marked

    def mean_over_seeds(self, cells: _Numbers, figure: str, metric: str) -> Interval:
        """Return the mean of cells that differ in the seed of their head, on shared prompts."""
        units = np.unique(self._unit[figure][self._rows(cells[0])])
        sums, statistic = self._sums(cells, units, figure, metric)
        shared = sums[~np.isnan(sums).any(axis=(1, 2))]
        return mean_over_seeds(statistic(bootstrap(shared)), len(shared))

    def _sums(
        self, cells: _Numbers, units: _Numbers, figure: str, metric: str
    ) -> tuple[Floats, Statistic]:
        """Return sums per unit [units, k, terms], NaN if missing, and their statistic.

        The terms of a speed-up are those of the cells, then those of their baselines.
        """
        sums, statistic = self._sums_of_cells(cells, units, figure, metric)
        if figure != SPEEDUP:
            return sums, statistic
        base, _ = self._sums_of_cells(self._baseline[cells], units, figure, metric)
        return np.concatenate([sums, base], axis=2), paired_ratio

    def _sums_of_cells(
        self, cells: _Numbers, units: _Numbers, figure: str, metric: str
    ) -> tuple[Floats, Statistic]:
        rows_of_cells = [self._rows(cell) for cell in cells]
        rows = np.concatenate(rows_of_cells)
        column = np.repeat(np.arange(len(cells)), [*map(len, rows_of_cells)])
        index = pd.Index(units).get_indexer(pd.Index(self._unit[figure][rows]))
        counted = (index >= 0) & self._known[figure][rows]
        samples = self._samples.iloc[rows[counted]]
        statistic: Statistic = ratio
        if figure == QUALITY:
            terms, statistic = score_terms(samples, "quality", metric)
        else:
            terms = samples[_RATIOS[figure]].to_numpy(np.float64)
        field, fields = (index * len(cells) + column)[counted], len(units) * len(cells)
        sums: Floats = np.stack([np.bincount(field, term, fields) for term in terms.T], axis=-1)
        sums[np.bincount(field, minlength=fields) == 0] = np.nan
        return sums.reshape(len(units), len(cells), -1), statistic

    def _rows(self, cell: int) -> _Numbers:
        return np.arange(self._starts[cell], self._starts[cell + 1])


def _is_lossless(cell: Mapping[Any, Any]) -> bool:
    """Return whether a cell emits the target's own distribution."""
    method = METHODS.get(cell["method"])
    return method is not None and method.emits_target(from_columns(cell))


def _pooled(sums: Floats, alike: NDArray[np.bool_]) -> Floats:
    """Return sums per prompt [prompts, k, terms] in which some cells have those of all of them."""
    pooled_cells = sums[:, alike]
    pooled = np.nansum(pooled_cells, axis=1)
    pooled[np.all(np.isnan(pooled_cells[..., 0]), axis=1)] = np.nan  # also without such cells
    result = sums.copy()
    result[:, alike] = pooled[:, None]
    return result


def _in_sections(rows: pd.DataFrame) -> pd.DataFrame:
    """Copy rows of methods without drafts into every matching section."""
    drafted, alone = rows[rows["draft_length"] > 0], rows[rows["draft_length"] == 0]
    sections = drafted[SECTION].drop_duplicates()
    shared = [name for name in SECTION if name != "draft_length"]
    joined = alone.drop(columns="draft_length").merge(sections, on=shared, how="left")
    joined["draft_length"] = joined["draft_length"].fillna(0).astype("int64")
    return pd.concat([joined, drafted], ignore_index=True)


def _means_over_seeds(rows: pd.DataFrame, contest: Contest) -> Iterator[pd.DataFrame]:
    """Yield a row for each figure of heads that differ in the seed of their training alone."""
    recipes = rows["head"].map(recipe_of, na_action="ignore")
    shared = [*SECTION, "run_id", "task", "figure", "metric"]
    shared += [name for name in METHOD if name != "head"]
    trained = rows[recipes.notna() & rows["value"].notna() & (rows["cell"] >= 0)]
    for keys, seeds in trained.groupby([recipes, *shared], sort=False, dropna=False):
        timed_together = seeds["figure"].iloc[0] != SPEEDUP or seeds["session"].nunique() == 1
        if len(seeds) > 1 and timed_together:
            first = seeds.iloc[[0]]
            cells = seeds["cell"].to_numpy(np.intp)
            figure, metric = first["figure"].item(), first["metric"].item()
            mean = contest.mean_over_seeds(cells, figure, metric)
            hidden = seeds["ci_low"].isna().all()  # of times that texts share
            ends = (np.nan, np.nan) if hidden else (mean.low, mean.high)
            scaled = first["scale"].item() * np.array([mean.value, *ends])
            row = first.assign(head=keys[0], cell=-1, seeds=len(seeds), n=mean.n)
            yield row.assign(**dict(zip(_SCALED, scaled, strict=True)))


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by section, method (in registry order) and parameters; the sort is stable."""
    rank = {name: index for index, name in enumerate(METHODS)}
    keys = ["weight", "lenience", "rule", "alpha"]
    ranked = rows[keys].assign(
        section=rows.groupby(SECTION, sort=False).ngroup(),
        method=rows["method"].map(rank).fillna(len(rank)),
    )
    order = ranked.sort_values(["section", "method", *keys], kind="stable").index
    return rows.loc[order].reset_index(drop=True)


def _labels(table: pd.DataFrame) -> pd.Series:
    """Label methods, with the shortest head names that are unambiguous in a section."""
    labels = pd.Series("", index=table.index)
    for _, rows in table.groupby(SECTION, sort=False):
        cell = rows.groupby(["task", *METHOD], sort=False, dropna=False).ngroup()
        cells = rows[~cell.duplicated()]  # in the order of ngroup
        labels[rows.index] = cell.map(dict(enumerate(method_labels(cells.to_dict("records")))))
    return labels


def _best(table: pd.DataFrame, contest: Contest) -> pd.Series:
    """Return which values are the best of their column or not significantly different."""
    is_quality = table["figure"] == QUALITY
    marked = _highest(table, is_quality, contest)
    cell = [table[name] for name in (*SECTION, "cell")]
    comparable = (table["figure"] != SPEEDUP) | table["ci_low"].notna()
    is_compared = ~is_quality & comparable & marked.groupby(cell).transform("any")
    return marked | _highest(table, is_compared, contest)


def _highest(table: pd.DataFrame, competing: pd.Series, contest: Contest) -> pd.Series:
    """Return which competing values are the best of their column; none if only one competes."""
    marked = pd.Series(False, table.index)
    column = [*SECTION, "task", "figure", "metric"]
    among = table.groupby(column)["value"].transform("count") > 1
    rows = table[competing & among & table["value"].notna() & (table["cell"] >= 0)]
    for (*_, figure, metric), cells in rows.groupby(column):
        numbers, values = cells["cell"].to_numpy(np.intp), cells["value"].to_numpy()
        marked[cells.index] = contest.best(numbers, values, figure, metric)
    return marked


def typeset(table: pd.DataFrame, intervals: bool = False) -> list[Table]:
    """Return a readable table of each section of a main table, which may have published numbers."""
    notes = _notes(table, intervals)
    return [_section(rows, intervals, notes) for _, rows in table.groupby(SECTION, sort=False)]


def _notes(table: pd.DataFrame, intervals: bool) -> list[str]:
    figures = set(table.loc[table["value"].notna(), "figure"])
    notes = [text for figure, text in _EXPLAINED.items() if figure in figures]
    if table["best"].any():
        names = {ACCEPTANCE: "acceptance", SPEEDUP: "tokens/s"}
        further = " and ".join(name for figure, name in names.items() if figure in figures)
        same = f"; likewise for {further}, among methods with the best quality" if further else ""
        notes.append(
            "Best (* or bold): the highest quality, and every value whose paired 95 % interval of "
            f"the difference from it includes 0{same}. Methods that emit the target's distribution "
            "are one in quality."
        )
    if intervals and table["ci_low"].notna().any():
        notes.append("Brackets: 95 % intervals over prompts.")
    blocks = table[
        (table["figure"] == SPEEDUP) & table["ci_low"].notna() & (table["batch_size"] > 1)
    ]
    notes += [
        f"In batches, tokens/s / AR's is paired by block: {number} blocks of {size} prompts."
        for size, number in blocks.groupby("batch_size")["n"].max().items()
    ]
    if "published" in table and table["published"].notna().any():
        notes.append(
            f"{PAPER}: {REFERENCE}, 100 prompts per task, without intervals. It does not state w, "
            "l or the deferral rule, so all settings of a method are compared with one number. "
            f"{DIFFERENCE}: own minus {PAPER}."
        )
    return notes


def _section(rows: pd.DataFrame, intervals: bool, notes: list[str]) -> Table:
    several = rows.duplicated(["label", "task", "figure", "metric"]).any()
    fields: list[Field[_Record]] = [("method", lambda record: record[0][0])]
    if several:
        fields.append(("run", lambda record: record[0][1]))
    for task, of_task in rows.groupby("task", sort=False):
        for figure in FIGURES:
            of_figure = of_task[of_task["figure"] == figure]
            for metric, cells in of_figure.groupby("metric", sort=False):
                fields += _fields(cells, str(task), figure, str(metric), intervals)
    records: dict[Any, dict[Any, Any]] = {}
    for row in rows[[name for name in _SHOWN if name in rows]].to_dict("records"):
        names = row["label"], row["run_id"] if several else ""
        records.setdefault(names, {})[row["task"], row["figure"], row["metric"]] = row
    notes = [*(remarks(rows) if "published" in rows else []), *notes]
    return Table.of(records.items(), fields, _title(rows), notes, stub=1 + bool(several))


def _fields(
    cells: pd.DataFrame, task: str, figure: str, metric: str, intervals: bool
) -> Iterator[Field[_Record]]:
    """Yield one column, plus two with published numbers and differences; none without values."""
    if not cells["value"].notna().any():
        return
    form = "z.2f" if metric.startswith(_TWO_DECIMALS) else "z.1f"
    name = quality_heading(metric) or QUALITY if figure == QUALITY else shown(figure).narrow
    key = task, figure, metric

    def cell(row: dict[str, Any]) -> Cell:
        ends = [number(row[end], form) for end in ("ci_low", "ci_high") if intervals]
        interval = f"[{', '.join(ends)}]" if ends and all(ends) else ""
        return Cell(number(row["value"], form), interval, row["best"])

    yield Column(name, task), cell_at(key, cell)
    if "published" in cells and cells["published"].notna().any():
        for end, column, sign in ((PAPER, "published", ""), (DIFFERENCE, "difference", "+")):
            yield (
                Column(f"{name}\n{end}", task),
                cell_at(key, ShownFigure(column, end, form=sign + form).text),
            )


def _title(rows: pd.DataFrame) -> str:
    pair, temperature, length, engine, batch = rows[SECTION].iloc[0]
    prompts = rows.groupby(["run_id", "task", "label"])["n"].max()
    fewest, most = prompts.min(), prompts.max()
    counts = f"{most}" if fewest == most else f"{fewest} to {most}"
    scored = rows[(rows["figure"] == QUALITY) & rows["value"].notna()]["n"].min()
    parts = (
        *(f"Pair {pair}", f"T = {temperature:g}"),
        f"N = {length}" if length else "nothing drafted",
        "" if engine == EAGER else f"engine {engine}",
        "" if batch == 1 else f"batches of {batch}",
        f"{counts} prompt{'s' if most > 1 else ''} per task",
        f"quality of {scored} of them" if scored < fewest else "",
    )
    return ", ".join(filter(None, parts))
