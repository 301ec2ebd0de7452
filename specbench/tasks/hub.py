"""Rows of the hub's data sets. Its library is imported when the first is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.errors import RunError
from specbench.tasks.rows import Row

GIT_HASH = 40  # hexadecimal digits


class HubRows(Sequence[Row]):
    """Rows of a loaded data set, read from its file as they are asked for."""

    def __init__(self, table: Any, where: str) -> None:
        self.table, self.where = table, where

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        return Row(f"{self.where}: row {index + 1}", self.table[index])


def load_table(
    repository: str, config: str | None, revision: str | None, split: str, offline: bool
) -> Any:
    """Load a split of a data set, from the hub or its cache; returns the library's ``Dataset``.

    Args:
        repository: The hub's data set.
        config: Its configuration, where it has several.
        revision: Branch, tag or commit.
        split: Name of the split.
        offline: Take nothing but what the cache holds.

    Raises:
        RunError: It cannot be loaded.
    """
    if offline:
        # Read once, when the hub's library is imported.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    from datasets import load_dataset
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # what finally fails comes back as an error, and that is told in one line
    try:
        return load_dataset(repository, config, split=split, revision=revision)
    except Exception as error:  # the library raises its own, httpx's, pyarrow's and Python's
        first = (str(error) or type(error).__name__).strip().partition("\n")[0].rstrip(".")
        if offline:
            what, advice = "is not in the cache", "run once without --offline"
        else:
            what, advice = "cannot be loaded from the hub", "try --offline if it once was"
        raise RunError(
            f"{repository} ({split}) {what} ({first}): {advice}, or "
            "give local files with --data DIR"
        ) from error


def commit_of(table: Any) -> str | None:
    """Return the commit a table was loaded from: its cache's folder is called after it."""
    files = table.cache_files
    name = Path(files[0]["filename"]).parent.name if files else ""
    whole = len(name) == GIT_HASH and set(name) <= set("0123456789abcdef")
    return name if whole else None
