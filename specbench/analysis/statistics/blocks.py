"""Blocks of texts that were decoded together: the units in which their time is measured."""

from __future__ import annotations

import pandas as pd

from specbench.analysis.statistics.intervals import FEWEST
from specbench.runs.frames import CELL, example_ids


def whole_blocks(samples: pd.DataFrame) -> pd.Series:
    """Return the block of each sample, NaN if it was decoded alone or not in a whole block.

    Requests to servers that are in flight together share their time too, and arms take turns by
    block: a whole one has as many examples as the largest of its cell.
    """
    if "block" not in samples:
        return pd.Series(float("nan"), samples.index)
    decode = [name for name in (*CELL, "repeat", "timing", "block") if name in samples]
    examples = samples.assign(example=example_ids(samples)).groupby(decode, dropna=False)["example"]
    size = examples.transform("nunique")
    largest = size.groupby([samples[name] for name in CELL], dropna=False).transform("max")
    whole = samples["batch_size"].mask(samples["batch_size"] == 1, largest)
    return samples["block"].where((size == whole) & (whole > 1))


def by_time_unit(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples whose times count, with the unit of each as ``sample_id``.

    It is the prompt, or the block. Where a cell has whole blocks, the times of its other samples do
    not count. A cell without a whole block, as after an interruption, shares no unit with one that
    has some.
    """
    if "block" not in samples:
        return samples
    block, unit = whole_blocks(samples), samples["sample_id"].map("prompt {}".format)
    if block.notna().any():
        in_blocks = block.notna().groupby([samples[name] for name in CELL], dropna=False)
        unit = unit.mask(in_blocks.transform("any"))
        unit = unit.where(block.isna(), "block " + block.map("{:.0f}".format))
    return samples.assign(sample_id=unit)[unit.notna()]


def count_blocks(samples: pd.DataFrame) -> float:
    """Return the number of whole blocks; NaN if the samples were decoded alone or name no block."""
    blocks, in_batch = whole_blocks(samples), samples["batch_size"] > 1
    in_block = blocks.notna() | (in_batch & samples.get("block", blocks).notna())
    return float(blocks.nunique()) if in_block.any() else float("nan")


def describe_blocks(blocks: float, batch_size: int) -> str:
    """Return how many blocks of how many prompts there are, and whether they are too few."""
    if blocks >= FEWEST:
        return f"{blocks:.0f} blocks of {batch_size} prompts"
    number = f"{blocks:.0f} whole" if blocks == blocks else "no recorded"
    shortage = f"no verdict on time, which needs at least {FEWEST} blocks"
    return f"{number} blocks of {batch_size} prompts: {shortage}"


def has_comparable_times(samples: pd.DataFrame) -> bool:
    """Return whether the texts were decoded alone or in enough blocks for an interval."""
    blocks = count_blocks(samples)
    is_alone = (samples["batch_size"] == 1).all() and blocks != blocks
    return bool(is_alone) or blocks >= FEWEST
