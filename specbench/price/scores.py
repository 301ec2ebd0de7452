"""What both models say of each token of the target's texts, as arrays and as a file.

One teacher-forced pass of each model gives these numbers (``price.passes``). Everything that is
priced follows from them, so nothing here imports torch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.files import clear_errors, copies, packing, replacing
from specbench.policies import Floats, Integers
from specbench.runs.records import read_lines

Record = dict[str, Any]

SCORES = "scores.jsonl"
DIGITS = 7  # significant; the models' own rounding is of this size


class TextName(NamedTuple):
    """What identifies a text; texts of one task and sample id belong to one prompt."""

    task: str
    sample_id: str
    method: str  # the cell that wrote it, with N, drafter and cost
    repeat: int = 0
    turn: int | None = None
    category: str | None = None

    @property
    def prompt(self) -> str:
        """What its repeats and turns share."""
        return f"{self.task} {self.sample_id}"


class ScoredText(NamedTuple):
    """A text to score."""

    name: TextName
    prompt: Sequence[int]
    tokens: Sequence[int]  # with the end token


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

    def written_by(self, method: str) -> Scores:
        """Return the texts of one method, see ``TextName``."""
        return self._of([row for row, name in enumerate(self.names) if name.method == method])

    def not_written_by(self, method: str) -> Scores:
        """Return the texts of all other methods, or all texts if there are no others."""
        rows = [row for row, name in enumerate(self.names) if name.method != method]
        return self._of(rows) if rows else self

    def _of(self, rows: list[int]) -> Scores:
        columns = {name: getattr(self, name)[rows] for name in ("tokens", "length", *COLUMNS)}
        names, prompts = tuple(self.names[i] for i in rows), tuple(self.prompts[i] for i in rows)
        return replace(self, names=names, prompts=prompts, **columns)

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

    @cached_property
    def share(self) -> Floats:
        """The share of each text ``[B]`` in its prompt: the inverse of the number of its texts."""
        texts = {(name.prompt, name.method, name.repeat) for name in self.names}
        number = Counter(prompt for prompt, *_ in texts)
        return np.array([1 / number[name.prompt] for name in self.names])

    def by_prompt(self, values: Floats) -> Floats:
        """Return the mean over each prompt's texts ``[n, ...]`` of values of texts ``[B, ...]``.

        The turns of a conversation are one text, so they are added.
        """
        sums = np.zeros((len(self.prompt_labels), *values.shape[1:]))
        np.add.at(sums, self.prompt, np.multiply(values.T, self.share).T)
        return sums


#: The columns of numbers of each token.
COLUMNS = tuple(field.name for field in fields(Scores))[5:]


def joined(texts: Mapping[TextName, Record], temperature: float) -> Scores:
    """Return the scores of texts from their records, see ``StoredScores``."""
    records = [*texts.values()]
    length = np.array([len(record["tokens"]) for record in records], dtype=np.int64)
    columns: dict[str, Any] = {}
    for name in ("tokens", *COLUMNS):
        kind = np.int64 if name in ("tokens", "rank_p", "rank_q") else np.float64
        columns[name] = np.zeros((len(records), length.max(initial=0)), kind)
        for row, record, size in zip(columns[name], records, length, strict=True):
            row[:size] = record[name]
    prompts = tuple(record["prompt"] for record in records)
    return Scores(tuple(texts), prompts, length=length, temperature=temperature, **columns)


class StoredScores:
    """The scores of texts in ``scores.jsonl``, by a key of all that decides them.

    The file grows by a line per text, so an interrupted pass goes on where it stopped, and is
    packed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SCORES
        files = [path for path in copies(self._path) if path.is_file()]
        self._records = {record["key"]: record for path in files for record in _records(path)}

    def get(self, key: str) -> Record | None:
        """Return the scores of a text, if it is scored."""
        return self._records.get(key)

    def add(self, record: Record) -> None:
        """Append the scores of a text.

        Raises:
            SpecbenchError: They cannot be written.
        """
        with clear_errors(self._path), self._path.open("ab") as file:
            file.write(b"\n" + json.dumps(record).encode() + b"\n")  # ends a torn line first
        self._records[record["key"]] = record

    def finish(self) -> None:
        """Pack the file, if it has grown."""
        if self._path.is_file():
            packed = self._path.with_name(f"{SCORES}.gz")
            with replacing(packed) as file, packing(packed, file) as lines:
                for record in self._records.values():
                    lines.write(json.dumps(record).encode() + b"\n")
            self._path.unlink()


def _records(path: Path) -> Iterator[Record]:
    """Yield the whole records of a file; a torn one is scored again."""
    for line in read_lines(path):
        try:
            record = json.loads(line)
            sizes = {len(record[name]) for name in ("tokens", *COLUMNS)}
            if len(sizes) == 1 and isinstance(record["key"], str):
                yield record
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
