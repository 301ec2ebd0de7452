"""Which figures of the main table are the best of their column, or not to be told from it.

Overlapping intervals of two methods do not say that they cannot be told apart: on the same prompts
they differ by less than each is uncertain. So the paired interval of the difference decides.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.analysis.frames import BLEU_TERMS, CELL
from specbench.analysis.intervals import (
    FEWEST,
    Floats,
    Statistic,
    difference_limits,
    paired_ratio,
    ratio,
    score_limits,
)
from specbench.analysis.scores import score_terms
from specbench.analysis.summary import BASELINE
from specbench.methods.registry import AUTOREGRESSIVE

ACCEPTANCE, QUALITY, SPEEDUP = "draft_acceptance_rate", "quality", "speedup"
_SUMMED = (
    *("quality", "accepted", "proposed", "output_tokens", "prefill_seconds", "decode_seconds"),
    BLEU_TERMS,  # where a BLEU was measured
)
#: The columns of samples that decide.
NEEDED = (*CELL, "sample_id", *_SUMMED)
_AT_ONCE = 256  # cells that are resampled at once
_ROUNDING = 1e-9  # what equal figures may differ by

_Numbers = NDArray[np.intp]


class Contest:
    """Samples of some runs, ready to compare their cells.

    Attributes:
        cells: The cells, columns ``CELL`` and their number ``cell``.
    """

    def __init__(self, samples: pd.DataFrame) -> None:
        """Sort samples by cell.

        Args:
            samples: Columns ``NEEDED``, of one or several runs.
        """
        cell = samples.groupby(list(CELL), sort=False, dropna=False).ngroup().to_numpy()
        order = np.argsort(cell, kind="stable")
        self._samples = samples[[name for name in _SUMMED if name in samples]].iloc[order]
        self._prompt = pd.factorize(samples["sample_id"])[0][order]
        self._starts = np.searchsorted(cell[order], np.arange(cell.max(initial=-1) + 2))
        known = samples[list(CELL)].iloc[order[self._starts[:-1]]]
        self.cells = known.assign(cell=np.arange(len(known)))
        alone = self.cells[self.cells["method"] == AUTOREGRESSIVE].set_index(BASELINE)["cell"]
        found = self.cells[BASELINE].join(alone.rename("baseline"), on=BASELINE)["baseline"]
        self._baseline = found.fillna(-1).to_numpy(dtype=np.intp)

    def best(self, cells: _Numbers, values: Floats, figure: str, metric: str) -> NDArray[np.bool_]:
        """Tell which cells have the highest value or one not to be told from the first of these.

        That is where the paired 95 % interval of the difference to it includes 0; below ``FEWEST``
        shared prompts there is none.

        Args:
            cells: [k] numbers of cells.
            values: [k] the figure of each.
            figure: ``ACCEPTANCE``, ``QUALITY`` or ``SPEEDUP``.
            metric: What quality is measured by.
        """
        marked = np.zeros(len(cells), dtype=np.bool_)
        top = int(np.argmax(values))
        prompts = np.unique(self._prompt[self._rows(cells[top])])
        sums, statistic = self._sums(cells, prompts, figure, metric)
        scores = figure == QUALITY and statistic is ratio
        # Sums of scores in [0, 1] are whole for every prompt where the scores are 0 or 1.
        whole = np.all(np.isnan(sums[..., 0]) | (sums[..., 0] % 1 == 0), axis=0) & scores
        present = ~np.isnan(sums).any(axis=2) & ~np.isnan(sums[:, [top]]).any(axis=2)
        kinds, kind = np.unique(np.vstack([present, whole]), axis=1, return_inverse=True)
        for number, (*shared, zero_or_one) in enumerate(kinds.T):
            if sum(shared) < FEWEST:
                continue
            members = np.flatnonzero(kind.ravel() == number)
            for some in np.array_split(members, -(-len(members) // _AT_ONCE)):
                mine, theirs = sums[np.ix_(shared, some)], sums[np.ix_(shared, [top])]
                if zero_or_one and whole[top]:
                    counts = np.minimum(mine[..., 1].sum(axis=0), theirs[..., 1].sum(axis=0))
                    low, high = score_limits(ratio(mine) - ratio(theirs), counts)
                else:
                    low, high = difference_limits(mine, theirs, statistic)
                marked[some] = (low <= _ROUNDING) & (high >= -_ROUNDING)
        return marked

    def _sums(
        self, cells: _Numbers, prompts: _Numbers, figure: str, metric: str
    ) -> tuple[Floats, Statistic]:
        """Sums per prompt, [prompts, k, terms], NaN where a cell has none, and their figure."""
        if figure == SPEEDUP:
            base, place = np.unique(self._baseline[cells], return_inverse=True)
            own, others = (self._speeds(some, prompts) for some in (cells, base))
            return np.concatenate([own, others[:, place.ravel()]], axis=2), paired_ratio
        rows, field = self._samples_on(cells, prompts)
        if figure == QUALITY:
            known = rows["quality"].notna().to_numpy()
            terms, statistic = score_terms(rows[known], "quality", metric)
        else:
            known = (rows["proposed"] > 0).to_numpy()
            terms, statistic = rows[known][["accepted", "proposed"]].to_numpy(np.float64), ratio
        return _summed(terms, field[known], len(prompts), len(cells)), statistic

    def _speeds(self, cells: _Numbers, prompts: _Numbers) -> Floats:
        """Tokens and seconds per prompt."""
        rows, field = self._samples_on(cells, prompts)
        seconds = rows["prefill_seconds"] + rows["decode_seconds"]
        terms = np.column_stack([rows["output_tokens"], seconds])
        return _summed(terms, field, len(prompts), len(cells))

    def _samples_on(self, cells: _Numbers, prompts: _Numbers) -> tuple[pd.DataFrame, _Numbers]:
        """Samples of cells on some prompts, and the field of a table [prompts, k] of each."""
        found = [self._rows(cell) for cell in cells]
        rows, column = np.concatenate(found), np.repeat(np.arange(len(cells)), [*map(len, found)])
        places = np.full(self._prompt.max(initial=-1) + 1, -1)
        places[prompts] = np.arange(len(prompts))
        place = places[self._prompt[rows]]
        meant = place >= 0
        return self._samples.iloc[rows[meant]], (place * len(cells) + column)[meant]

    def _rows(self, cell: int) -> _Numbers:
        return np.arange(self._starts[cell], self._starts[cell + 1])


def _summed(terms: Floats, field: _Numbers, prompts: int, cells: int) -> Floats:
    """Sum the terms of samples, [samples, terms], by their field: [prompts, cells, terms]."""
    fields = prompts * cells
    sums: Floats = np.stack([np.bincount(field, term, fields) for term in terms.T], axis=-1)
    sums[np.bincount(field, minlength=fields) == 0] = np.nan
    return sums.reshape(prompts, cells, -1)
