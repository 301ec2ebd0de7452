"""What both models say of each token of the target's texts, as arrays and as a file.

One teacher-forced pass of each model gives these numbers (``price.passes``). Everything that is
priced follows from them, so nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.errors import UsageError
from specbench.files import (
    PACKINGS,
    clear_errors,
    open_binary,
    packing,
    replacing,
    stored,
    sync,
    write_atomically,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SCORES = "scores.jsonl"
CONDITIONS = "scores.json"
DIGITS = 7  # significant; the models' own rounding is of this size


class TextName(NamedTuple):
    """What identifies a text; texts of one task and sample id belong to one prompt."""

    task: str
    sample_id: str
    method: str  # the cell that wrote it, with N and drafter
    repeat: int = 0
    turn: int | None = None
    category: str | None = None

    @property
    def prompt(self) -> str:
        """What its repeats and turns share."""
        return f"{self.task} {self.sample_id}"


@dataclass(frozen=True)
class Scores:
    """The scores of B texts of up to T tokens; a shorter text is followed by zeros.

    p and q are the processed distributions, as decoding uses them. At temperature 0 they are
    one-hot, so entropies and top probabilities are those of the softmax at temperature 1.
    """

    names: tuple[TextName, ...]
    prompts: tuple[Sequence[int], ...]  # tokens of the prompt before each text
    tokens: Integers  # [B, T] ids, with the end token
    length: Integers  # [B]
    temperature: float
    p: Floats  # [B, T] probability of the token under the target
    q: Floats  # [B, T] the same under the draft
    rank_p: Integers  # [B, T] rank of the token under the target, from 1
    rank_q: Integers  # [B, T] the same under the draft
    top_p: Floats  # [B, T] largest probability under the target
    top_q: Floats  # [B, T] the same under the draft
    entropy_p: Floats  # [B, T] nats
    entropy_q: Floats  # [B, T] nats
    tv: Floats  # [B, T] total variation between p and q

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.names)

    def of(self, chosen: Iterable[int]) -> Scores:
        """Return some of the texts."""
        rows = [*chosen]
        columns = {name: getattr(self, name)[rows] for name in ("tokens", "length", *COLUMNS)}
        names = tuple(self.names[row] for row in rows)
        return replace(
            self, names=names, prompts=tuple(self.prompts[row] for row in rows), **columns
        )

    @cached_property
    def is_token(self) -> NDArray[np.bool_]:
        """Whether a place ``[B, T]`` holds a token of its text."""
        return np.arange(self.tokens.shape[1]) < self.length[:, None]

    @cached_property
    def prompt_labels(self) -> list[str]:
        """The distinct prompts, in the order of sums over them."""
        return sorted({name.prompt for name in self.names})

    @cached_property
    def prompt(self) -> Integers:
        """The number of each text's prompt ``[B]``: repeats and turns of a prompt share it."""
        number = {label: index for index, label in enumerate(self.prompt_labels)}
        return np.array([number[name.prompt] for name in self.names], dtype=np.int64)


#: The columns of numbers of each token.
COLUMNS = tuple(field.name for field in fields(Scores))[5:]


def joined(records: Sequence[Mapping[str, Any]], temperature: float) -> Scores:
    """Return the scores of records, see ``StoredScores``."""
    longest = max((len(record["tokens"]) for record in records), default=0)
    columns: dict[str, Any] = {}
    for name in ("tokens", *COLUMNS):
        kind = np.int64 if name in ("tokens", "rank_p", "rank_q") else np.float64
        columns[name] = np.zeros((len(records), longest), kind)
        for row, record in zip(columns[name], records, strict=True):
            row[: len(record[name])] = record[name]
    return Scores(
        tuple(TextName(*record["name"]) for record in records),
        tuple(record["prompt"] for record in records),
        length=np.array([len(record["tokens"]) for record in records], dtype=np.int64),
        temperature=temperature,
        **columns,
    )


def summed(values: Floats, prompt: Integers) -> Floats:
    """Sum rows of texts ``[B, ...]`` over each prompt ``[n, ...]``, see ``Scores.prompt``."""
    sums = np.zeros((prompt.max(initial=-1) + 1, *values.shape[1:]))
    np.add.at(sums, prompt, values)
    return sums


class StoredScores:
    """The scores of texts in a folder; an interrupted pass goes on where it stopped.

    ``scores.jsonl`` grows by a line per text and is packed at the end. ``scores.json`` states the
    conditions: models, temperature and whatever else decides the numbers.

    Raises:
        UsageError: The folder has scores under other conditions, or cannot be written.
    """

    def __init__(self, folder: Path, conditions: Mapping[str, Any]) -> None:
        self.path = folder / SCORES
        self._records: dict[TextName, dict[str, Any]] = {}
        content = json.dumps(conditions, indent=2) + "\n"
        if (folder / CONDITIONS).is_file():
            if (folder / CONDITIONS).read_text(encoding="utf-8") != content:
                raise UsageError(
                    f"{folder} has scores of other models or settings: choose another folder with "
                    "--output"
                )
            self._records = {TextName(*r["name"]): r for r in _lines(stored(self.path))}
        else:
            with clear_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / CONDITIONS, content)

    def __contains__(self, name: TextName) -> bool:
        """Return whether a text is scored."""
        return name in self._records

    def add(self, record: dict[str, Any]) -> None:
        """Append the scores of a text."""
        if stored(self.path).suffix in PACKINGS:
            packed = stored(self.path)
            write_atomically(self.path, b"".join(map(_line, self._records.values())))
            packed.unlink()
        # The first line feed ends a line that was torn.
        with clear_errors(self.path), self.path.open("ab") as file:
            file.write(b"\n" + _line(record))
        self._records[TextName(*record["name"])] = record

    def finish(self) -> None:
        """Pack the file."""
        if self.path.is_file():
            packed = self.path.with_name(f"{SCORES}.gz")
            with replacing(packed) as file, packing(packed, file) as lines:
                for record in self._records.values():
                    lines.write(_line(record))
            sync(packed.parent)
            self.path.unlink()

    def scores(self, names: Iterable[TextName], temperature: float) -> Scores:
        """Return the scores of these texts."""
        return joined([self._records[name] for name in names], temperature)


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole records of a file; a torn one is scored again."""
    if not path.is_file():
        return
    with open_binary(path) as file:
        for line in file:
            try:
                record = json.loads(line)
                sizes = {len(record[name]) for name in ("tokens", *COLUMNS)}
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if len(sizes) == 1 and len(record["name"]) == len(TextName._fields):
                yield record
