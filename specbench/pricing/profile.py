"""A profile of acceptance in place of texts: rates by position, or the rounds of a run."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from specbench.analysis.intervals import FEWEST
from specbench.decoding.drafters.kind import DrafterKind
from specbench.errors import UsageError, require
from specbench.pricing.counts import counted_cells, most_drafts, priced_counts
from specbench.pricing.records import drafter_of
from specbench.pricing.rounds import PricedRounds
from specbench.runs.run import Run


def rounds_of_rates(text: str, drafter: DrafterKind) -> PricedRounds:
    """Return rounds in which position k is accepted at a rate, given that those before it are.

    The rates are taken as exact: all prompts are alike, so that intervals are those of costs.

    Args:
        text: The rates, separated by commas.
        drafter: What they are of.

    Raises:
        UsageError: They are not numbers from 0 to 1.
    """
    try:
        rates = [float(rate) for rate in text.split(",")]
    except ValueError:
        rates = []
    require(
        len(rates) > 0 and all(0 <= rate <= 1 for rate in rates),
        f"--acceptance {text}: give a rate from 0 to 1 for each position, as .8,.72,.65, or the "
        "folder of a run",
    )
    tokens_per_round = 1 + np.cumprod(rates).cumsum()
    lengths = np.arange(1, len(rates) + 1)
    rounds = np.tile(1 / tokens_per_round, (FEWEST, 1))
    numbers = tuple(lengths.tolist())
    return PricedRounds(drafter, "fixed", numbers, np.ones(FEWEST), rounds, rounds * lengths)


def rounds_of_run(run: Run, tasks: Collection[str], limit: int | None) -> list[PricedRounds]:
    """Return the recorded rounds of a run for each drafter, of the cell with the most drafts.

    Raises:
        UsageError: There are none, or they are of several tasks.
    """
    cells = counted_cells(run.records(), tasks, limit)
    names = {cell[0]["task"] for cell in cells}
    if not cells:
        raise UsageError(
            f"--acceptance {run.folder}: this run has no recorded rounds with several drafts, by "
            "sd, match or a server: give rates by position instead, as .8,.72,.65"
        )
    require(len(names) == 1, f"the run has {len(names)} tasks: name one of them with --task")
    longest = {drafter_of(cell[0]).kind: cell for cell in sorted(cells, key=most_drafts)}
    return [priced_counts(cell).likely for cell in longest.values()]
