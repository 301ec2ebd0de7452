"""Which texts of a run are priced, and what both models say of each of their tokens.

One teacher-forced pass of each model gives these numbers (``pricing.passes``). Everything that is
priced follows from them, so nothing here imports torch.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.statistics.intervals import cluster_sums
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.policies import Floats, Integers
from specbench.decoding.drafters.registry import MODEL, DrafterSpec, recorded_drafter
from specbench.errors import UsageError
from specbench.files import write_atomically
from specbench.methods.registry import METHOD_COLUMNS, METHODS
from specbench.plugins import in_file
from specbench.runs.model import SampleRecord
from specbench.runs.records import read_lines

Record = dict[str, Any]

SCORES = "scores.jsonl.gz"
DIGITS = 7  # significant; the models' own rounding is of this size
MOST_RANK = 2**31
ROUNDING = 1e-3  # by which a probability may exceed 1, or its logarithm 0
OF_TARGET = ("p", "rank_p", "top_p", "entropy_p")  # columns that are the same at every depth


class TextName(NamedTuple):
    """What identifies a text; texts of one task and sample id belong to one prompt."""

    task: str
    sample_id: str
    method: str  # the cell that wrote it, with N, drafter and cost
    repeat: int = 0
    turn: int | None = None
    category: str | None = None
    first: str | None = None  # the first example with the same prompt, if it is another one

    @property
    def prompt(self) -> str:
        """What its repeats, its turns and examples with the same prompt share."""
        return f"{self.task} {self.first or self.sample_id}"


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

    The q of a module that drafts depends on where a round starts. Its columns are ``[B, T, D]``: at
    ``[b, s, d]`` is token s + d of text b, drafted at depth d of a round that starts at s.
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
    modules: Mapping[DrafterKind, Scores] = field(default_factory=dict)  # by modules that draft

    def of(self, rows: Sequence[int]) -> Scores:
        """Return the scores of some of the texts."""
        columns = {name: getattr(self, name)[rows] for name in ("tokens", "length", *COLUMNS)}
        names, prompts = tuple(self.names[i] for i in rows), tuple(self.prompts[i] for i in rows)
        modules = {drafter: scores.of(rows) for drafter, scores in self.modules.items()}
        return replace(self, names=names, prompts=prompts, modules=modules, **columns)

    @cached_property
    def is_token(self) -> NDArray[np.bool_]:
        """Whether a place ``[B, T]`` holds a token of its text."""
        return np.arange(self.tokens.shape[1]) < self.length[:, None]

    @cached_property
    def prompt(self) -> list[str]:
        """The prompt of each text; its repeats and turns share it."""
        return [name.prompt for name in self.names]

    def by_prompt(self, values: Floats) -> Floats:
        """Return the means of each prompt ``[n, k]``, see ``means_by_prompt``."""
        return means_by_prompt(values, self.names)[1]


def means_by_prompt(values: Floats, names: Sequence[TextName]) -> tuple[NDArray[Any], Floats]:
    """Return sorted prompts ``[n]`` and means over their texts ``[n, k]`` of values ``[B, k]``.

    The turns of a conversation are one text, so they are added.
    """
    texts = {(name.prompt, name.sample_id, name.method, name.repeat) for name in names}
    number = Counter(prompt for prompt, *_ in texts)
    prompts = [name.prompt for name in names]
    return cluster_sums(values / np.array([[number[prompt]] for prompt in prompts]), prompts)


#: The columns of numbers of each token.
COLUMNS = tuple(column.name for column in fields(Scores))[5:-1]


def joined(texts: Mapping[TextName, Record], temperature: float) -> Scores:
    """Return the scores of texts from their records, see ``read_scores``."""
    records = [*texts.values()]
    columns: dict[str, Any] = {
        name: padded([record[name] for record in records]) for name in ("tokens", *COLUMNS)
    }
    for name in ("tokens", "rank_p", "rank_q"):
        columns[name] = columns[name].astype(np.int64)
    length = np.array([len(record["tokens"]) for record in records])
    prompts = tuple(record["prompt"] for record in records)
    return Scores(tuple(texts), prompts, length=length, temperature=temperature, **columns)


def padded(rows: Sequence[Sequence[Any]]) -> Floats:
    """Return rows of numbers, or of lists of them, as one array; zeros follow the shorter ones."""
    longest = max(map(np.array, rows), key=len, default=np.zeros(0))
    array = np.zeros((len(rows), *longest.shape))
    for values, row in zip(array, rows, strict=True):
        if row:
            values[: len(row)] = row
    return array


def read_scores(file: Path) -> dict[str, Record]:
    """Return the scores of texts in a file, by the key of all that decides them."""
    records: dict[str, Record] = {}
    for line in read_lines(file) if file.is_file() else ():
        # The text of a damaged line is scored again.
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            record: Record = json.loads(line)
            if isinstance(key := record["key"], str):
                records[key] = record
    return records


def is_scored(record: Record | None, size: int, depths: int = 0) -> bool:
    """Return whether a record, which may come from anyone, has possible numbers for each token.

    The text has ``size`` tokens. A module that drafts has ``depths``, all others have 0.
    """
    for name in COLUMNS:
        try:
            column = np.array(record and record.get(name))
        except ValueError:  # lists of several lengths
            return False
        shape = (size, depths) if depths and size and name not in OF_TARGET else (size,)
        if column.shape != shape or column.dtype.kind not in "if":
            return False
        most = MOST_RANK if name.startswith(("rank", "entropy")) else 1 + ROUNDING
        if not ((column >= 0) & (column <= most)).all():
            return False
    return True


def write_scores(file: Path, records: Mapping[str, Record]) -> None:
    """Write the scores of texts, packed."""
    lines = [json.dumps(record) + "\n" for record in records.values()]
    write_atomically(file, gzip.compress("".join(lines).encode(), mtime=0))


#: The rules whose recorded rounds a price must match.
PRICED = ("sd", "match", "block", "sd-adaptive")
_CELL = ("task", *METHOD_COLUMNS, "draft_length", "drafter")


def name_of(record: SampleRecord) -> TextName:
    """Return the name of a record's text."""
    parts = (record.method, record.draft_length, record.drafter, record.cost)
    return TextName(
        record.task,
        record.sample_id,
        " ".join(str(part) for part in parts if part),
        record.repeat,
        record.turn,
        record.category,
        record.same_prompt_as,
    )


def cells_of(records: Sequence[SampleRecord]) -> list[list[SampleRecord]]:
    """Return the records of each cell."""
    cells: dict[tuple[Any, ...], list[SampleRecord]] = {}
    for record in records:
        cells.setdefault(tuple(getattr(record, name) for name in _CELL), []).append(record)
    return [*cells.values()]


def target_texts(
    records: Sequence[SampleRecord], tasks: Collection[str] = (), limit: int | None = None
) -> list[SampleRecord]:
    """Return the records of the texts of every lossless cell of each task, of so many prompts."""
    decoded = [record for record in records if record.token_ids is not None]
    names = dict.fromkeys(record.method for record in decoded)
    lossless = [name for name in names if name in METHODS and METHODS[name].exact]
    if not lossless:
        raise UsageError(
            f"the texts of {', '.join(names) or 'this run'} are not the target's, so they have no "
            "price: give a run with autoregressive or sd, and token ids"
        )
    cells = cells_of([record for record in decoded if record.method in lossless])
    chosen: list[SampleRecord] = []
    for cell in cells:
        if not tasks or cell[0].task in tasks:
            prompts = {*[*dict.fromkeys(record.sample_id for record in cell)][:limit]}
            chosen += [record for record in cell if record.sample_id in prompts]
    if not chosen:
        raise UsageError(f"this run has no texts of {', '.join(tasks)}: see its config.json")
    return chosen


def recorded_rounds(
    records: Sequence[SampleRecord], tasks: Collection[str], drafters: Collection[DrafterKind]
) -> list[list[SampleRecord]]:
    """Return the cells of tasks whose rounds can be compared with the price.

    Modules among the ``drafters`` are scored; cells of other modules are left out.
    """
    return [
        cell
        for cell in cells_of(records)
        if cell[0].task in tasks
        and cell[0].method in PRICED
        and cell[0].draft_length
        and not in_file(drafter_of(cell[0]).policy)  # code of the run's is not executed
        and (not (kind := drafter_of(cell[0]).kind).has_weights or kind in drafters)
    ]


def drafter_of(record: SampleRecord) -> DrafterSpec:
    """Return the drafter of a record."""
    return recorded_drafter(record.drafter or str(MODEL))
