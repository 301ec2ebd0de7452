"""Greedy texts beside those without speculation, and what explains their first difference.

With half-precision or quantised weights, the logits of a pass over several tokens are not those of
passes over one. Where the two likeliest tokens are nearly equal, this rounding decides. A lossy
rule instead takes tokens that are clearly less likely than the likeliest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.experiment.plan import Plan, SampleIndex
from specbench.methods.registry import AUTOREGRESSIVE, get_method
from specbench.runs.labels import method_labels
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.records import names_of

if TYPE_CHECKING:
    from torch import Tensor

MOST_FORKS = 32  # of a cell that are measured, by one pass each
END = -1  # stands for any end token
NEVER = -1e9  # logit of an end if there are no end tokens


class Fork(NamedTuple):
    """Where a greedy text first differs from the one without speculation."""

    place: SampleIndex
    shared: tuple[int, ...]  # the tokens before
    tokens: tuple[int, int]  # the two that differ


class Lead(NamedTuple):
    """The target's first choices at a fork, by a plain pass."""

    margin: float  # probability of the likeliest token minus that of the second
    behind: float  # logit of the likeliest token minus that of the less likely one of the fork

    @classmethod
    def of(cls, logits: Tensor, tokens: Iterable[int], ends: Sequence[int]) -> Lead:
        """Return the lead in logits ``[V]``, in which ``END`` is the likeliest of ``ends``."""
        first, second = logits.softmax(-1).topk(2).values.tolist()
        rows = ([end for end in ends if end < len(logits)] if t == END else [t] for t in tokens)
        chosen = [float(logits[row].max()) if row else NEVER for row in rows]
        return cls(first - second, float(logits.max()) - min(chosen))


class GreedyTexts(NamedTuple):
    """The greedy texts of a cell beside those without speculation."""

    task: str
    method: str  # label, with N if there are several
    alone: str  # method or server whose texts they are compared with
    lossless: bool | None  # None if a server does not tell
    texts: int
    equal: int
    forks: list[Fork]

    def describe(self, leads: Mapping[Fork, Lead], tolerance: float) -> dict[str, Any]:
        """Return plain values for ``environment.json``; forks beyond rounding are counted."""
        of_forks = [leads[fork] for fork in self.forks if fork in leads]
        beyond = sum(lead.behind > tolerance for lead in of_forks)
        margins = [lead.margin for lead in of_forks]
        return {**self._asdict(), "forks": len(of_forks), "margins": margins, "beyond": beyond}


def compare_greedy(
    plan: Plan, records: Iterable[SampleRecord], engine: str
) -> Iterator[GreedyTexts]:
    """Compare each cell with the target alone, or with the first server if only servers decode.

    Of a conversation, only the first turn is compared: the later ones may have other prompts.
    """
    by_name = {names_of(record): record for record in records if record.status != ERROR}
    for number, task in enumerate(plan.tasks):
        cells = [cell for cell in task.cells if not cell.timing]
        indices = [task.cells.index(cell) for cell in cells]
        steps = [plan.step((number, 0, 0, index)) for index in indices]
        labels = method_labels([vars(plan.identify(step, engine)) for step in steps])
        labels = [
            f"{label} with N = {cell.draft_length}" if labels.count(label) > 1 else label
            for cell, label in zip(cells, labels, strict=True)
        ]
        decoders = [c.method == AUTOREGRESSIVE for c in cells], [c.server for c in cells]
        if (first := next((d.index(True) for d in decoders if any(d)), None)) is None:
            continue
        keys = [*product([number], range(plan.settings.repeats), range(len(task.examples)))]
        texts = []  # of each cell, by task, repeat and example
        for index in indices:
            of_cell = [plan.identify(plan.step((*key, index)).turns[0], engine) for key in keys]
            named = zip(keys, map(names_of, of_cell), strict=True)
            texts.append({key: by_name[name] for key, name in named if name in by_name})
        for cell, label, written in zip(cells, labels, texts, strict=True):
            shared = sorted(written.keys() & texts[first].keys())
            if cell is cells[first] or not shared:
                continue
            pairs = {key: (texts[first][key], written[key]) for key in shared}
            forks = {key: _fork(key, indices[first], *pair) for key, pair in pairs.items()}
            unequal = [
                key
                for key, (first_text, text) in pairs.items()
                if forks[key]
                or (not (first_text.token_ids and text.token_ids) and first_text.text != text.text)
            ]
            lossless = None if cell.server else get_method(cell.method).emits_target(cell.values)
            yield GreedyTexts(
                task=task.task.name,
                method=label,
                alone=labels[first],
                lossless=lossless,
                texts=len(pairs),
                equal=len(pairs) - len(unequal),
                forks=[fork for fork in forks.values() if fork][:MOST_FORKS],
            )


def _fork(
    key: tuple[int, int, int], cell: int, alone: SampleRecord, other: SampleRecord
) -> Fork | None:
    """Return the first difference of two texts, if both have tokens and they differ."""
    if not (alone.token_ids and other.token_ids):
        return None  # a server may tell none, and a text may be empty
    texts = [with_end(r.token_ids or (), r.stopped_by) for r in (alone, other)]
    if (difference := first_difference(*texts)) is None:
        return None
    index, tokens = difference
    return Fork((*key, cell), tuple(texts[0][:index]), tokens)


def with_end(tokens: Sequence[int], stopped_by: str | None) -> list[int]:
    """Return the tokens of a text, with ``END`` if it ended."""
    return [*tokens, *([END] if stopped_by == "eos" else [])]


def first_difference(
    first: Sequence[int], second: Sequence[int]
) -> tuple[int, tuple[int, int]] | None:
    """Return where two texts first differ, and the two tokens there; None if they are equal."""
    pairs = enumerate(zip_longest(first, second, fillvalue=END))
    return next(((index, pair) for index, pair in pairs if pair[0] != pair[1]), None)
