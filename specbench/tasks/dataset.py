"""A dataset as a source of examples: from local files, the hub, or the hub's cache."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.tasks.definition import RowTemplate, fill
from specbench.tasks.rows import GZIP, Row, read_rows, require_columns

SUFFIXES = (".jsonl", ".csv", ".parquet")
GIT_HASH = 40  # hexadecimal digits
HELD_OUT_SHARE = 10  # one training row in ten is held out


@dataclass(frozen=True)
class Dataset:
    """Examples of a dataset on the hub, or of local files; a split is read when first needed.

    ``task`` also names its folder of local files; ``shots`` are few-shot examples before a prompt.
    """

    task: str
    repository: str
    config: str | None
    revision: str | None
    test: str
    train: str | None
    template: RowTemplate
    shots: int = 0
    folder: Path | None = None
    offline: bool = False
    _read: dict[str, Sequence[Row]] = field(default_factory=dict, repr=False, compare=False)
    _facts: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    generator: ClassVar[None] = None

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return examples with their final prompts; see ``Task.examples``."""
        shots = self._shots(seed)
        rows = self._rows(self.test if split == "test" else self._training())
        order = _order(split, len(rows), shots)
        if not order:
            raise UsageError(
                f"{self.task} has no {split} examples left ({len(rows)} rows, {len(shots)} shots): "
                "give more rows, or fewer --shots"
            )
        if seed:
            random.Random(seed).shuffle(order)
        shot = self.template.shot or ""
        before = [fill(shot, self._rows(self._training())[index]) for index in shots]
        # Of a held-out example too, the name says which row of the training split it is.
        name = "test" if split == "test" else "train"
        chosen = [self.template.example(rows[i], f"{name}-{i}") for i in order[:limit]]
        for example, times in Counter(example.id for example in chosen).items():
            if times > 1:
                raise UsageError(
                    f"{self.task} has two examples called `{example}`: let `example.id` name a "
                    "column that differs in every row"
                )
        return [replace(e, prompt="\n\n".join((*before, e.prompt))) for e in chosen]

    def provenance(self) -> dict[str, Any]:
        """Return where the examples come from, in plain values; a split once it has been read."""
        return {
            "dataset": self.repository,
            "config": self.config,
            "revision": self.revision if self.folder is None else None,
            "shots": self.shots,
            "splits": dict(self._facts),
        }

    def _shots(self, seed: int) -> list[int]:
        """Rows of the training split before a seed's prompts; never held-out ones."""
        if not self.shots:
            return []
        possible = _order("train", len(self._rows(self._training())))
        if len(possible) < self.shots:
            raise UsageError(
                f"{self.task} has {len(possible)} training examples for {self.shots} shots: ask "
                "for fewer with --shots"
            )
        return random.Random(f"shots/{seed}").sample(possible, self.shots)

    def _training(self) -> str:
        if self.train is None:
            raise UsageError(
                f"{self.task} has no training split, which training and --shots need: choose a "
                "task that has one"
            )
        return self.train

    def _rows(self, split: str) -> Sequence[Row]:
        if split not in self._read:
            if self.folder is None:
                rows, facts = self._from_hub(split)
            else:
                rows, facts = self._from_files(self.folder / self.task, split)
            if not rows:
                raise UsageError(f"{self.task} has no rows in {split}: choose another split")
            self._read[split] = rows
            self._facts[split] = {**facts, "rows": len(rows)}
        return self._read[split]

    def _from_files(self, folder: Path, split: str) -> tuple[Sequence[Row], dict[str, Any]]:
        names = [f"{split}{suffix}{packed}" for suffix in SUFFIXES for packed in ("", GZIP)]
        found = [name for name in names if (folder / name).exists()]
        if not found:
            what = "training split" if split == self.train else "test split"
            raise UsageError(
                f"{self.task} has no {what} in {folder}: put {split}.jsonl, .csv or .parquet "
                "there, or choose another folder with --data"
            )
        if len(found) > 1:
            raise UsageError(f"{folder} holds both {found[0]} and {found[1]}: keep one of the two")
        file = read_rows(folder / found[0], SUFFIXES, "data file", self.template.columns)
        return file.rows, {"file": str(file.path), "sha256": file.sha256}

    def _from_hub(self, split: str) -> tuple[Sequence[Row], dict[str, Any]]:
        table = load_table(self.repository, self.config, self.revision, split, self.offline)
        commit, asked = commit_of(table), self.revision or ""
        # Where the hub does not answer, its library takes whatever commit it finds in its cache.
        if commit and len(asked) == GIT_HASH and asked != commit:
            raise RunError(
                f"{self.repository}: the cache holds {commit}, not {asked}: run once without "
                "--offline, or name that one"
            )
        where = f"{self.repository} {split}"
        names = table.column_names
        outer = [
            name if name in names else name.partition(".")[0] for name in self.template.columns
        ]
        require_columns(dict.fromkeys(names), outer, where)
        return HubRows(table, where), {"commit": commit}


def _order(split: str, rows: int, left_out: Collection[int] = ()) -> list[int]:
    """Return the rows of a split in order; a fixed tenth of the training rows is held out."""
    if split == "test":
        return list(range(rows))
    share = max(1, rows // HELD_OUT_SHARE)
    held_out = set(random.Random("held-out").sample(range(rows), share))
    if split == "held-out":
        return sorted(held_out)
    return [i for i in range(rows) if i not in held_out and i not in left_out]


class HubRows(Sequence[Row]):
    """Rows of a loaded dataset, read from its file when needed."""

    def __init__(self, table: Any, where: str) -> None:
        self.table, self.where = table, where

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        return Row(f"{self.where}: row {index + 1}", self.table[index])


def go_offline() -> None:
    """Keep the hub's libraries off the network; call it before they are imported."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")


def load_table(
    repository: str, config: str | None, revision: str | None, split: str, offline: bool
) -> Any:
    """Load a split of a dataset, from the hub or its cache, as the library's ``Dataset``."""
    if offline:
        go_offline()
    from datasets import load_dataset
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # errors are reported below, in one line
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
