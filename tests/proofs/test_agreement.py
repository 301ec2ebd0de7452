"""On the bundled pair, expected acceptance of the rules adds up to the measured acceptance."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.theory import ACCEPTANCE, LENGTH, TOKENS, theory_table
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.sampling import Sampling
from specbench.experiment.measurements import measurements
from specbench.experiment.prompts import encode_prompt
from specbench.heads.bind import bind
from specbench.methods.registry import get_method
from specbench.tasks.task import load_task

from ..synthetic import RECORD, write_records

TEXTS, WEIGHT = 20, 0.6
METRICS = (ACCEPTANCE, LENGTH, TOKENS)


def sampled(mini: Any, method: str, **given: Any) -> list[dict[str, Any]]:
    """Records of a method."""
    task = load_task("mini-headline")
    bound = bind(method, get_method(method).resolve(given), mini)
    prompts = [
        Request(encode_prompt(mini.tokenizer, e, task.prompt_format).ids, f"theory/{e.id}")
        for e in task.examples("test", TEXTS, 0)
    ]
    options = DecodeOptions(Sampling(), 5, 48, seed=3, batch_size=TEXTS, control=bound.control)
    decoded = decode_all(mini, bound.rule, prompts, options)
    name = {"method": method, "repeat": 0}
    return [
        {**RECORD, **name, **measurements(generation, drafts=True), "sample_id": str(number)}
        for number, generation in decoded
    ]


def far_off(folder: Path, records: list[dict[str, Any]]) -> list[str]:
    """The metrics with a difference of more than four standard errors from 0."""
    table = theory_table(write_records(folder, records))
    found: pd.DataFrame = table[table["metric"].isin(METRICS)]
    assert len(found) == len(METRICS)
    errors = (found["difference_high"] - found["difference_low"]) / 3.92
    return list(found.loc[found["difference"].abs() > 4 * errors, "metric"])


@pytest.mark.parametrize("method", ["sd", "sd-adaptive", "block", "speccascade", "typical"])
def test_theory_and_measurement_agree(mini: Any, method: str, tmp_path: Path) -> None:
    assert far_off(tmp_path, sampled(mini, method)) == []


def test_a_wrong_weight_is_detected(mini: Any, tmp_path: Path) -> None:
    records = sampled(mini, "static", weight=WEIGHT)
    assert far_off(tmp_path / "right", records) == []
    for record in records:
        rounds = record["per_round"]
        # 1 - TV(p, q) instead of 1 - w TV(p, q)
        rounds["expected"] = [[1 - (1 - e) / WEIGHT for e in r] for r in rounds["expected"]]
    assert far_off(tmp_path / "wrong", records) == list(METRICS)
