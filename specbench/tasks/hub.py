"""Rows of the hub's data sets. Its library is imported when the first is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.errors import RunError, UsageError
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


def go_offline() -> None:
    """Let the hub's libraries use no network; they read this once, when they are imported."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")


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
        UsageError: It is not in the cache, and nothing else may be taken.
        RunError: It cannot be loaded from the hub.
    """
    if offline:
        go_offline()
    from datasets import load_dataset
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # what finally fails comes back as an error, and that is told in one line
    try:
        return load_dataset(repository, config, split=split, revision=revision)
    except Exception as error:  # the library raises its own, httpx's, pyarrow's and Python's
        first = (str(error) or type(error).__name__).strip().partition("\n")[0].rstrip(".")
        files = "or give local files with --data DIR"
        if offline:
            raise UsageError(
                f"{repository} ({split}) is not in the cache ({first}): run once without "
                f"--offline, {files}"
            ) from error
        raise RunError(
            f"{repository} ({split}) cannot be loaded from the hub ({first}): try --offline if it "
            f"once was, {files}"
        ) from error


def commit_of(table: Any) -> str | None:
    """Return the commit a table was loaded from: its cache's folder is called after it."""
    files = table.cache_files
    name = Path(files[0]["filename"]).parent.name if files else ""
    whole = len(name) == GIT_HASH and set(name) <= set("0123456789abcdef")
    return name if whole else None
