"""The main table of a user's runs, laid out like the paper's: methods down, tasks across.

``main_table`` returns it in long form, one row per method, task and figure; ``typeset`` formats it.
Beside each method's own figures stand those of its verdict: quality and speed relative to ``sd``,
and quality above mixtures of static weights.

The highest value of a section, task and metric is marked as best, and so is every value whose
paired interval of the difference from it includes 0. Methods that emit the target's own
distribution have one quality, that of all their texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.estimates import (
    ABOVE,
    ACCEPTANCE_LESS,
    QUALITY,
    QUALITY_LESS,
    SPEED,
    TIMES,
    contrast,
)
from specbench.analysis.statistics.intervals import Floats, estimate, mean_over_seeds
from specbench.analysis.statistics.points import Setting, scored_alike, shared_points, timed_points
from specbench.analysis.statistics.summary import (
    ACCEPTANCE,
    SPEEDUP,
    baseline_of,
    without_shared_times,
)
from specbench.analysis.tables.published import REFERENCE, remarks
from specbench.analysis.tables.shown import PHASES, ShownFigure, shown, span, temperature_text
from specbench.analysis.tables.table import (
    Column,
    Field,
    Table,
    TableCell,
    between,
    cell_at,
    number,
)
from specbench.analysis.verdicts.contrasts import FRONT, OWN, SAME_DRAFTER, SD, TASK_RUN
from specbench.analysis.verdicts.words import (
    NOISE,
    UNSHOWN,
    front_outcome,
    resolution,
    sign,
    sign_of_speed,
    speed_of,
)
from specbench.config import EAGER
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE, METHOD_COLUMNS
from specbench.runs.frames import CELL, in_order, rows_of
from specbench.runs.labels import SERVERS, method_labels, recipe_of
from specbench.tasks.metrics import shown_metric

COMPARED = (ACCEPTANCE, QUALITY, SPEEDUP)  # of which the best is marked
OWN_FIGURES = (*COMPARED, *PHASES)
#: In the order of the table's columns.
FIGURES = (ACCEPTANCE, QUALITY, QUALITY_LESS, ABOVE, SPEEDUP, TIMES, SPEED, *PHASES)
#: The columns that identify one table; the others become its rows and columns.
SECTION = ["pair", "temperature", "draft_length", "engine", "batch_size"]
METHOD = [*METHOD_COLUMNS, "drafter"]
COLUMNS = [
    *(*SECTION, "run_id", *METHOD, "label", "task"),
    *("figure", "metric", "unit", "value", "ci_low", "ci_high", "least", "n", "best", "verdict"),
]
PAPER, DIFFERENCE = "paper", "diff"

_UNITS = {
    QUALITY: "0 to 100",
    **dict.fromkeys((SPEEDUP, TIMES, SPEED), "x"),
    **dict.fromkeys((ACCEPTANCE, *PHASES), "%"),
    **dict.fromkeys((QUALITY_LESS, ABOVE), "points"),
}
_SCALED = ["value", "ci_low", "ci_high"]
_ROUNDING = 1e-9  # tolerance between equal figures
_TWO_DECIMALS = ("rouge", "bleu", SPEEDUP, TIMES, SPEED)  # others have one decimal
_EXPLAINED = {
    ACCEPTANCE: "acc. / drafted: accepted over drafted tokens, in %.",
    SPEEDUP: "tok/s / AR: tokens/s over those of autoregressive.",
    TIMES: "samples/s / sd: over those of sd.",
    SPEED: "tok/s / sd: over those of sd, of texts in batches.",
    QUALITY_LESS: "- sd: minus the quality of all texts of sd and autoregressive, in points.",
    ABOVE: "- mix: minus that of the best mixture of static weights at the same acceptance.",
    PHASES[0]: "inside: of rounds that began between the marks of --inside, in older runs.",
}
_BEST = "* or bold: the best quality, and what is not shown to differ from it"
_HEADINGS = {
    **{QUALITY_LESS: "- sd", ABOVE: "- mix"},
    **{TIMES: "samples/s\n/ sd", SPEED: "tok/s\n/ sd"},
}
_OPEN = (UNSHOWN, NOISE)
_OPEN_NOTE = "In parentheses: no difference shown, or none beyond the noise of times."
_SHOWN = ["label", "run_id", "task", "figure", "metric", *_SCALED, "least"]
_SHOWN += ["best", "verdict", "published", "difference"]

_Record = tuple[Any, dict[Any, Any]]  # (method, run) and their rows by column


def main_table(
    summary: pd.DataFrame, samples: pd.DataFrame, comparison: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the table with columns ``COLUMNS``: a row per section, run, method, task and figure.

    Values are scaled for display: acceptance in per cent, quality times its metric's scale,
    speed-up as a factor. ``metric`` is the task's metric for quality and otherwise the figure
    itself. Autoregressive drafts nothing, so it appears in the section of every draft length of its
    task, pair, temperature, engine and batch size.

    Heads that differ in the seed of their training alone have a further row: their mean, with
    seeds and prompts as random effects. It does not compete.
    All other methods compete for the best quality. Only methods whose quality is marked as best
    compete for acceptance and speed-up, since bad texts can reach any acceptance or speed-up.
    ``samples`` are those of the summary's runs. With their ``comparison``, there are rows of its
    verdicts, each with a word of ``verdicts``.
    """
    contest = Contest(samples)
    rows = without_shared_times(summary[summary["metric"].isin(OWN_FIGURES)])
    rows = rows.rename(columns={"metric": "figure"})
    rows = rows.merge(contest.cells, on=list(CELL), how="left").astype({"cell": "Int64"})
    metric = rows["unit"].where(rows["figure"] == QUALITY, rows["figure"]).fillna("")
    scales = {name: shown_metric(name)[1] for name in metric[rows["figure"] == QUALITY]}
    percentages = dict.fromkeys((ACCEPTANCE, *PHASES), 100.0)
    scale = metric.map(scales | percentages).fillna(1.0)
    scaled = {name: rows[name] * scale for name in _SCALED}
    rows = rows.assign(metric=metric, unit=rows["figure"].map(_UNITS), scale=scale, **scaled)
    # Methods without drafts are in every matching section.
    drafted, alone = rows[rows["draft_length"] > 0], rows[rows["draft_length"] == 0]
    shared = [name for name in (*SECTION, "task") if name != "draft_length"]
    alone = alone.drop(columns="draft_length")
    alone = alone.merge(drafted[[*SECTION, "task"]].drop_duplicates(), on=shared, how="left")
    alone["draft_length"] = alone["draft_length"].fillna(0).astype("int64")
    sections = pd.concat([alone, drafted], ignore_index=True)
    sections = sections.assign(seeds=1, verdict=None, least=np.nan)
    means = _means_over_seeds(sections, contest)
    verdicts = _verdicts(comparison) if comparison is not None and len(comparison) else ()
    judged = pd.DataFrame(verdicts, columns=[*sections]).astype({"cell": "Int64"})
    table = pd.concat([sections, *means, judged], ignore_index=True)
    # By section, method in the order of the registry, and parameters; the sort is stable.
    ordered = in_order(table)
    section = table.groupby(SECTION, sort=False, dropna=False).ngroup()[ordered.index]
    table = ordered.loc[section.sort_values(kind="stable").index].reset_index(drop=True)
    labels = pd.Series("", index=table.index)
    for _, section in table.groupby(SECTION, sort=False, dropna=False):  # with short names of heads
        cell = section.groupby(["task", *METHOD], sort=False, dropna=False).ngroup()
        cells = section[~cell.duplicated()]  # in the order of ngroup
        labels[section.index] = cell.map(dict(enumerate(method_labels(rows_of(cells)))))
    of_seeds = table["seeds"].map(lambda count: f", mean of {count} seeds" if count > 1 else "")
    # Which values are the best of their column, or not significantly different.
    marked = _highest(table, table["figure"] == QUALITY, contest)
    cell = [table[name] for name in (*SECTION, "cell")]
    compared = table["figure"].eq(SPEEDUP) & table["ci_low"].notna()
    compared |= table["figure"] == ACCEPTANCE
    compared &= marked.groupby(cell, dropna=False).transform("any")
    best = marked | _highest(table, compared, contest)
    return table.assign(label=labels + of_seeds, best=best)[COLUMNS]


class Contest:
    """Samples grouped by cell, for paired comparisons; ``cells`` numbers the cells."""

    def __init__(self, samples: pd.DataFrame) -> None:
        groups = samples.groupby(list(CELL), sort=False, dropna=False)
        self.settings = [Setting(rows) for _, rows in groups]
        self.cells = samples[list(CELL)].drop_duplicates().assign(cell=range(len(self.settings)))
        self._alone = {
            baseline_of(setting.cell): setting
            for setting in self.settings
            if setting.method == AUTOREGRESSIVE
        }

    def best(self, cells: Sequence[int], values: Floats, figure: str) -> list[bool]:
        """Return which cells [k] have the highest value [k] or do not differ from it significantly.

        A cell does not differ if the paired 95 % interval of its difference from the first cell
        with the highest value includes 0. Cells that share fewer than ``FEWEST`` prompts with it
        are not marked. The values are those of ``figure``; each lossless cell has the quality of
        all lossless cells together.
        """
        settings = [self.settings[cell] for cell in cells]
        if figure == QUALITY:
            if lossless := [setting.samples for setting in settings if setting.emits_target]:
                pooled = Setting(pd.concat(lossless))
                settings = [pooled if setting.emits_target else setting for setting in settings]
            values = np.array([setting.quality for setting in settings])
        highest = settings[int(np.argmax(values))]

        def differs_by_chance(setting: Setting) -> bool:
            try:
                if figure == QUALITY:
                    difference = contrast(setting.samples, highest.samples, QUALITY_LESS)
                else:
                    reached, n = self.of_figure([setting, highest], figure)
                    difference = estimate(reached[:, 0] - reached[:, 1], n)
            except UsageError:  # they share no prompt
                return False
            return difference.low <= _ROUNDING and difference.high >= -_ROUNDING

        return [*map(differs_by_chance, settings)]

    def of_figure(self, settings: list[Setting], figure: str) -> tuple[Floats, int]:
        """Return a figure [1 + RESAMPLES, settings] on the shared units, and their number."""
        if figure != SPEEDUP:
            reached = shared_points(scored_alike(settings)).estimates()
            metric = QUALITY_LESS if figure == QUALITY else ACCEPTANCE_LESS
            return reached.values(metric), reached.n
        alone = [self._alone[baseline_of(setting.cell)] for setting in settings]
        reached = timed_points([*settings, *alone]).estimates()
        speeds, base_speeds = np.split(reached.values(SPEED), 2, axis=1)
        return speeds / base_speeds, reached.n


def _means_over_seeds(rows: pd.DataFrame, contest: Contest) -> Iterator[pd.DataFrame]:
    """Yield a row for each figure of heads that differ in the seed of their training alone."""
    recipes = rows["head"].map(recipe_of, na_action="ignore")
    shared = [*SECTION, "run_id", "task", "figure", "metric"]
    shared += [name for name in METHOD if name != "head"]
    trained = rows[recipes.notna() & rows["value"].notna() & rows["cell"].notna()]
    trained = trained[trained["figure"].isin(COMPARED)]
    for keys, seeds in trained.groupby([recipes, *shared], sort=False, dropna=False):
        timed_together = seeds["figure"].iloc[0] != SPEEDUP or seeds["session"].nunique() == 1
        if len(seeds) > 1 and timed_together:
            first = seeds.iloc[[0]]
            heads = [contest.settings[cell] for cell in seeds["cell"].astype(int)]
            mean = mean_over_seeds(*contest.of_figure(heads, first["figure"].item()))
            hidden = seeds["ci_low"].isna().all()  # of times that texts share
            ends = (np.nan, np.nan) if hidden else (mean.low, mean.high)
            scaled = first["scale"].item() * np.array([mean.value, *ends])
            no_cell = pd.Series(pd.NA, first.index, dtype="Int64")
            row = first.assign(head=keys[0], cell=no_cell, seeds=len(seeds), n=mean.n)
            yield row.assign(**dict(zip(_SCALED, scaled, strict=True)))


def _verdicts(comparison: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of the verdicts on each method at one draft length."""
    alike = comparison[comparison["points"] == 1]
    beside_sd = (alike["against"] == SD) & (alike["at"] == OWN)
    beside_front = (alike["against"] == FRONT) & (alike["at"] == "acceptance")
    for row in estimates.pivot(alike[beside_sd | beside_front], *TASK_RUN, "against"):
        if row["against"] == FRONT:
            outcomes = {ABOVE: front_outcome(row)}
        else:
            speed = speed_of(row)
            outcomes = {QUALITY_LESS: sign(row, QUALITY_LESS)}
            outcomes[speed] = sign_of_speed(row, speed)
        row |= {"seeds": int(row["seeds"]) if row["seeds"] > 1 else 1, "cell": pd.NA}
        for figure, outcome in outcomes.items():
            scaled = shown(figure, row["quality_metric"]).scaled(row)
            facts = {"figure": figure, "metric": figure, "unit": _UNITS[figure], "verdict": outcome}
            if not np.isnan(scaled[0]):
                least = shown(figure, row["quality_metric"]).scale * row[f"{figure}_least"]
                yield row | facts | dict(zip(_SCALED, scaled, strict=True)) | {"least": least}


def _highest(table: pd.DataFrame, competing: pd.Series, contest: Contest) -> pd.Series:
    """Return which competing values are the best of their run; none if only one competes."""
    marked = pd.Series(False, table.index)
    column = [*SECTION, "run_id", "task", "figure", "metric"]
    among = table.groupby(column, dropna=False)["value"].transform("count") > 1
    rows = table[competing & among & table["value"].notna() & table["cell"].notna()]
    for (*_, figure, _), cells in rows.groupby(column, dropna=False):
        numbers = cells["cell"].astype(int).tolist()
        marked[cells.index] = contest.best(numbers, cells["value"].to_numpy(), figure)
    return marked


def typeset(table: pd.DataFrame, intervals: bool = False) -> list[Table]:
    """Return a readable table of each section of a main table, which may have published numbers."""
    notes = _notes(table, intervals)
    sections = table.groupby(SECTION, sort=False, dropna=False)
    return [_section(rows, intervals, notes) for _, rows in sections]


def _notes(table: pd.DataFrame, intervals: bool) -> list[str]:
    figures = set(table.loc[table["value"].notna(), "figure"])
    legend = [text for figure, text in _EXPLAINED.items() if figure in figures]
    if table["best"].any():
        names = {ACCEPTANCE: "acceptance", SPEEDUP: "tokens/s"}
        further = " and ".join(name for figure, name in names.items() if figure in figures)
        legend.append(f"{_BEST}; of {further}, among these." if further else f"{_BEST}.")
    legend += [_OPEN_NOTE] if table["verdict"].isin(_OPEN).any() else []
    legend += ["Brackets: 95 % intervals."] if intervals and table["ci_low"].notna().any() else []
    notes = [" ".join(legend)] if legend else []
    if table["drafter"].nunique() > 1 and {TIMES, SPEED} & figures:
        notes.append(SAME_DRAFTER)
    blocks = table[table["figure"].eq(SPEEDUP) & table["batch_size"].gt(1)].dropna(subset="ci_low")
    notes += [
        f"In batches, tok/s / AR is paired by block: {number} blocks of {size} prompts."
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
    for row in rows_of(rows[[name for name in _SHOWN if name in rows]]):
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
    name = _HEADINGS.get(figure) or shown(figure).abbreviation or shown(figure).narrow
    if figure == QUALITY:
        name = shown_metric(metric)[0].replace(" of 32 words", "-32") or QUALITY
    form = f"+{form}" if figure in (QUALITY_LESS, ABOVE) else form
    key = task, figure, metric

    def cell(row: dict[str, Any]) -> TableCell:
        ends = [number(row[end], form) for end in ("ci_low", "ci_high") if intervals]
        interval = f"[{', '.join(ends)}]" if ends and all(ends) else ""
        value = between(row["least"], row["value"], form)
        return TableCell(f"({value})" if row["verdict"] in _OPEN else value, interval, row["best"])

    yield Column(name, task), cell_at(key, cell)
    if "published" in cells and cells["published"].notna().any():
        for end, column, sign in ((PAPER, "published", ""), (DIFFERENCE, "difference", "+")):
            yield (
                Column(f"{name}\n{end}", task),
                cell_at(key, ShownFigure(column, end, form=sign + form).number),
            )


def _title(rows: pd.DataFrame) -> str:
    pair, temperature, length, engine, batch = rows[SECTION].iloc[0]
    prompts = rows.groupby(["run_id", "task", "label"])["n"].max()
    scored = rows[(rows["figure"] == QUALITY) & rows["value"].notna()]["n"].min()
    parts = (
        f"Pair {pair}",
        temperature_text(temperature),
        f"N = {length}" if length else "" if engine == SERVERS else "nothing drafted",
        "" if engine == EAGER else f"engine {engine}",
        "" if batch == 1 else f"batches of {batch}",
    )
    scores = rows[rows["figure"] == QUALITY_LESS]
    speeds = rows[rows["figure"].isin([TIMES, SPEED])]
    least = resolution(scores["ci_high"] - scores["ci_low"], speeds["ci_high"] / speeds["ci_low"])
    title = f"{', '.join(filter(None, parts))}: {span(prompts)} "
    title += f"prompt{'s' if prompts.max() > 1 else ''} per task"
    title += f" (quality of {scored})" if scored < prompts.min() else ""
    worst = " at worst" if scores["task"].nunique() > 1 else ""
    return f"{title} tell {least}{worst}" if least else title
