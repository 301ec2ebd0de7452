"""Predicted and measured figures of a run's cells.

At every position, a rule records its acceptance probability before the draft is drawn:
sum_z q(z) a(z), which is 1 - w TV(p, q) for a static ensemble. A position is judged if all drafts
before it were accepted and the text had not ended; both are known before its draft is drawn. The
sum of these probabilities over the judged positions minus the drafts accepted there is therefore a
martingale. Its mean is 0 for any rule, whatever the dependence between positions and wherever texts
end. Easy contexts reach later positions more often, but this selection is the same for predictions
and measurements.

The closed forms take arrays whose last axis is the vocabulary (``p`` target, ``q`` draft) or the N
positions of a block of drafts; leading axes are free. The accepted length of a round is the number
of drafts accepted. A round emits one more token, the target's own.

Differences are paired: both sides come from the same resampled prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from specbench.analysis.intervals import Floats, bootstrap, cluster_sums, estimate
from specbench.analysis.weights import (
    DIVERGENCE,
    EFFECTIVE,
    FEW,
    QUALITY,
    UNCOVERED,
    WEIGHT,
    is_exact,
    weighted_figures,
)
from specbench.errors import UsageError
from specbench.runs.frames import CELL
from specbench.runs.labels import method_labels
from specbench.runs.records import TRACED, latest_records
from specbench.runs.shown import ShownFigure
from specbench.table import Column, Field, Table, drop_empty

#: Metric -> unit. ``accepted_length`` is for rounds not cut short by the end of a text;
#: ``tokens_per_round`` is for all rounds.
UNITS = {
    (ACCEPTANCE := "acceptance"): "fraction",
    (LENGTH := "accepted_length"): "tokens/round",
    (TOKENS := "tokens_per_round"): "tokens/round",
    (BIAS := "bias"): "fraction",
    (GAP := "front_gap"): "fraction",
    QUALITY: "score",
    WEIGHT: "x",
    EFFECTIVE: "fraction",
    DIVERGENCE: "nats/token",
    UNCOVERED: "fraction",
}
SIDES = PREDICTED, MEASURED, DIFFERENCE = ("predicted", "measured", "difference")
COLUMNS = (
    *(*CELL, "metric"),
    *(f"{side}{end}" for side in SIDES for end in ("", "_low", "_high")),
    *("n", "unit"),
)
Record = Mapping[str, Any]
Row = dict[str, Any]


class PredictedMeasured(NamedTuple):
    """Predicted and measured values of a metric, [1 + RESAMPLES] each; NaN if unknown."""

    metric: str
    predicted: Floats
    measured: Floats

    def row(self, cell: Record, n: int) -> Row:
        """Return the row of a cell of n prompts, with columns ``COLUMNS``."""
        sides = (self.predicted, self.measured, self.measured - self.predicted)
        ends = [end for side in sides for end in estimate(side, n)[:3]]
        values = (*cell.values(), self.metric, *ends, n, UNITS[self.metric])
        return dict(zip(COLUMNS, values, strict=True))


def total_variation(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return TV(p, q) = 1/2 sum |p - q| of distributions [..., V]."""
    distance: Floats = np.abs(np.asarray(p) - np.asarray(q)).sum(axis=-1) / 2
    return distance


def accepted_length(acceptance: ArrayLike) -> Floats:
    """Return the expected accepted length of a block: sum over k of a_1 a_2 ... a_k.

    The formula is exact for dependent positions too, if a_k [..., N] is the probability that the
    k-th draft is accepted given that all drafts before it were. This is the mean of
    sum_z q(z) a(z) over the contexts in which a k-th draft is judged, not over all contexts that
    the draft model reaches. For one block drawn from q, a_k = min(1, v(x_k) / q(x_k)) gives an
    unbiased estimate.

    Source: DIVERSED, arXiv:2604.07622, the step-dependent expression.
    """
    length: Floats = np.cumprod(np.asarray(acceptance, dtype=np.float64), axis=-1).sum(axis=-1)
    return length


def front_gap(p: ArrayLike, q: ArrayLike, law: ArrayLike, acceptance: ArrayLike) -> Floats:
    """Return a rule's distance from the Pareto front of rejection and bias; 0 on the front.

    The gap is (1 - a) + TV(pi, p) - TV(p, q): rejection plus bias minus the distance of the models.
    A rule that emits pi rejects at least TV(q, pi) >= TV(p, q) - TV(pi, p), so the gap is never
    negative. It is the bias beyond the minimum for the rule's acceptance. ``sd``, ``lossy``,
    ``static`` and ``diversed`` lie on the front at any temperature above 0; threshold rules need
    not.

    ``law`` [..., V] is pi, what the rule emits; ``acceptance`` [...] is a = sum_z q(z) a(z).

    Source: DIVERSED, arXiv:2604.07622, the Pareto front of the static ensemble.
    """
    gap: Floats = 1 - np.asarray(acceptance) + total_variation(law, p) - total_variation(p, q)
    return gap


def theory_table(folder: Path) -> pd.DataFrame:
    """Return predicted and measured figures of a run's cells that draft, with ``COLUMNS``.

    Raises:
        UsageError: There are no readable records, or nothing was drafted.
    """
    records = latest_records(folder, TRACED.union(CELL))
    cells = cells_of(records)
    if not cells:
        raise UsageError(f"{folder} has nothing to predict: run a method that drafts")
    rows: list[Row] = []
    for cell, samples in cells:
        rows += _rows(cell, samples)
        exact = [r for r in records if r["task"] == cell["task"] and is_exact(r)]
        n = len({record["sample_id"] for record in samples})
        for figure in weighted_figures(samples, exact):
            rows.append(PredictedMeasured(*figure).row(cell, n))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def cells_of(records: Sequence[Record]) -> list[tuple[dict[str, Any], list[Record]]]:
    """Return the cells that draft, with their decoded samples."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record["draft_length"] and "per_round" in record:
            cells.setdefault(tuple(record[name] for name in CELL), []).append(record)
    return [(dict(zip(CELL, cell, strict=True)), group) for cell, group in cells.items()]


def _rows(cell: Record, records: Sequence[Record]) -> Iterator[Row]:
    size = cell["draft_length"]
    terms = np.array([_terms(record, size) for record in records])
    prompts, sums = cluster_sums(terms, [record["sample_id"] for record in records])
    totals = bootstrap(sums)
    rounds, judged, emitted = totals[:, :3].T
    reached, expected, accepted = np.split(totals[:, 3:], 3, axis=1)
    reached = np.maximum(reached, 1)  # positions that no round reached accept nothing
    every, accepted_drafts = expected.sum(axis=1), accepted.sum(axis=1)
    length = accepted_length(accepted / reached)
    # The last round of a text may lack the target's own token, so its measured count is used.
    tokens = (every + emitted - accepted_drafts) / rounds
    figures = [
        PredictedMeasured(ACCEPTANCE, every / judged, accepted_drafts / judged),
        PredictedMeasured(LENGTH, accepted_length(expected / reached), length),
        PredictedMeasured(TOKENS, tokens, emitted / rounds),
    ]
    return (figure.row(cell, len(prompts)) for figure in figures)


def _terms(record: Record, size: int) -> list[float]:
    """Return a sample's terms: rounds, judged, emitted, then three values per position of a block.

    These are the rounds that reached the position (all drafts before it were accepted and the text
    had not ended), the sum of acceptance probabilities judged there, and the drafts accepted there.
    """
    rounds = record["per_round"]
    accepted, emitted = np.array(rounds["accepted"]), np.array(rounds["emitted"])
    reached = accepted + (emitted > accepted)
    positions = np.arange(size)[:, None]
    expected = [sum(column) for column in zip_longest(*rounds["expected"], fillvalue=0.0)]
    return [
        len(accepted),
        sum(map(len, rounds["expected"])),
        emitted.sum(),
        *(reached > positions).sum(axis=1),
        *(expected + [0.0] * (size - len(expected))),
        *(accepted > positions).sum(axis=1),
    ]


def _sides(
    heading: str,
    metric: str,
    form: str,
    scale: float = 1.0,
    sides: Sequence[str] = SIDES,
    with_interval: str = DIFFERENCE,
) -> Iterator[Field[Record]]:
    """Yield the sides of a metric under one heading; ``with_interval`` shows its interval."""
    for side in sides:
        sign = "+" if side == DIFFERENCE else ""
        figure = ShownFigure(f"{metric} {side}", side, "", scale, sign + form)
        if side == with_interval:
            yield Column(f"{side} [95 %]", heading), figure.interval
        else:
            yield Column(side, heading), figure.text


_NAMES: tuple[Field[Record], ...] = (
    ("method", lambda cell: cell["label"]),
    ("N", lambda cell: str(cell["draft_length"])),
)
_PREDICTIONS = (
    *_NAMES,
    *_sides("accepted / judged %", ACCEPTANCE, ".1f", 100),
    *_sides("length", LENGTH, ".2f"),
    *_sides("tokens/round", TOKENS, ".2f"),
)
_FRONT = (
    *_NAMES,
    *_sides("bias %", BIAS, ".2f", 100, (MEASURED,), MEASURED),
    *_sides("front gap %", GAP, ".2f", 100, (PREDICTED, MEASURED), MEASURED),
)
_WEIGHTS = (
    *_NAMES,
    *_sides("target's score %", QUALITY, ".1f", 100),
    *_sides("weight of a text", WEIGHT, ".2f", 1, (MEASURED,), MEASURED),
    *_sides("effective samples %", EFFECTIVE, ".1f", 100, (MEASURED,)),
    *_sides("KL nats/token", DIVERGENCE, ".4f", 1, (MEASURED,), MEASURED),
    *_sides("uncovered %", UNCOVERED, ".2f", 100, (MEASURED,)),
)
_WEIGHT_NOTES = (
    "target's score: predicted from this rule's texts, weighted by p over the law that emitted "
    "them, and measured on texts of exact methods on the same prompts.",
)
_RECORDED = (QUALITY, WEIGHT, EFFECTIVE, DIVERGENCE, UNCOVERED)
_UNEQUAL = (
    f"Warning: fewer than {100 * FEW:.0f} % effective samples for {{}}: few texts have most of the "
    "weight, and the interval of the target's score may be too narrow."
)
_INFINITE = (
    "Warning: {} emits tokens that p excludes, such as by --top-k: its KL divergence from p is "
    "infinite, and texts with such tokens have no weight."
)
_NOTES = (
    "accepted / judged: fraction of judged drafts accepted; drafts after a round's first rejection "
    "are not judged, but a run's accepted / drafted includes them.",
    "length: drafts accepted per round, for rounds not cut short by the end of the text. "
    "tokens/round: over all rounds, including the target's own token.",
)


def theory_tables(table: pd.DataFrame) -> Iterator[Table]:
    """Yield readable tables of the rows of ``theory_table`` and ``front_gaps``."""
    several = table["run_id"].nunique() > 1
    setting = ["run_id", "pair", "task", "temperature", "engine", "batch_size"]
    for (run, pair, task, temperature, *_), group in table.groupby(setting, sort=False):
        setting_name = f"{task} on {pair}, T = {temperature:g}{f', {run}' if several else ''}"
        labelled = group.assign(label=method_labels(group.to_dict("records")))
        off_front = labelled["metric"].isin([BIAS, GAP])
        weights = labelled["metric"].isin(_RECORDED)
        unequal = labelled[labelled["metric"].eq(EFFECTIVE) & ~(labelled[MEASURED] >= FEW)]
        infinite = labelled[labelled["metric"].eq(DIVERGENCE) & labelled[MEASURED].isna()]
        caution = [
            sentence.format(", ".join(rows["label"]))
            for sentence, rows in ((_INFINITE, infinite), (_UNEQUAL, unequal))
            if len(rows)
        ]
        accepted = labelled[~off_front & ~weights]
        for title, rows, fields, notes in (
            ("Acceptance and accepted length", accepted, _PREDICTIONS, _NOTES),
            ("Off the front", labelled[off_front], _FRONT, ()),
            ("Recorded laws", labelled[weights], _WEIGHTS, (*_WEIGHT_NOTES, *caution)),
        ):
            if len(rows):
                cells = _cells(rows)
                yield drop_empty(Table.of(cells, fields, f"{title}: {setting_name}", notes, stub=2))


def _cells(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield each cell with all sides of its metrics, such as ``acceptance predicted_low``."""
    sides = [f"{side}{end}" for side in SIDES for end in ("", "_low", "_high")]
    for (label, size), cell in rows.groupby(["label", "draft_length"], sort=False):
        values = cell.set_index("metric")[sides].stack()
        figures = {f"{metric} {side}": value for (metric, side), value in values.items()}
        yield {"label": str(label), "draft_length": size, **figures}
