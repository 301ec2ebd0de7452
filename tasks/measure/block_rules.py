"""What relaxed rules lose per accepted draft with two drafters: the claim of a design.

    python tasks/measure/block_rules.py results/reference-block

The folder has a run ``TASK-DRAFTER`` for each task and drafter. Prints, for each task and rule, the
gain of acceptance over ``sd`` with the same drafter, the loss of quality, the loss at a gain of 10
points, and how much more that is with ``block`` than with ``mtp``, with 95 % intervals over prompts
and Holm's correction over all differences.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import specbench
from specbench.runs.labels import method_labels
from specbench.tasks.metrics import shown_metric

DRAFTERS = ("mtp", "block")
RESAMPLES, LEAST_GAIN, STEP = 4_000, 2.0, 10.0  # points
Floats = NDArray[np.float64]


def terms(folder: Path) -> dict[str, pd.DataFrame]:
    """Return accepted and proposed drafts and the score of each prompt, by rule."""
    samples = specbench.load(folder).samples
    # Both drafters have the same labels.
    labels = method_labels(samples.assign(drafter=None).to_dict("records"))
    scale = shown_metric(samples["quality_metric"].iloc[0])[1]
    samples = samples.assign(label=labels, quality=scale * samples["quality"])
    return {
        str(label): cell.groupby("sample_id")[["accepted", "proposed", "quality"]].mean()
        for label, cell in samples.groupby("label", sort=False)
    }


def resampled(table: pd.DataFrame, counts: Floats) -> tuple[Floats, Floats]:
    """Return acceptance in percent and quality of resamples of prompts ``[R + 1]``."""
    accepted, proposed, quality = (counts @ table[name].to_numpy() for name in table)
    return 100 * accepted / proposed, quality / counts.sum(-1)


def rows_of(parent: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each task and rule."""
    draws = np.random.default_rng(0)
    for task in sorted({path.name.rpartition("-")[0] for path in parent.glob("*-block")}):
        of_drafter = {drafter: terms(parent / f"{task}-{drafter}") for drafter in DRAFTERS}
        prompts = of_drafter["block"]["sd"].index
        n = len(prompts)
        counts = np.vstack([np.ones(n), draws.multinomial(n, np.full(n, 1 / n), RESAMPLES)])
        for label in of_drafter["block"]:
            if label in ("sd", "autoregressive"):
                continue
            row: dict[str, object] = {"task": task, "rule": label, "n": n}
            prices = []
            for drafter, rules in of_drafter.items():
                base = resampled(rules["sd"].loc[prompts], counts)
                rule = resampled(rules[label].loc[prompts], counts)
                gain, loss = rule[0] - base[0], base[1] - rule[1]
                row[f"gain {drafter}"], row[f"loss {drafter}"] = shown(gain), shown(loss)
                row[f"gains {drafter}"] = np.quantile(gain[1:], 0.025) > LEAST_GAIN
                with np.errstate(divide="ignore", invalid="ignore"):  # a resample without a gain
                    prices.append(STEP * loss / gain)
            if row["gains mtp"] and row["gains block"]:
                more = prices[1] - prices[0]
                share = min((more[1:] > 0).mean(), (more[1:] < 0).mean())
                row |= {"more with block": shown(more), "p": max(2 * share, 2 / RESAMPLES)}
            yield row


def shown(values: Floats) -> str:
    """Return a value with the 95 % interval of its resamples."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:+.1f} [{low:+.1f}, {high:+.1f}]"


def main(parent: Path) -> None:
    """Print the table."""
    table = pd.DataFrame(rows_of(parent))
    tested = table["p"].dropna().sort_values()
    left = len(tested) - np.arange(len(tested))
    table["Holm"] = (tested * left).clip(upper=1).cummax()
    table["claim"] = np.where(
        table["p"].isna(),
        "gains less than 2 points",
        np.where(
            table["Holm"] > 0.05,
            "open",
            np.where(table["more with block"].str.startswith("+"), "dearer", "cheaper"),
        ),
    )
    columns = [name for name in table if not str(name).startswith("gains ")]
    print(table[columns].to_markdown(index=False, floatfmt=".3f"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
