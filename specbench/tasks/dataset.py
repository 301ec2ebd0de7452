"""Examples from a dataset: in local files, on the hub, or in the hub's cache."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from specbench.config import Options, option
from specbench.errors import RunError, UsageError, first_line, listed, require
from specbench.files import PACKINGS, shown_path
from specbench.tasks.definition import Definition, fill
from specbench.tasks.example import Example
from specbench.tasks.rows import Row, plain_name, read_rows, require_columns

SUFFIXES = (".jsonl", ".csv", ".parquet")
GIT_COMMIT = re.compile(r"[0-9a-f]{40}")
HELD_OUT_SHARE = 10  # one training row in ten is held out


class _Split(NamedTuple):
    rows: Sequence[Row]
    origin: dict[str, Any]  # recorded in `config.json`


class DataOptions(Options):
    """Where examples come from."""

    panel = "Data"

    folder: Path | None = option(
        None,
        "Read FOLDER/TASK/SPLIT.jsonl (.csv, .parquet, .gz), and not the hub.",
        flags=("--data",),
        metavar="FOLDER",
    )
    offline: bool = option(False, "Use only files that are already here; never access the network.")
    shots: int | None = option(
        None, "Few-shot examples before each prompt.", ge=0, metavar="K", shown="the task's own"
    )


@dataclass(frozen=True)
class Dataset:
    """Examples of a dataset on the hub or in local files; splits are read on first use."""

    definition: Definition
    options: DataOptions
    path: Path = Path()  # the task file
    _read: dict[str, _Split] = field(default_factory=dict, repr=False, compare=False)

    @property
    def repository(self) -> str:
        """Name on the hub; empty for local files."""
        return self.definition.source.dataset or ""

    @property
    def shots(self) -> int:
        """Few-shot examples before a prompt."""
        default, requested = self.definition.prompt.shots, self.options.shots
        return default if requested is None else requested

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return examples with their final prompts; see ``Task.examples``."""
        task, shots = self.definition, self._shots(seed)
        test = task.source.test or ""  # present, see `SourceTable`
        rows = self._rows(test if split == "test" else self._training())
        order = _order(split, len(rows), shots)
        if not order:
            raise UsageError(
                f"{task.name} has no {split} examples left ({len(rows)} rows, {len(shots)} shots): "
                "give more rows, or fewer --shots"
            )
        if seed:
            random.Random(seed).shuffle(order)
        shot = task.prompt.shot or ""
        before = [fill(shot, self._rows(self._training())[index]) for index in shots]
        # Held-out examples are named after their row in the training split, too.
        name = "test" if split == "test" else "train"
        chosen = [task.make_example(rows[i], f"{name}-{i}") for i in order[:limit]]
        for example, times in Counter(example.id for example in chosen).items():
            if times > 1:
                raise UsageError(
                    f"{task.name} has two examples named `{example}`: set `example.id` to a column "
                    "with unique values"
                )
        return [replace(e, prompt="\n\n".join((*before, e.prompt))) for e in chosen]

    def provenance(self) -> dict[str, Any]:
        """Return plain values on the source of the examples, with the splits read so far."""
        source = self.definition.source
        return {
            "dataset": source.dataset,
            "config": source.config,
            "revision": source.revision if self.options.folder is None else None,
            "shots": self.shots,
            "splits": {name: split.origin for name, split in self._read.items()},
        }

    def _shots(self, seed: int) -> list[int]:
        """Rows of the training split, not held out, for a seed's few-shot examples."""
        if not self.shots:
            return []
        possible = _order("train", len(self._rows(self._training())))
        if len(possible) < self.shots:
            raise UsageError(
                f"{self.definition.name} has {len(possible)} training examples for {self.shots} "
                "shots: give fewer --shots"
            )
        return random.Random(f"shots/{seed}").sample(possible, self.shots)

    def _training(self) -> str:
        if self.definition.source.train is None:
            raise UsageError(
                f"{self.definition.name} has no training split, which training and --shots need: "
                "choose a task with one"
            )
        return self.definition.source.train

    def _rows(self, split: str) -> Sequence[Row]:
        if split not in self._read:
            folder, task = self.options.folder, self.definition
            if folder is not None:
                rows, origin = self._from(folder / task.name, split, "--data")
            elif task.source.dataset is None:
                rows, origin = self._from(self.path.parent, split, f"`source` in {self.path}")
            else:
                rows, origin = self._from_hub(split)
            require(
                bool(rows), f"{self.definition.name} has no rows in {split}: choose another split"
            )
            self._read[split] = _Split(rows, {**origin, "rows": len(rows)})
        return self._read[split].rows

    def _from(self, folder: Path, split: str, chosen: str) -> _Split:
        task = self.definition
        plain = [f"{split}{suffix}" for suffix in SUFFIXES]
        names = [f"{name}{packed}" for name in plain for packed in ("", *PACKINGS)]
        if plain_name(Path(split)).suffix in SUFFIXES:
            plain = names = [split]
        files = [name for name in names if (folder / name).exists()]
        if not files:
            kind = "training split" if split == task.source.train else "test split"
            raise UsageError(
                f"{task.name} has no {kind} in {folder}: put {listed(plain)} there, or choose "
                f"another with {chosen}"
            )
        if len(files) > 1:
            raise UsageError(f"{folder} contains {files[0]} and {files[1]}: keep one of them")
        file = read_rows(folder / files[0], SUFFIXES, "data file", task.columns)
        return _Split(file.rows, {"file": shown_path(file.path), "sha256": file.sha256})

    def _from_hub(self, split: str) -> _Split:
        table = self._load_table(split)
        # The cache folder is named after the commit.
        files = table.cache_files
        name = Path(files[0]["filename"]).parent.name if files else ""
        commit = name if GIT_COMMIT.fullmatch(name) else None
        # If the hub does not answer, its library uses any commit in its cache.
        revision = self.definition.source.revision or ""
        if commit and GIT_COMMIT.fullmatch(revision) and revision != commit:
            raise RunError(
                f"{self.repository}: the cache contains commit {commit}, not {revision}: run once "
                "without --offline, or use the cached commit"
            )
        location, names = f"{self.repository} {split}", table.column_names
        outer = [n if n in names else n.partition(".")[0] for n in self.definition.columns]
        require_columns(dict.fromkeys(names), outer, location)
        return _Split(HubRows(table, location), {"commit": commit})

    def _load_table(self, split: str) -> Any:
        """Load a split from the hub or its cache, as the library's ``Dataset``."""
        if self.options.offline:
            go_offline()
        from datasets import load_dataset
        from huggingface_hub.utils.logging import set_verbosity_error

        set_verbosity_error()  # errors are reported below, in one line
        source = self.definition.source
        try:
            return load_dataset(
                self.repository, source.config, split=split, revision=source.revision
            )
        except Exception as error:  # the library raises its own, httpx's, pyarrow's and Python's
            first = first_line(error)
            files = "or give local files with --data DIR"
            if self.options.offline:
                raise UsageError(
                    f"{self.repository} ({split}) is not in the cache ({first}): run once without "
                    f"--offline, {files}"
                ) from error
            raise RunError(
                f"{self.repository} ({split}) cannot be loaded from the hub ({first}): try "
                f"--offline if it has been loaded before, {files}"
            ) from error


def _order(split: str, rows: int, left_out: Collection[int] = ()) -> list[int]:
    """Return the row indices of a split; a fixed tenth of the training rows is held out."""
    if split == "test":
        return list(range(rows))
    share = max(1, rows // HELD_OUT_SHARE)
    held_out = set(random.Random("held-out").sample(range(rows), share))
    if split == "held-out":
        return sorted(held_out)
    return [i for i in range(rows) if i not in held_out and i not in left_out]


class HubRows(Sequence[Row]):
    """Rows of a loaded dataset, read from its file on access."""

    def __init__(self, table: Any, location: str) -> None:
        self.table, self.location = table, location

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        return Row(f"{self.location}: row {index + 1}", self.table[index])


def go_offline() -> None:
    """Disable network access of the hub's libraries; must run before they are imported."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
