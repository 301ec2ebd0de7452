"""On the bundled pair, theory and measurement agree for every method."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.decoding.loop import decode_all
from specbench.decoding.rows import Request
from specbench.decoding.sampling import Sampling
from specbench.engine.prompts import encode
from specbench.experiment.measurements import measurements
from specbench.heads.files import load_head
from specbench.heads.registry import find_head
from specbench.methods.registry import METHODS
from specbench.pairs.registry import get_pair
from specbench.tasks.task import load_task
from specbench.theory.table import ACCEPTANCE, LENGTH, TOKENS, theory_table
from specbench.theory.tally import read_tallies

from .runs import CELL, write

TASK, TEXTS, WEIGHT = "mini-headline", 20, 0.6
METRICS = (ACCEPTANCE, LENGTH, TOKENS)


@pytest.fixture(scope="module")
def prompts(mini: Any) -> list[Request]:
    examples = load_task(TASK).examples("test", TEXTS, 0)
    return [Request(encode(mini.tokenizer, e.prompt).ids, f"theory/{e.id}") for e in examples]


def sampled(mini: Any, prompts: list[Request], method: str) -> list[dict[str, Any]]:
    """Records of a method with the parameters that it has by default."""
    known = METHODS[method]
    parameters = known.resolve({"weight": WEIGHT} if method == "static" else {})
    if "head" in parameters:
        head = find_head(get_pair("mini"), TASK)
        parameters["head"] = load_head(head.path, mini).weigh
    verify, control = known.bind(parameters)
    decoded = decode_all(
        mini,
        verify,
        prompts,
        control=control,
        sampling=Sampling(),
        draft_length=5,
        max_new_tokens=48,
        seed=3,
        batch_size=TEXTS,
    )
    name = {"method": method, "sample_id": None, "repeat": 0}
    return [
        {**CELL, **name, **measurements(generation), "sample_id": str(number)}
        for number, generation in decoded
    ]


def far_off(table: pd.DataFrame) -> list[str]:
    """The figures whose difference is more than four standard errors from 0."""
    errors = (table["difference_high"] - table["difference_low"]) / 3.92
    off = table["metric"].isin(METRICS) & (table["difference"].abs() > 4 * errors)
    return list(table.loc[off, "metric"])


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.rule])
def test_theory_and_measurement_agree(
    mini: Any, prompts: list[Request], method: str, tmp_path: Path
) -> None:
    records = sampled(mini, prompts, method)
    table = theory_table(read_tallies(write(tmp_path, records)))
    assert set(METRICS) <= set(table["metric"])
    assert far_off(table) == []


def test_a_wrong_weight_would_be_seen(mini: Any, prompts: list[Request], tmp_path: Path) -> None:
    records = sampled(mini, prompts, "static")
    for record in records:
        rounds = record["per_round"]
        # 1 - TV(p, q) where it should be 1 - w TV(p, q)
        rounds["expected"] = [[1 - (1 - e) / WEIGHT for e in r] for r in rounds["expected"]]
    table = theory_table(read_tallies(write(tmp_path, records)))
    assert far_off(table) == list(METRICS)
