"""What the rounds of a run add up to: counts and probabilities by the place in a block of drafts.

Of every position that it judges a rule says how likely it is to accept there, before the draft is
drawn: sum_z q(z) a(z), which is 1 - w TV(p, q) for a static ensemble. A position is judged where
all drafts before it were accepted and the text had not ended. Both are settled before its own
draft and draw, so given all that came before, the draft is accepted with just that probability.
Therefore the sum of these probabilities over all positions judged, less the drafts accepted there,
is a martingale: its mean is 0, for any rule, however positions depend on each other and wherever
texts end. What is judged is a selection, since easy contexts reach further into a block; but it is
the same selection on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis.frames import CELL
from specbench.analysis.intervals import Floats, bootstrap, cluster_sums
from specbench.errors import UsageError
from specbench.experiment.records import TRACED, latest_records
from specbench.methods.registry import AUTOREGRESSIVE

#: What cells must share for their times and prompts to be compared: all but the method and N.
GROUP = ("run_id", "pair", "task", "temperature", "engine", "batch_size")
_COPIED = ("output_tokens", "prefill_seconds", "decode_seconds")
_SUMS = ("rounds", "judged", "expected", "accepted", "emitted", *_COPIED)
_BY_PLACE = ("reached", "expected", "accepted")  # one of each for every place in a block

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Tally:
    """Totals of the cells of a group: of the data in row 0, of its bootstrap in the others.

    All cells are resampled by the same prompts, those that all of them have.

    Attributes:
        cells: Columns ``CELL`` of each cell.
        controlled: Whether rounds of a cell stop drafting before N where they choose to.
        n: Prompts.
        totals: [1 + RESAMPLES, cells, terms].
    """

    cells: tuple[Mapping[str, Any], ...]
    controlled: tuple[bool, ...]
    n: int
    totals: Floats

    def sum(self, name: str) -> Floats:
        """[1 + RESAMPLES, cells] a total.

        ``rounds``; ``judged`` positions, ``expected`` and ``accepted`` of them;
        ``emitted``; columns of ``samples.csv``.
        """
        return self.totals[..., _SUMS.index(name)]

    def by_place(self, name: str) -> Floats:
        """[1 + RESAMPLES, cells, N] totals by the place in a block, up to the longest N.

        ``reached`` is how many rounds came so far: all drafts before that place were accepted and
        the text had not ended. Of these, ``expected`` and ``accepted`` at that place.
        """
        places = self.totals[..., len(_SUMS) :]
        width = places.shape[-1] // len(_BY_PLACE)
        at = _BY_PLACE.index(name) * width
        return places[..., at : at + width]

    @property
    def baseline(self) -> int | None:
        """The number of the autoregressive cell."""
        methods = [cell["method"] for cell in self.cells]
        return methods.index(AUTOREGRESSIVE) if AUTOREGRESSIVE in methods else None


def read_tallies(folder: Path) -> list[Tally]:
    """Return a tally for each group of cells of a run, from its ``samples.jsonl``.

    Raises:
        UsageError: There are no readable records, or nothing was drafted in any of them.
    """
    cells: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Record]]] = {}
    for record in latest_records(folder, TRACED.union(CELL, _COPIED)):
        if "per_round" not in record:
            continue
        cell = tuple(record[name] for name in CELL)
        group = tuple(cell[CELL.index(name)] for name in GROUP)
        cells.setdefault(group, {}).setdefault(cell, []).append(record)
    drafting = [g for g in cells.values() if any(cell[CELL.index("draft_length")] for cell in g)]
    if not drafting:
        raise UsageError(f"{folder} has nothing to predict: run a method that drafts")
    return [_tally(group) for group in drafting]


def _tally(group: Mapping[tuple[Any, ...], Sequence[Record]]) -> Tally:
    cells = [dict(zip(CELL, cell, strict=True)) for cell in group]
    width = max(cell["draft_length"] for cell in cells)
    summed = []
    for records in group.values():
        terms = np.array([_terms(record, width) for record in records])
        summed.append(cluster_sums(terms, [record["sample_id"] for record in records]))
    prompts = set.intersection(*(set(labels.tolist()) for labels, _ in summed))
    if not prompts:
        raise UsageError(f"on {cells[0]['task']} no prompt was decoded in every cell: run again")
    shared = [sums[np.isin(labels, list(prompts))] for labels, sums in summed]
    controlled = [
        any(_stops_early(record, cell["draft_length"]) for record in records)
        for cell, records in zip(cells, group.values(), strict=True)
    ]
    totals = bootstrap(np.stack(shared, axis=1))
    return Tally(tuple(cells), tuple(controlled), len(prompts), totals)


def _terms(record: Record, width: int) -> list[float]:
    """What one sample adds to the totals: ``_SUMS``, then ``_BY_PLACE`` for each place."""
    rounds = record["per_round"]
    places = np.zeros((len(_BY_PLACE), width))
    for expected, accepted, emitted in _rounds(rounds):
        places[0, : min(accepted + (emitted > accepted), record["draft_length"])] += 1
        places[1, : len(expected)] += expected
        places[2, :accepted] += 1
    counts = (len(rounds["expected"]), sum(map(len, rounds["expected"])))
    summed = (sum(map(sum, rounds["expected"])), sum(rounds["accepted"]), sum(rounds["emitted"]))
    return [*counts, *summed, *(record[name] for name in _COPIED), *places.ravel()]


def _rounds(rounds: Mapping[str, Any]) -> Iterator[tuple[Sequence[float], int, int]]:
    yield from zip(rounds["expected"], rounds["accepted"], rounds["emitted"], strict=True)


def _stops_early(record: Record, draft_length: int) -> bool:
    """Whether a round that was not cut short by the text's end has fewer than N drafts."""
    rounds = record["per_round"]
    counts = zip(rounds["proposed"], rounds["accepted"], rounds["emitted"], strict=True)
    return any(emitted > accepted and drafts < draft_length for drafts, accepted, emitted in counts)
