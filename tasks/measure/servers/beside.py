"""Compare rules inside vLLM with our engine by position in the round, on the same prompts.

    python tasks/measure/servers/beside.py [--tokens 128] [--skip 16] RUN [RUN ...]

A server's arm is named after the rule that it verifies by, with ``vllm-`` before it. It is compared
with the cell of that rule at the same temperature. A server draws its first token from the prompt,
without a draft, so its first rounds begin one token later. Both sides therefore leave out rounds
that begin in the first ``--skip`` tokens, and those that a limit of ``--tokens`` might cut.
Intervals are 95 %, paired by prompt; a line counts those that do not contain 0. The last line
counts, over equal greedy texts, the rounds that begin at one token in both and accept as much.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench import load
from specbench.analysis.statistics.intervals import paired_interval, ratio, ratio_difference
from specbench.config import DRAFT_LENGTH
from specbench.runs.frames import CELL
from specbench.runs.labels import method_label
from specbench.runs.model import SampleRecord
from specbench.runs.run import read_run

ARM = "vllm-"
#: The cells of our engine beside arms, if a run has several of a method.
CELLS = {"static": "w=0.5", "lossy": "l=0.5", "diversed": "features/seed-0"}
MOST_EMITTED = DRAFT_LENGTH + 1  # tokens of a round
VLLM_RULE = "own"  # vLLM's own verification, which is compared with ``sd``
ALL, EXPECTED = "all", "expected"
SETTING = ["task", "temperature", "method", "settings"]


def main() -> None:
    """Print a row per rule, setting and position."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=10**9, help="limit on new tokens")
    parser.add_argument("--skip", type=int, default=16)
    options = parser.parse_args()
    rounds = pd.concat([load(folder).rounds for folder in options.run])
    emitted = rounds.groupby([*CELL, "sample_id", "repeat"], dropna=False)["emitted"]
    begin = emitted.cumsum() - rounds["emitted"]
    whole = (begin >= options.skip) & (begin + MOST_EMITTED <= options.tokens)
    table = compared(rounds[whole])
    print(table.to_string(index=False, float_format="{:.3f}".format))
    intervals = table.dropna(subset="low")
    misses = (intervals["low"] > 0) | (intervals["high"] < 0)
    print(f"{misses.sum()} of {len(intervals)} intervals do not contain 0")
    same = [accepted == others for accepted, others in shared_rounds(options.run)]
    print(f"{sum(same)} of {len(same)} shared rounds of equal greedy texts accept as many drafts")


def compared(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return accepted of judged drafts of each arm and of our engine, by position and in all."""
    at_server = rounds["method"].str.startswith(ARM)
    ours = rounds[~at_server]
    rows: list[dict[str, Any]] = []
    arms = rounds[at_server].groupby(SETTING, dropna=False)
    for (task, temperature, arm, at_once), theirs in arms:
        rule = arm.removeprefix(ARM)
        setting = (ours["task"] == task) & (ours["temperature"] == temperature)
        cell = ours[setting & (ours["method"] == ("sd" if rule == VLLM_RULE else rule))]
        if rule in CELLS:
            cell = cell[[CELLS[rule] in method_label(row) for row in cell.to_dict("records")]]
        if cell.empty:
            continue
        for position in (*range(1, MOST_EMITTED), ALL, *([] if rule == VLLM_RULE else [EXPECTED])):
            terms, base_terms = judged(theirs, position), judged(cell, position)
            prompts, base_prompts = theirs["sample_id"], cell["sample_id"]
            sides = (terms, prompts), (base_terms, base_prompts)
            difference = paired_interval(*sides, ratio_difference)
            totals = terms[prompts.isin(base_prompts)].sum(0)
            base_totals = base_terms[base_prompts.isin(prompts)].sum(0)
            rows.append(
                {
                    "task": task,
                    "T": temperature,
                    "rule": rule,
                    "at once": str(at_once).removeprefix("concurrency="),
                    "position": position,
                    "prompts": difference.n,
                    "judged": int(totals[1]),
                    "vLLM": ratio(totals),
                    "ours": ratio(base_totals),
                    "difference": difference.value,
                    "low": difference.low,
                    "high": difference.high,
                }
            )
    return pd.DataFrame(rows)


def shared_rounds(folders: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """Yield the drafts that both engines accept in rounds that begin at the same token."""
    texts: dict[tuple[str, str, str], SampleRecord] = {}
    for folder in folders:
        for record in read_run(folder).records():
            if record.temperature == 0:
                texts[record.task, record.method, record.sample_id] = record
    for (task, arm, sample), theirs in texts.items():
        ours = texts.get((task, arm.removeprefix(ARM), sample))
        if arm.startswith(ARM) and ours and theirs.token_ids == ours.token_ids:
            starts, base_starts = accepted_from(theirs, 1), accepted_from(ours, 0)
            last = len(theirs.token_ids or []) - MOST_EMITTED
            for token in starts.keys() & base_starts.keys():
                if token <= last:
                    yield starts[token], base_starts[token]


def accepted_from(record: SampleRecord, first: int) -> dict[int, int]:
    """Return the accepted drafts of each round by the token at which it begins."""
    rounds = record.per_round
    begin = accumulate(rounds.emitted or [], initial=first)
    return dict(zip(begin, rounds.accepted or [], strict=False))


def judged(rounds: pd.DataFrame, position: int | str) -> np.ndarray:
    """Return accepted and judged drafts [rounds, 2] at a position, or at all positions.

    ``EXPECTED`` are acceptance probabilities, summed, in place of accepted drafts.
    """
    proposed, accepted = rounds["proposed"].to_numpy(), rounds["accepted"].to_numpy()
    if isinstance(position, str):
        number = np.minimum(accepted + 1, proposed)
        probability = rounds["expected_acceptance"].fillna(0).to_numpy() * number
        return np.column_stack([accepted if position == ALL else probability, number])
    return np.column_stack(
        [accepted >= position, (proposed >= position) & (accepted >= position - 1)]
    ).astype(float)


if __name__ == "__main__":
    main()
