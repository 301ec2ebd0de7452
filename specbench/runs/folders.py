"""Folders of runs and the tables in them, found without importing pandas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from specbench.errors import UsageError, meant
from specbench.files import find_stored, require_plain, stored
from specbench.plugins import short_name

#: The table of samples that were decoded again for their times only.
TIMINGS = "timings.csv"
#: The name of a run that is in several folders, each with some of its prompts, and its digits.
SHARDS, DIGEST_LENGTH = "shards-", 8
_OF_SHARDS = re.compile(rf"{SHARDS}[0-9a-f]{{{DIGEST_LENGTH}}}")


def is_sharded(run_id: str) -> bool:
    """Return whether a run's name is one that shards share."""
    return _OF_SHARDS.fullmatch(run_id) is not None


def require_folders(paths: Iterable[Path]) -> None:
    """Raise ``UsageError`` if a path is not a folder."""
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"no folder {path}: give a run folder, or a folder with runs")


def run_folders(paths: Sequence[Path | str], *names: str) -> list[Path]:
    """Return the absolute folders of the runs that have one of the files, without duplicates.

    ``paths`` are folders of runs, or folders that contain them.

    Raises:
        UsageError: ``paths`` is empty, or a path has no such file in it or one level below.
    """
    if not paths:
        raise UsageError("no run was given: name at least one folder under results/")
    folders_given = [folder for path in paths for folder in _runs_in(Path(path).resolve(), names)]
    folders = list(dict.fromkeys(folders_given))
    for folder in folders:
        require_plain(folder)
    return folders


def _runs_in(path: Path, names: Sequence[str]) -> Sequence[Path]:
    if any(stored(path / name).exists() for name in names):
        return (path,)
    require_folders([path])
    if runs := {file.parent for name in names for file in find_stored(path, name)}:
        return sorted(runs)
    raise UsageError(lacks(path, names[0]))


def require_in_runs(column: str, values: Iterable[object], present: Sequence[str]) -> None:
    """Refuse values of a column that no cell of the runs has; rules may be given as in labels."""
    for value in map(str, values):
        if value not in {*present, *map(short_name, present)}:
            name = column.replace("_", " ")
            raise UsageError(f"these runs have no {name} {value}: {meant(value, present)}")


def lacks(folder: Path, name: str) -> str:
    """Return the error message for a file that is missing from a folder."""
    files = ("samples.csv", "summary.csv", "config.json")
    present = [file for file in files if stored(folder / file).exists()]
    if present == ["config.json"] and stored(folder / "samples.jsonl").exists():
        return f"{folder} is unfinished: repeat its command with --output {folder} to resume it"
    if present:
        return f"{folder} is a run without its {name}: put that file there, or measure it again"
    return f"{folder} holds no {name}: give the folder of a finished run"
