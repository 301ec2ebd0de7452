"""Examples with the same prompt count as one prompt in every interval."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.estimates import score_interval
from specbench.analysis.statistics.summary import summarise
from specbench.analysis.verdicts.compare import compare
from specbench.analysis.verdicts.margin import margin_rows
from specbench.analysis.written import write_summary
from specbench.runs.frames import read_samples
from specbench.runs.records import write_examples
from specbench.tasks.example import Example, repeated_prompts

from ..synthetic import samples

PROMPTS = 12


def frame(times: int) -> pd.DataFrame:
    """A run of ``sd`` and ``typical`` on examples that share a prompt ``times`` times."""
    rng = np.random.default_rng(0)
    hard = rng.random(PROMPTS)
    parameters = {"sd": {}, "typical": {"epsilon": 0.1, "delta": 0.3}}
    rows: list[dict[str, Any]] = [
        {
            **{"method": method, **values, "sample_id": f"p{prompt}-{number}"},
            "quality": float(rng.random() * 0.4 + 0.6 * hard[prompt]),
            "decode_seconds": float(rng.uniform(0.5, 1)),
        }
        for method, values in parameters.items()
        for prompt in range(PROMPTS)
        for number in range(times)
    ]
    return samples(*rows, quality_metric="rouge2")


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder whose examples share prompts in fives; its table is written from records."""
    folder, table = tmp_path / "run", frame(5)
    folder.mkdir()
    examples = [
        Example(name, prompt=name.partition("-")[0], reference=name)
        for name in dict.fromkeys(table["sample_id"])
    ]
    write_examples(folder, {"mini-math": examples})
    first = repeated_prompts(examples)
    table["same_prompt_as"] = table["sample_id"].map(first)
    table.to_csv(folder / "samples.csv", index=False)
    write_summary(folder)
    return folder


def test_examples_with_one_prompt_are_read_as_one(run):
    table = read_samples(run)
    assert set(table["sample_id"]) == {f"p{n}-0" for n in range(PROMPTS)}
    assert table["example"].nunique() == 5 * PROMPTS
    alone = table.assign(sample_id=table["example"]).drop(columns=["example", "same_prompt_as"])
    for read in (summarise, lambda rows: compare(rows).rows):
        once, many = read(table), read(alone)
        assert (set(once["n"]) - {0}, set(many["n"]) - {0}) == ({PROMPTS}, {5 * PROMPTS})
        width = once["ci_high"] - once["ci_low"]
        assert (width > (many["ci_high"] - many["ci_low"]))[once["metric"] == "quality"].all()
    against = margin_rows(table, "sd", 5).dropna(subset="against")
    assert against["n"].tolist() == [PROMPTS]
    means = table.groupby("method")["quality"].mean()
    assert against["quality_difference"].tolist() == pytest.approx([means["typical"] - means["sd"]])


def test_intervals_cover_where_prompts_are_given_five_times():
    """Counted alone, the interval misses in a third."""
    misses = 0
    table = frame(5)[lambda rows: rows["method"] == "sd"]
    prompts, rng = table["sample_id"].str.partition("-")[0], np.random.default_rng(0)
    for _ in range(150):
        hard = np.repeat(rng.random(PROMPTS), 5)
        quality = 0.4 * rng.random(5 * PROMPTS) + 0.6 * hard
        cell = table.assign(sample_id=prompts, quality=quality)
        interval = score_interval(cell, "quality", "rouge2")  # that of the summary
        misses += not interval.low <= 0.5 <= interval.high
    assert misses <= 15


def test_a_conversation_or_another_turn_is_another_prompt():
    system = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2"})
    examples = [
        Example("a", "2 + 2"),
        Example("b", "2 + 2", reference="4"),
        Example("c", "2 + 2", conversation=system),
        Example("d", "2 + 2", turns=("2 + 2", "and 3?")),
        Example("e", "2 + 2", conversation=system),
    ]
    assert repeated_prompts(examples) == {"b": "a", "e": "c"}
