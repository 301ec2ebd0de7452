"""A data set as a source of examples: from local files, the hub, or the hub's cache."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.tasks.form import Form
from specbench.tasks.hub import GIT_HASH, HubRows, commit_of, load_table
from specbench.tasks.rows import GZIP, Row, read_rows, require_columns

SUFFIXES = (".jsonl", ".csv", ".parquet")
HELD_OUT_SHARE = 10  # one training row in ten is held out


@dataclass(frozen=True)
class Sourcing:
    """How the user wants data to be had.

    Attributes:
        folder: Local files, as ``TASK/SPLIT.jsonl``, ``.csv`` or ``.parquet``, or one of them
            ``.gz``, with the data set's own columns; None asks the hub.
        offline: Take nothing but what the hub's cache holds.
        revision: Branch, tag or commit of the hub's data set; None takes the task file's.
        shots: Worked examples before each prompt; None takes the task file's number.

    Raises:
        UsageError: A negative number of shots, or a revision of local files.
    """

    folder: Path | None = None
    offline: bool = False
    revision: str | None = None
    shots: int | None = None

    def __post_init__(self) -> None:
        if self.shots is not None and self.shots < 0:
            raise UsageError(f"--shots must be 0 or more, not {self.shots}")
        if self.folder is not None and self.revision is not None:
            raise UsageError(
                "--data-revision is of the hub, whose place --data takes: give one of the two"
            )


@dataclass(frozen=True)
class Dataset:
    """Examples of a hub's data set, or of local files in its place.

    Nothing is read before the first examples are asked for.

    Attributes:
        task: Name of the task, which is that of its folder of local files.
        repository: The hub's data set.
        config: Its configuration, where it has several.
        revision: Branch, tag or commit.
        test: Name of the test split.
        train: Name of the training split, where there is one.
        form: How a row becomes an example.
        shots: Worked examples before each prompt.
        folder: Local files in the hub's place.
        offline: Take nothing but what the hub's cache holds.
    """

    task: str
    repository: str
    config: str | None
    revision: str | None
    test: str
    train: str | None
    form: Form
    shots: int = 0
    folder: Path | None = None
    offline: bool = False
    _read: dict[str, Sequence[Row]] = field(default_factory=dict, repr=False, compare=False)
    _facts: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def generator(self) -> None:
        """A data set is no generator."""
        return None

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
        before = [self.form.shot(self._rows(self._training())[index]) for index in shots]
        # Of a held-out example too, the name says which row of the training split it is.
        name = "test" if split == "test" else "train"
        chosen = [self._example(rows[i], f"{name}-{i}", before) for i in order[:limit]]
        _require_unique(chosen, self.task)
        return chosen

    def provenance(self) -> dict[str, Any]:
        """Return where the examples come from, in plain values; a split once it has been read."""
        return {
            "dataset": self.repository,
            "config": self.config,
            "revision": self.revision if self.folder is None else None,
            "shots": self.shots,
            "splits": dict(self._facts),
        }

    def _example(self, row: Row, name: str, shots: Sequence[str]) -> Example:
        example = self.form.example(row, name)
        return replace(example, prompt="\n\n".join((*shots, example.prompt)))

    def _shots(self, seed: int) -> list[int]:
        """Rows of the training split that go before the prompts of a seed; never held-out ones."""
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
        file = read_rows(folder / found[0], SUFFIXES, "data file", self.form.columns)
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
        outer = [name if name in names else name.partition(".")[0] for name in self.form.columns]
        require_columns(dict.fromkeys(names), outer, where)
        return HubRows(table, where), {"commit": commit}


def _order(split: str, rows: int, left_out: Collection[int] = ()) -> list[int]:
    """Return the rows of a split in the order of their file.

    A fixed tenth of the training rows, chosen by their number alone, is held out.
    """
    if split == "test":
        return list(range(rows))
    share = max(1, rows // HELD_OUT_SHARE)
    held_out = set(random.Random("held-out").sample(range(rows), share))
    if split == "held-out":
        return sorted(held_out)
    return [i for i in range(rows) if i not in held_out and i not in left_out]


def _require_unique(examples: Sequence[Example], task: str) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise UsageError(
                f"{task} has two examples called `{example.id}`: let `example.id` name a column "
                "that differs in every row"
            )
        seen.add(example.id)
