"""The tables of finished runs as typed data frames.

``SAMPLES`` and ``SUMMARY`` are the two schemas: column name to the Python type of its values, in
the order of the columns on disk. Numbers that may be blank are floats, with NaN for blank. A table
of samples may have columns of ``MEASURED`` after those of ``SAMPLES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from specbench.errors import UsageError
from specbench.metrics import METRICS

PARAMETERS = ("weight", "lenience", "rule", "alpha", "head")
#: What makes two samples comparable enough to be averaged: all but the prompt, seed and repeat.
CELL = (
    *("run_id", "pair", "task", "method", *PARAMETERS, "temperature", "draft_length"),
    *("engine", "batch_size"),
)

_CELL_TYPES: dict[str, type] = {
    "run_id": str,
    "pair": str,
    "task": str,
    "method": str,
    "weight": float,
    "lenience": float,
    "rule": str,
    "alpha": float,
    "head": str,
    "temperature": float,
    "draft_length": int,
    "engine": str,
    "batch_size": int,
}

SAMPLES: dict[str, type] = {
    **_CELL_TYPES,
    "seed": int,
    "repeat": int,
    "sample_id": str,
    "quality_metric": str,
    "quality": float,
    "prompt_tokens": int,
    "output_tokens": int,
    "rounds": int,
    "proposed": int,
    "accepted": float,
    "draft_acceptance_rate": float,
    "acceptance_length": float,
    "expected_acceptance": float,
    "mean_weight": float,
    "prefill_seconds": float,
    "decode_seconds": float,
    "draft_seconds": float,
    "verify_seconds": float,
    "accept_seconds": float,
    "latency_seconds": float,
    "tokens_per_second": float,
    "stopped_by": str,
}

SUMMARY: dict[str, type] = {
    **_CELL_TYPES,
    "metric": str,
    "value": float,
    "ci_low": float,
    "ci_high": float,
    "n": int,
    "unit": str,
}

#: The terms of corpus BLEU of a sample, ten whole numbers with spaces between.
BLEU_TERMS = "bleu_terms"
#: What may have been measured of samples beyond their quality: other metrics, by their names.
MEASURED: dict[str, type] = {**dict.fromkeys(METRICS, float), BLEU_TERMS: str}

#: What columns mean where a table of an earlier version lacks them.
ADDED: dict[str, object] = {
    "engine": "eager",
    "batch_size": 1,
    "draft_seconds": None,
    "verify_seconds": None,
    "accept_seconds": None,
    "latency_seconds": None,
}

#: Columns that are blank where they do not apply to a method, a task or a sample.
MAY_BE_BLANK = frozenset(
    {
        *PARAMETERS,
        *MEASURED,
        "quality_metric",
        "quality",
        "accepted",
        "draft_acceptance_rate",
        "acceptance_length",
        "expected_acceptance",
        "mean_weight",
        "draft_seconds",
        "verify_seconds",
        "accept_seconds",
        "latency_seconds",
        "tokens_per_second",
        "value",
        "ci_low",
        "ci_high",
        "unit",
    }
)


def read_samples(*folders: Path | str) -> pd.DataFrame:
    """Read ``samples.csv`` of one or several run folders: one row per sample.

    Returns:
        Columns ``SAMPLES``, then those of ``MEASURED`` that any of the tables has.

    Raises:
        UsageError: A folder or its table is missing, empty, incomplete or not readable, or two
            folders hold the same run.
    """
    return _read_runs(folders, "samples.csv", SAMPLES, MEASURED)


def read_summary(*folders: Path | str) -> pd.DataFrame:
    """Read ``summary.csv`` of one or several run folders: one row per cell and metric.

    Raises:
        UsageError: As for ``read_samples``.
    """
    return _read_runs(folders, "summary.csv", SUMMARY)


def typed(frame: pd.DataFrame, schema: Mapping[str, type], source: object) -> pd.DataFrame:
    """Keep the columns of ``schema``, in its order, each converted to its type.

    Args:
        frame: A table whose values may all be text, as read from a CSV file.
        schema: Column name to ``str``, ``int`` or ``float``.
        source: Where the table came from, named in errors.

    Raises:
        UsageError: A column is missing, or a value is blank or of the wrong type.
    """
    frame = frame.assign(**{n: v for n, v in ADDED.items() if n in schema and n not in frame})
    missing = [name for name in schema if name not in frame]
    if missing:
        raise UsageError(
            f"{source} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            "it was not written by this version of specbench: run again."
        )
    return pd.DataFrame(
        {name: _typed_column(frame[name], kind, source) for name, kind in schema.items()}
    )


def _read_runs(
    folders: tuple[Path | str, ...],
    name: str,
    schema: Mapping[str, type],
    optional: Mapping[str, type] = MappingProxyType({}),
) -> pd.DataFrame:
    if not folders:
        raise UsageError("No run was given; name at least one folder under results/.")
    owner: dict[str, Path] = {}
    frames = []
    for folder in dict.fromkeys(Path(folder).resolve() for folder in folders):
        found = _read_csv(folder, name)
        present = {column: kind for column, kind in optional.items() if column in found}
        frame = typed(found, {**schema, **present}, folder / name)
        for run in frame["run_id"].unique():
            if owner.setdefault(run, folder) != folder:
                raise UsageError(
                    f"{owner[run]} and {folder} both hold run {run}; give only one of them."
                )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _read_csv(folder: Path, name: str) -> pd.DataFrame:
    path = folder / name
    try:
        if not folder.is_dir():
            raise UsageError(f"There is no folder {folder}; give the folder of a finished run.")
        if not path.is_file():
            raise UsageError(f"{folder} holds no {name}; give the folder of a finished run.")
        # Text first: a sample may be called NA or 007, and a bad number gets a telling error.
        frame = pd.read_csv(path, dtype="str", keep_default_na=False, na_values=[""])
    except pd.errors.EmptyDataError:
        raise UsageError(f"{path} is empty; run again or give another folder.") from None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is not a readable CSV file ({reason}); run again.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check permissions.") from error
    if frame.empty:
        raise UsageError(f"{path} has no rows; run again or give another folder.")
    return frame


def _typed_column(column: pd.Series, kind: type, source: object) -> pd.Series:
    blank = column.isna()
    if column.name not in MAY_BE_BLANK:
        _require(~blank, column, source, "is blank")
    if kind is str:
        return column.astype("str").mask(blank)
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    _require(numbers.notna() | blank, column, source, "is not a number")
    if kind is float:
        return numbers
    _require(numbers % 1 == 0, column, source, "is not a whole number")
    return numbers.astype("int64")


def _require(good: pd.Series, column: pd.Series, source: object, complaint: str) -> None:
    """Raise with the first row, counted from 1 below the header, at which ``good`` is false."""
    if good.all():
        return
    row = int((~good).to_numpy().argmax())
    value = column.iloc[row]
    shown = "" if pd.isna(value) else f" ({value!r})"
    raise UsageError(
        f"{source}: {column.name}{shown} in data row {row + 1} {complaint}; run again."
    )
