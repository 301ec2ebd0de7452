"""On the bundled pair, expected acceptance of the rules adds up to the measured acceptance."""

from typing import Any

import numpy as np
import pytest

from specbench.decoding.heads.bind import bind
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.sampling import Sampling
from specbench.experiment.measurements import measurements
from specbench.experiment.prompts import encode_prompt
from specbench.methods.registry import get_method
from specbench.tasks.task import load_task

TEXTS, WEIGHT = 20, 0.6


def sampled(mini: Any, method: str, **given: Any) -> list[dict[str, Any]]:
    """What was recorded of the rounds of each text."""
    task = load_task("mini-headline")
    bound = bind(method, get_method(method).resolve(given), mini)
    prompts = [
        Request(encode_prompt(mini.tokenizer, e, task.prompt_format).ids, f"theory/{e.id}")
        for e in task.examples("test", TEXTS, 0)
    ]
    options = DecodeOptions(Sampling(), 5, 48, seed=3, batch_size=TEXTS, control=bound.control)
    decoded = decode_all(mini, bound.rule, prompts, options)
    return [measurements(generation, drafts=True)["per_round"] for _, generation in decoded]


def errors_from_0(texts: list[dict[str, Any]]) -> float:
    """Accepted drafts minus their expected number, in standard errors."""
    differences = [sum(r["accepted"]) - sum(map(sum, r["expected"])) for r in texts]
    return abs(np.mean(differences)) / (np.std(differences, ddof=1) / np.sqrt(len(differences)))


@pytest.mark.parametrize("method", ["sd-adaptive", "speccascade", "typical"])
def test_expected_acceptance_adds_up_to_the_measured_one(mini, method):
    assert errors_from_0(sampled(mini, method)) < 4


def test_a_wrong_weight_is_detected(mini):
    texts = sampled(mini, "static", weight=WEIGHT)
    assert errors_from_0(texts) < 4
    for rounds in texts:  # 1 - TV(p, q) instead of 1 - w TV(p, q)
        rounds["expected"] = [[1 - (1 - e) / WEIGHT for e in r] for r in rounds["expected"]]
    assert errors_from_0(texts) > 4
