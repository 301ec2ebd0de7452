"""The tables of finished runs as typed data frames.

The schemas come from the data dictionary: they map each column name to the Python type of its
values, in the order on disk. Numbers that may be blank are floats, with NaN for blank. A table of
samples may have columns of ``MEASURED`` after those of ``SAMPLES``.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from specbench.errors import UsageError, shown
from specbench.files import PACKINGS, open_binary, open_text, stored
from specbench.methods.registry import METHODS
from specbench.plugins import short_name
from specbench.runs.columns import SAME_PROMPT, TIMED_AGAIN, CellColumns
from specbench.runs.records import TIMINGS, prompts_of
from specbench.runs.run import require_in_runs, run_folders
from specbench.runs.shards import by_name, is_sharded
from specbench.runs.tables import bounds, may_be_blank, schema

#: The columns that define a cell; its samples differ only in prompt, seed and repeat.
CELL = tuple(CellColumns.model_fields)
MOST_EXACT = 2**53  # the largest number; up to here float64 has every whole one
_EXAMPLE = ["run_id", "task", "sample_id"]  # what identifies an example
_ROW = [*CELL, "seed", "repeat", "sample_id", "turn", "timing", "metric"]  # what identifies a row

SAMPLES = schema("samples")
SUMMARY = schema("summary")
#: Optional columns of samples: further metrics, under their names.
MEASURED = schema("measured")

_LONGEST_HEADING = 2**20  # characters
_BOUNDS = bounds()

#: Columns that are blank if they do not apply to a method, task or sample.
MAY_BE_BLANK = may_be_blank("samples", "measured", "summary")


def read_samples(*paths: Path | str, timings: Collection[str] = ()) -> pd.DataFrame:
    """Read ``samples.csv`` of runs: one row per sample.

    ``paths`` are folders of runs, or folders that contain them. The columns are ``SAMPLES``, then
    those of ``MEASURED`` that any table has, then the scores of the user's own metrics. ``timings``
    adds the samples of ``timings.csv`` whose column ``timing`` has one of these values, with the
    quality of the first decode of the same text. Examples with the same prompt have one
    ``sample_id``, so that they count as one; their own id is in ``example``.

    Raises:
        UsageError: A folder or its table is missing, empty, incomplete or not readable, or a row is
            there twice, in one folder or in two that hold the same run.
    """
    folders = run_folders(paths, "samples.csv")
    timed = [folder for folder in folders if timings and stored(folder / TIMINGS).exists()]
    samples = _read_runs(folders, "samples.csv", SAMPLES, MEASURED, others=True)
    if timed:  # with the quality of the first decode
        repeated = _read_runs(timed, TIMINGS, SAMPLES, MEASURED)
        repeated = repeated[repeated["timing"].isin(timings)].drop(columns="quality")
        sample = [n for n in (*CELL, "seed", "repeat", "sample_id", "turn") if n != "session"]
        texts = ["quality", *(n for n in samples if n not in SAMPLES and n not in repeated)]
        repeated = repeated.merge(samples[[*sample, *texts]], on=sample)
        repeated = repeated.reindex(columns=[*samples.columns, "timing"])
        samples = pd.concat([samples, repeated], ignore_index=True)
    return _by_prompt(samples, folders)


def _by_prompt(samples: pd.DataFrame, folders: Sequence[Path]) -> pd.DataFrame:
    """Give examples that have the same prompt one ``sample_id``, and keep theirs as ``example``.

    The shards of a run know only their own examples, and an older run has no column for them.
    """
    first = {
        (run, *example): prompt
        for run, parts in by_name(folders).items()
        for example, prompt in prompts_of(*parts).items()
    }
    if SAME_PROMPT in samples:
        rows = samples.loc[samples[SAME_PROMPT].notna(), [*_EXAMPLE, SAME_PROMPT]]
        first = {row[:3]: row[3] for row in rows.itertuples(index=False, name=None)} | first
    if not first:
        return samples
    names = samples[_EXAMPLE].itertuples(index=False, name=None)
    prompts = [first.get(name, name[2]) for name in names]
    return samples.assign(example=samples["sample_id"], sample_id=prompts)


def example_ids(samples: pd.DataFrame) -> pd.Series:
    """Return the id of each sample's example, where ``sample_id`` may be that of its prompt."""
    return samples["example"] if "example" in samples else samples["sample_id"]


def first_decodes(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples without those of ``timings.csv``."""
    return samples[samples["timing"].isna()] if "timing" in samples else samples


def without_repeats(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples without those that were decoded again to measure timing noise."""
    return samples[samples["timing"] != TIMED_AGAIN] if "timing" in samples else samples


def read_summary(*paths: Path | str) -> pd.DataFrame:
    """Read ``summary.csv`` of runs: a row per cell and metric; raises as ``read_samples`` does."""
    return _read_runs(paths, "summary.csv", SUMMARY)


def folder_names(folders: Iterable[Path]) -> dict[str, str]:
    """Return the names of folders by those in their tables, for runs that were renamed since.

    Shards keep the name that they share, and so do runs whose folders have one name.
    """
    recorded = by_name(folders)
    names = {name: parts[0].name for name, parts in recorded.items() if not is_sharded(name)}
    often = Counter(names.values())
    return {
        name: folder
        for name, folder in names.items()
        if often[folder] == 1 and folder not in recorded
    }


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in the order of the bundled methods, then by parameter; servers come last."""
    parameters = ["weight", "lenience", "rule", "alpha"]
    rank = {name: index for index, name in enumerate(METHODS)}
    ranked = rows[parameters].assign(method=rows["method"].map(rank).fillna(len(rank)))
    ranked = ranked.reset_index(drop=True).sort_values(["method", *parameters], kind="stable")
    return rows.iloc[ranked.index]


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as plain values by column.

    The ``to_dict`` of pandas takes ten times as long for a frame with a hundred columns.
    """
    names = list(frame)
    return [dict(zip(names, row, strict=True)) for row in frame.to_numpy(object).tolist()]


def typed(
    frame: pd.DataFrame,
    schema: Mapping[str, type],
    source: object,
    may_be_blank: Collection[str] = MAY_BE_BLANK,
) -> pd.DataFrame:
    """Select the columns of ``schema``, in its order, and convert them from text to their types.

    Raises:
        UsageError: A column of ``source`` is missing, or a value is blank, of the wrong type or out
            of the bounds of its column.
    """
    require_columns(frame, schema, source)
    typed_columns = {
        name: _typed_column(frame[name], kind, source, name in may_be_blank)
        for name, kind in schema.items()
    }
    return pd.DataFrame(typed_columns, copy=False)


def require_columns(present: Iterable[str], needed: Iterable[str], source: object) -> None:
    """Raise ``UsageError`` if a column of ``source`` is missing."""
    if missing := sorted(set(needed) - set(present), key=[*needed].index):
        plural = "s" if len(missing) > 1 else ""
        raise UsageError(
            f"{source} lacks the column{plural} {shown(', '.join(missing))}; "
            "it was not written by this version of specbench: run again."
        )


def _read_runs(
    paths: Sequence[Path | str],
    name: str,
    needed: Mapping[str, type],
    optional: Mapping[str, type] = MappingProxyType({}),
    others: bool = False,
) -> pd.DataFrame:
    """Read a table of runs; ``others`` also reads unknown columns of numbers."""
    files = [stored(folder / name) for folder in run_folders(paths, name)]
    kinds: dict[str, type] = {**needed, **optional}
    names = dict.fromkeys(name for file in files for name in _heading(file)) if others else ()
    unknown = [name for name in names if name not in kinds]
    kinds |= dict.fromkeys(unknown, str)
    blank = MAY_BE_BLANK.union(kinds.keys() - needed)

    def read(kinds: Mapping[str, type]) -> list[pa.Table]:
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda file: _read_table(file, kinds, needed), files))

    def present(table: pa.Table) -> dict[str, type]:
        return {n: kind for n, kind in kinds.items() if n in table.column_names}

    try:
        tables = read(kinds)
        whole = pa.concat_tables(tables, promote_options="default")
        table = typed(whole.to_pandas(), present(whole), name, blank)
    except UsageError:  # texts locate the error
        tables = read(dict.fromkeys(kinds, str))
        located = zip(tables, files, strict=True)
        frames = [typed(t.to_pandas(), present(t), file, blank) for t, file in located]
        table = pd.concat(frames, ignore_index=True)
    for column in unknown:  # numbers, or left out
        texts = table.pop(column)
        numbers = pd.to_numeric(texts, errors="coerce").astype("float64")
        if numbers.notna().any() and (numbers.notna() == texts.notna()).all():
            table[column] = numbers
    _require_distinct(table, files, [*map(len, tables)])
    return table


def _require_distinct(table: pd.DataFrame, files: Sequence[Path], lengths: Sequence[int]) -> None:
    """Refuse a row that is there twice, and two folders with one run unless they are its shards."""
    file = pd.Series(np.repeat(np.arange(len(files)), lengths), table.index)
    repeated = table.filter(_ROW).assign(file=file).duplicated()
    if repeated.any():
        at = int(repeated.argmax())
        row = at - sum(lengths[: file[at]]) + 1
        raise UsageError(f"{files[file[at]]}: data row {row} repeats an earlier one; remove it.")
    several = file.groupby(table["run_id"]).transform("nunique") > 1
    rows = table[several].filter(_ROW)
    if len(rows := rows[rows.duplicated() | ~rows["run_id"].map(is_sharded).astype("bool")]):
        run = rows["run_id"].iloc[-1]
        first, *_, last = file[table["run_id"] == run].unique()
        raise UsageError(
            f"{files[first].parent} and {files[last].parent} both hold run {run}; "
            "give only one of them."
        )


def _read_table(path: Path, kinds: Mapping[str, type], needed: Collection[str]) -> pa.Table:
    """Read those columns of a table that have a type."""
    names = _heading(path)
    options = arrow_csv.ConvertOptions(
        column_types={n: pa.string() if k is str else pa.float64() for n, k in kinds.items()},
        include_columns=[name for name in names if name in kinds],
        null_values=[""],  # "NA" may be a name
        strings_can_be_null=True,
    )
    try:
        table = arrow_csv.read_csv(
            open_binary(path) if path.suffix in PACKINGS else path,
            read_options=arrow_csv.ReadOptions(use_threads=False),  # files are read in parallel
            convert_options=options,
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        )
    except ValueError as error:
        if "Empty CSV file" in str(error):
            lack = "has no rows" if names else "is empty"
            raise UsageError(f"{path} {lack}; run again or give another folder.") from None
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is not a readable CSV file ({reason}); run again.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{path} cannot be read: {reason}; check permissions.") from error
    if not len(table):
        raise UsageError(f"{path} has no rows; run again or give another folder.")
    require_columns(table.column_names, needed, path)
    return table


def _heading(path: Path) -> list[str]:
    """Return the column names of a table; none if it cannot be read."""
    try:
        with open_text(path) as file:
            heading = file.readline(_LONGEST_HEADING)
        if len(heading) == _LONGEST_HEADING:
            raise UsageError(f"{path} has a heading of over {len(heading):,} characters: remove it")
        return next(csv.reader([heading]), [])
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a readable CSV file in UTF-8; save it as such.") from error
    except (OSError, csv.Error):
        return []


def _typed_column(column: pd.Series, kind: type, source: object, may_be_blank: bool) -> pd.Series:
    low, high = _BOUNDS.get(str(column.name), (-MOST_EXACT, MOST_EXACT))
    blank = column.isna().to_numpy()

    def require(good: NDArray[np.bool_], complaint: str) -> None:
        """Raise for the first row that is not ``good``; rows count from 1 below the header."""
        if not good.all():
            row = int((~good).argmax())
            printed = "" if blank[row] else f" ({column.iloc[row]!r})"
            location = f"{source}: {column.name}{printed} in data row {row + 1}"
            raise UsageError(f"{location} {complaint}; run again.")

    if not may_be_blank:
        require(~blank, "is blank")
    if kind is str:
        return column.astype("str").mask(blank) if blank.any() else column.astype("str")
    numbers = pd.to_numeric(column, errors="coerce").to_numpy("float64")
    require(np.isfinite(numbers) | blank, "is not a finite number")
    if kind is int:
        require(numbers % 1 == 0, "is not a whole number")
    within = (low <= numbers) & (numbers <= high)
    require(within | blank, f"is not from {low:g} to {high:g}")
    return pd.Series(numbers.astype("int64" if kind is int else "float64"), column.index)


@dataclass(frozen=True)
class Selection:
    """A selection of rows of run tables; None selects all.

    A method includes all its parameters. Methods that draft nothing match every draft length and
    drafter. ``by`` splits every task by columns of its samples: the task ``questions`` becomes
    ``questions/writing``, ``questions/math``, ... A task can then be selected under both names.
    """

    tasks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    draft_lengths: Sequence[int] | None = None
    drafters: Sequence[str] | None = None
    by: Sequence[str] = ()

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the selected rows of a table; raise for names and lengths it does not contain."""
        whole = table["task"]
        table = self._split(table)
        selected = np.ones(len(table), dtype=np.bool_)
        for column, names in self._chosen():
            values = pd.concat([table["task"], whole]) if column == "task" else table[column]
            present = [str(value) for value in values.dropna().unique() if value != 0]
            if column == "method":  # a rule of the user's own may be given as in labels
                full = {short_name(name): name for name in present}
                names = [full.get(name, name) for name in names]
            require_in_runs(column, names, present)
            alike = table[column].isin(names)
            if column == "task":
                alike |= whole.isin(names)
            if column in ("draft_length", "drafter"):
                alike |= ~(table["draft_length"] > 0)
            selected &= alike.to_numpy()
        if len(table) and not selected.any():
            raise UsageError(f"these runs have no sample with {self}: choose fewer at once")
        return table if selected.all() else table[selected].reset_index(drop=True)

    def whole_tasks(self, names: Iterable[str]) -> Selection:
        """Return a selection of those tasks, of some, that are selected whole or in part."""
        if self.tasks is None:
            return Selection()
        selected = [f"{name}/" for name in self.tasks]
        whole = [name for name in names if any(s.startswith(f"{name}/") for s in selected)]
        return Selection(tasks=whole)

    def _split(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the values of the columns ``by`` to the names of the tasks."""
        names = table["task"]
        for column in self.by:
            values = table[column]
            if values.isna().all():
                raise UsageError(f"these runs have no {column}: omit --by {column}")
            texts = values.map(lambda value: f"turn {value:.0f}") if column == "turn" else values
            names = names.mask(values.notna(), names + "/" + texts.astype("str"))
        return table.assign(task=names) if self.by else table

    def __str__(self) -> str:
        return " ".join(self.arguments())

    def arguments(self) -> list[str]:
        """Return the selection as arguments of a command."""
        chosen = [*self._chosen(), *([("by", self.by)] if self.by else [])]
        options = ((f"--{column.replace('_', '-')}", names) for column, names in chosen)
        return [text for option, names in options for text in (option, ",".join(map(str, names)))]

    def _chosen(self) -> Iterator[tuple[str, Sequence[Any]]]:
        columns = {"task": self.tasks, "method": self.methods, "draft_length": self.draft_lengths}
        columns["drafter"] = self.drafters
        return ((column, names) for column, names in columns.items() if names is not None)
