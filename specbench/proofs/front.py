"""Figures that need a run's models: the bias and front gap of its rules.

Bias and front gap are measured on texts that the rule generated: one plain forward pass of each
model gives p and q at every token, and the closed form of the rule's law gives the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from specbench.analysis.intervals import bootstrap, cluster_sums
from specbench.analysis.theory import (
    BIAS,
    COLUMNS,
    GAP,
    PredictedMeasured,
    Record,
    cells_of,
    front_gap,
    total_variation,
)
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.experiment.prompts import answers_before, recorded_prompt
from specbench.heads.bind import BoundMethod, bind
from specbench.heads.registry import find_head
from specbench.methods.drafters import MODEL
from specbench.methods.parameters import from_columns
from specbench.methods.registry import get_method
from specbench.proofs.laws import laws_at
from specbench.proofs.passes import processed
from specbench.proofs.texts import Setup
from specbench.runs.frames import CELL
from specbench.runs.labels import method_label
from specbench.runs.records import TRACED
from specbench.runs.run import Run

log = logging.getLogger(__name__)
_UNMEASURED = "no bias and front gap of %s: %s"

#: Methods on the front at any temperature above 0; their predicted front gap is 0.
ON_FRONT = frozenset({"sd", "block", "lossy", "static", "diversed", "mentored"})


def front_gaps(run: Run, texts: int) -> pd.DataFrame:
    """Measure each rule's bias TV(pi, p) and front gap, as means over tokens of its texts.

    p is the target's distribution under the run's sampling settings, even if a method sharpens it.
    Neither needs a reference.

    Returns two rows per cell with columns ``analysis.theory.COLUMNS``. Methods without a closed
    form of their law, and other drafters than the draft model, are skipped with a warning.

    Raises:
        UsageError: The run is greedy, or its models or examples are not available.
    """
    if not run.settings.temperature:
        reason = "is greedy, but front gaps need sampled texts"
        raise UsageError(f"{run.folder} {reason}: run above T=0")
    cells = cells_of(run.records(TRACED.union(CELL)))
    _ = run.examples  # report errors in the examples before loading the models
    pair = load_pair(run.pair, run.loading)
    rows = []
    for cell, records in cells:
        if cell["drafter"] != MODEL:
            log.warning(_UNMEASURED, method_label(cell), "only for the draft model")
            continue
        parameters = get_method(cell["method"]).resolve(from_columns(cell))
        if "head" in parameters:
            parameters["head"] = find_head(run.pair, cell["task"], parameters["head"])
        method = bind(cell["method"], parameters, pair)
        if method.law is None:
            log.warning(_UNMEASURED, method_label(cell), "its law is not known")
            continue
        first = [record for record in records if not record["repeat"] and record["token_ids"]]
        chosen = first[:texts]
        sums = np.array([_sums(run, pair, method, r, answers_before(records, r)) for r in chosen])
        prompts, summed = cluster_sums(sums, [record["sample_id"] for record in chosen])
        bias, gap, tokens = bootstrap(summed).T
        unknown = np.full_like(gap, np.nan)
        on_front = np.zeros_like(gap) if method.method in ON_FRONT else unknown
        for predicted in (
            PredictedMeasured(BIAS, unknown, bias / tokens),
            PredictedMeasured(GAP, on_front, gap / tokens),
        ):
            rows.append(predicted.row(cell, len(prompts)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


@torch.inference_mode()
def _sums(
    run: Run, pair: LoadedPair, method: BoundMethod, record: Record, answers: Sequence[str]
) -> tuple[float, float, int]:
    """Return the sums of bias and front gap over a text's tokens, and their number."""
    example = run.examples[record["task"]][record["sample_id"]]
    prompt = recorded_prompt(run, pair, example, record, answers)
    text = [*prompt, *record["token_ids"]]
    sampling = run.settings.part(Sampling)
    setup = Setup(pair, method, sampling, draft_length=record["draft_length"])
    laws = laws_at(setup, [text], _positions(record))
    assert laws.split is not None
    changed = method.sampling(sampling) != sampling
    target = processed(laws.at.p1.log(), sampling) if changed else laws.at.p
    law = (laws.split.kept + laws.split.replaced).cpu().numpy()
    p, q, accepted = target.cpu().numpy(), laws.at.q.cpu().numpy(), laws.split.kept.cpu().numpy()
    gaps = front_gap(p, q, law, accepted.sum(axis=-1))
    return float(total_variation(law, p).sum()), float(gaps.sum()), len(gaps)


def _positions(record: Record) -> torch.Tensor:
    """Return the index of each token of a record within its round ``[1, T]``."""
    positions = [index for tokens in record["per_round"]["emitted"] for index in range(tokens)]
    return torch.tensor([positions[: len(record["token_ids"])]])
